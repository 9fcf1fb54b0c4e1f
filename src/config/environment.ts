/**
 * The environment: the one place that reads `process.env`. Everything else is handed what it needs.
 */

/** The variables that Nuncio knows, as strings; an empty value counts as absent. */
export interface Environment {
  readonly NUNCIO_BASE_URL?: string;
  readonly PORT?: string;
  readonly HOST?: string;
  readonly DATABASE_URL?: string;
  readonly NUNCIO_DATA_DIR?: string;
  readonly NUNCIO_SECRET?: string;
  readonly NUNCIO_INSECURE_SUBSCRIBERS?: string;
  readonly NUNCIO_RETRY_SCHEDULE?: string;
  readonly NUNCIO_RATE_LIMIT?: string;
  readonly NUNCIO_TRUST_PROXY?: string;
  readonly NUNCIO_EGRESS_PROXY?: string;
  readonly NUNCIO_TLS_CERT_FILE?: string;
  readonly NUNCIO_TLS_KEY_FILE?: string;
  readonly NUNCIO_TLS_CLIENT_CA_FILE?: string;
  readonly NUNCIO_CONFIG?: string;
  readonly LOG_LEVEL?: string;
}

const names = [
  'NUNCIO_BASE_URL',
  'PORT',
  'HOST',
  'DATABASE_URL',
  'NUNCIO_DATA_DIR',
  'NUNCIO_SECRET',
  'NUNCIO_INSECURE_SUBSCRIBERS',
  'NUNCIO_RETRY_SCHEDULE',
  'NUNCIO_RATE_LIMIT',
  'NUNCIO_TRUST_PROXY',
  'NUNCIO_EGRESS_PROXY',
  'NUNCIO_TLS_CERT_FILE',
  'NUNCIO_TLS_KEY_FILE',
  'NUNCIO_TLS_CLIENT_CA_FILE',
  'NUNCIO_CONFIG',
  'LOG_LEVEL',
] as const satisfies readonly (keyof Environment)[];

/** Reads the process's environment once. */
export function readEnvironment(): Environment {
  const environment: Record<string, string> = {};
  for (const name of names) {
    const value = process.env[name];
    if (value !== undefined && value.trim() !== '') environment[name] = value.trim();
  }
  return environment;
}
