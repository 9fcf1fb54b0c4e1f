/** One node: its event loop, its engine and its limits. Read from the node's metrics, which only programs that may read them get. */

import { type Config, isLoopbackHost } from '../config/config.ts';
import { type Check, check, type Probe } from './report.ts';

const timeoutMs = 3_000;
/** Seconds. */
const lag = { warning: 0.1, error: 1 };
const utilizationMax = 0.9;
/** Requests, attempts and connections each need a file. */
const filesMin = 4_096;

/** @param metrics in Prometheus' text format; undefined if they are not visible */
export function nodeProbes(metrics: () => Promise<string | undefined>): readonly Probe[] {
  return [{ name: 'node', run: async () => checkNode(await metrics()) }];
}

function checkNode(text: string | undefined): Check[] {
  if (text === undefined) {
    return [
      check(
        'node.event_loop',
        'unknown',
        'the metrics of a node are not visible from here',
        'Run nuncio doctor on the machine of a node, or open the doctor of the console, which a node answers.',
      ),
    ];
  }
  const p99 = metricOf(text, 'nodejs_eventloop_lag_p99_seconds');
  const engine = metricOf(text, 'nuncio_engine_utilization');
  const files = metricOf(text, 'process_max_fds');
  return [checkLoop(p99), ...checkEngine(engine), ...checkFiles(files)];
}

function checkLoop(seconds: number | undefined): Check {
  const name = 'node.event_loop';
  if (seconds === undefined) return check(name, 'unknown', 'the lag of the event loop is not known yet');
  const values = { p99_seconds: seconds };
  const summary = `the event loop of this node lags by ${Math.round(seconds * 1_000)} ms (p99)`;
  const advice =
    'The node has too much work, or its machine too little processor time: add a node, or remove its limit.';
  if (seconds >= lag.error) return check(name, 'error', summary, advice, values);
  if (seconds >= lag.warning) return check(name, 'warning', summary, advice, values);
  return check(name, 'ok', summary, null, values);
}

function checkEngine(utilization: number | undefined): Check[] {
  if (utilization === undefined) return [];
  const name = 'node.engine';
  const values = { utilization };
  const summary = `the engine thread was busy for ${Math.round(utilization * 100)} % of the time since the last reading`;
  if (utilization < utilizationMax) return [check(name, 'ok', summary, null, values)];
  return [check(name, 'warning', summary, 'If this lasts for minutes, add a node.', values)];
}

function checkFiles(max: number | undefined): Check[] {
  if (max === undefined) return [];
  const name = 'node.open_files';
  const values = { limit: max };
  if (max >= filesMin) return [check(name, 'ok', `the node may open ${max} files`, null, values)];
  return [
    check(
      name,
      'warning',
      `the node may open only ${max} files`,
      'Raise the limit (LimitNOFILE, ulimit -n): connections of clients and subscribers count as files.',
      values,
    ),
  ];
}

/** The value of a metric without labels. */
function metricOf(text: string, name: string): number | undefined {
  const [, value] = new RegExp(`^${name}(?:\\{\\})? ([-+.\\deE]+)$`, 'm').exec(text) ?? [];
  return value === undefined ? undefined : Number(value);
}

/** Reads the metrics of the node on this machine. @returns undefined if there is none, or it does not let this program */
export async function readLocalMetrics(config: Config): Promise<string | undefined> {
  const { metricsPort, metricsToken, port, tls, baseUrl } = config;
  const { hostname } = new URL(baseUrl);
  // With TLS, the certificate is for the name of the base URL.
  const origin =
    metricsPort !== null
      ? `http://127.0.0.1:${metricsPort}`
      : tls === null
        ? `http://127.0.0.1:${port}`
        : isLoopbackHost(hostname)
          ? baseUrl
          : undefined;
  if (origin === undefined) return undefined;
  try {
    const response = await fetch(`${origin}/metrics`, {
      signal: AbortSignal.timeout(timeoutMs),
      redirect: 'manual',
      headers: metricsToken === null ? {} : { authorization: `Bearer ${metricsToken}` },
    });
    const text = await response.text();
    return response.ok && text.includes('nuncio_') ? text : undefined;
  } catch {
    return undefined;
  }
}
