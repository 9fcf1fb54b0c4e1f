/** The settings of the metrics' endpoint. */

import type { Environment } from './environment.ts';

export interface MetricsSettings {
  /** Port of the metrics alone; null to serve them on the server's port. */
  readonly metricsPort: number | null;
  /** Bearer token for the metrics; null for none. */
  readonly metricsToken: string | null;
}

/** @param problems gets a line for each mistake */
export function readMetricsSettings(
  environment: Environment,
  port: number,
  problems: string[],
): MetricsSettings {
  const { NUNCIO_METRICS_PORT: portText, NUNCIO_METRICS_TOKEN: token } = environment;
  const metricsPort = portText === undefined ? null : Number(portText);
  if (metricsPort !== null && !(/^\d+$/.test(portText ?? '') && metricsPort >= 1 && metricsPort <= 65_535)) {
    problems.push(
      `NUNCIO_METRICS_PORT is ${JSON.stringify(portText)}: it must be an integer from 1 to 65535`,
    );
  } else if (metricsPort === port) {
    problems.push(`NUNCIO_METRICS_PORT is "${port}": it must be another port than PORT`);
  }
  if (token !== undefined && !/^[\x21-\x7e]{16,255}$/.test(token)) {
    // The message must not contain the token itself.
    problems.push(
      `NUNCIO_METRICS_TOKEN is ${token.length} characters long: it must be 16 to 255 visible ASCII characters`,
    );
  }
  return { metricsPort, metricsToken: token ?? null };
}
