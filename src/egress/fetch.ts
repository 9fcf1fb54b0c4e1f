/**
 * Fetches small documents from URLs that a third party chose: through the guarded connector, with limits on time and size,
 * without redirects, decompression, cookies and proxy environment variables. `undici` is loaded with the first fetch,
 * because many servers never need it and it takes 12 MiB.
 */

import type { Agent } from 'undici';
import { isLoopbackHost } from '../config/config.ts';
import { type ConnectorOptions, createGuardedConnector } from './connector.ts';
import { EgressError } from './error.ts';

/** Total timeout in milliseconds, from name resolution to the last byte. */
export const fetchTimeoutMs = 5_000;
/** Maximum size of a response body and of its headers, in bytes. */
export const fetchBytesMax = 65_536;
const headerBytesMax = 16_384;
/** Maximum connections per origin, and milliseconds until an idle one is closed. */
const connectionsMax = 4;
const idleMs = 1_000;
/** Maximum length of a URL in bytes. */
const urlBytesMax = 2_048;

export interface FetchRequest {
  method?: string;
  headers?: NonNullable<RequestInit['headers']>;
  body?: unknown;
}

/** The subset of `fetch` that documents need. Resolves for every status. */
export type GuardedFetch = (url: string | URL, init?: FetchRequest) => Promise<Response>;

/** The document exceeds the limit. */
class TooLargeError extends Error {
  override readonly name = 'TooLargeError';

  constructor() {
    super(`The response is larger than ${fetchBytesMax} bytes.`);
  }
}

/** @returns the fetch function, and a function that closes its connections */
export function createGuardedFetch(options: ConnectorOptions): {
  fetch: GuardedFetch;
  close: () => Promise<void>;
} {
  let agent: Agent | undefined;
  let isClosed = false;
  return {
    async fetch(url, init = {}) {
      const target = checkUrl(url, options.allowLoopback);
      const undici = await import('undici');
      if (isClosed) throw new EgressError('connect_error');
      agent ??= new undici.Agent({
        connect: createGuardedConnector(options),
        connections: connectionsMax,
        pipelining: 1,
        keepAliveTimeout: idleMs,
        keepAliveMaxTimeout: idleMs,
        maxHeaderSize: headerBytesMax,
      });
      const method = init.method ?? 'GET';
      const response = await undici.request(target, {
        dispatcher: agent,
        method: method === 'POST' ? 'POST' : 'GET',
        headers: { ...Object.fromEntries(new Headers(init.headers)), 'user-agent': 'Nuncio' },
        body: init.body === undefined || init.body === null ? null : String(init.body),
        signal: AbortSignal.timeout(fetchTimeoutMs),
      });
      const body = await readBody(response.body);
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

/** @throws EgressError unless the URL is https (or http on loopback, in development) with an allowed port */
function checkUrl(url: string | URL, allowLoopback: boolean): URL {
  const target = URL.parse(String(url));
  const isAllowed =
    target !== null &&
    target.href.length <= urlBytesMax &&
    target.username === '' &&
    target.password === '' &&
    // Low ports belong to other protocols, whose servers might act on the request.
    (target.port === '' || Number(target.port) >= 1_024) &&
    // Plain http is allowed for loopback only. The connector checks the resolved address again.
    (target.protocol === 'https:' ||
      (target.protocol === 'http:' && allowLoopback && isLoopbackHost(target.hostname)));
  if (!isAllowed) throw new EgressError('address_refused');
  return target;
}

async function readBody(body: AsyncIterable<Buffer> & { destroy: () => unknown }): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let received = 0;
  for await (const chunk of body) {
    received += chunk.length;
    if (received > fetchBytesMax) {
      body.destroy();
      throw new TooLargeError();
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Responses with these statuses cannot have a body. */
function isBodiless(status: number): boolean {
  return status === 204 || status === 205 || status === 304;
}
