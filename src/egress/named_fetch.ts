/**
 * Requests to servers that the operator named, such as the API that tools call: through the guarded connector, with limits on time and size, without
 * redirects, decompression, cookies and proxy environment variables. `undici` is loaded with the first one, because many servers never
 * need it and it takes 12 MiB.
 */

import type { Agent } from 'undici';
import { type ConnectorOptions, createGuardedConnector } from './connector.ts';
import { EgressError } from './error.ts';
import {
  type ClosableFetch,
  checkUrl,
  type FetchLimits,
  fetchBytesMax,
  fetchTimeoutMs,
  isBodiless,
  TooLargeError,
} from './fetch.ts';

/** Maximum size of a head in bytes. */
const headerBytesMax = 16_384;
/** Maximum connections per origin, and milliseconds until an idle one is closed. */
const connectionsMax = 4;
const idleMs = 1_000;

export interface NamedFetchLimits extends FetchLimits {
  /** Maximum connections per origin. */
  connectionsMax?: number;
}

const methods: ReadonlySet<string> = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']);

/** @returns the fetch function, and a function that closes its connections */
export function createNamedFetch(given: ConnectorOptions, limits: NamedFetchLimits = {}): ClosableFetch {
  const { timeoutMs = fetchTimeoutMs, bytesMax = fetchBytesMax } = limits;
  const options = { ...given, isNamedByOperator: true };
  let agent: Agent | undefined;
  let isClosed = false;
  return {
    async fetch(url, init = {}) {
      const target = checkUrl(url, options);
      const undici = await import('undici');
      if (isClosed) throw new EgressError('connect_error');
      agent ??= new undici.Agent({
        connect: createGuardedConnector(options),
        connections: limits.connectionsMax ?? connectionsMax,
        pipelining: 1,
        keepAliveTimeout: idleMs,
        keepAliveMaxTimeout: idleMs,
        maxHeaderSize: headerBytesMax,
        allowH2: false,
      });
      const { method = 'GET', signal } = init;
      if (!methods.has(method)) throw new TypeError(`the method ${method} is not supported`);
      const timeout = AbortSignal.timeout(timeoutMs);
      const response = await undici.request(target, {
        dispatcher: agent,
        method: method as 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
        headers: { ...Object.fromEntries(new Headers(init.headers)), 'user-agent': 'Nuncio' },
        body: init.body === undefined || init.body === null ? null : String(init.body),
        signal: signal === undefined ? timeout : AbortSignal.any([timeout, signal]),
      });
      const body = await readBody(response.body, bytesMax);
      return new Response(isBodiless(response.statusCode) ? null : new Uint8Array(body), {
        status: response.statusCode,
        headers: Object.entries(response.headers).flatMap(([name, value]) =>
          [value ?? []].flat().map((each): [string, string] => [name, each]),
        ),
      });
    },
    async close() {
      isClosed = true;
      await agent?.destroy();
    },
  };
}

async function readBody(
  body: AsyncIterable<Buffer> & { destroy: () => unknown },
  bytesMax: number,
): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let received = 0;
  for await (const chunk of body) {
    received += chunk.length;
    if (received > bytesMax) {
      body.destroy();
      throw new TooLargeError(bytesMax);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
