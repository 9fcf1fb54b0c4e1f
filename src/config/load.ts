/** The settings of how much a node takes on at once. */

import type { Environment } from './environment.ts';

export interface LoadSettings {
  /** Requests in progress on this node; 0 for no limit. */
  readonly concurrentRequests: number;
  /** Connections of clients to this node; 0 for no limit. */
  readonly clientConnections: number;
}

/** More would only wait for each other, and fewer would share fewer transactions. */
const concurrentRequestsDefault = 64;
/** An idle connection costs some 20 kB. */
const clientConnectionsDefault = 10_000;

/** @param problems gets a line for each mistake */
export function readLoadSettings(environment: Environment, problems: string[]): LoadSettings {
  const read = (
    name: 'NUNCIO_CONCURRENT_REQUESTS' | 'NUNCIO_CLIENT_CONNECTIONS',
    fallback: number,
    max: number,
  ) => {
    const text = environment[name];
    if (text === undefined) return fallback;
    const value = Number(text);
    if (/^\d+$/.test(text) && value <= max) return value;
    problems.push(`${name} is ${JSON.stringify(text)}: it must be an integer from 0 to ${max}`);
    return fallback;
  };
  return {
    concurrentRequests: read('NUNCIO_CONCURRENT_REQUESTS', concurrentRequestsDefault, 10_000),
    clientConnections: read('NUNCIO_CLIENT_CONNECTIONS', clientConnectionsDefault, 1_000_000),
  };
}
