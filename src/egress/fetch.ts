/**
 * Fetches small documents from URLs that a third party chose: through the guarded connector, with limits on time and size,
 * without redirects, decompression, cookies and proxy environment variables. `undici` is loaded with the first fetch,
 * because many servers never need it and it takes 12 MiB.
 */

import type { Agent } from 'undici';
import { isLoopbackHost } from '../config/config.ts';
import { allowListOf } from './allow_list.ts';
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
  /** Ends the request before its time. */
  signal?: AbortSignal;
}

/** Limits for requests other than those for small documents. */
export interface FetchLimits {
  /** Total timeout in milliseconds. */
  timeoutMs?: number;
  /** Maximum size of a response body, in bytes. */
  bytesMax?: number;
  /** Maximum connections per origin. */
  connectionsMax?: number;
}

const methods: ReadonlySet<string> = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE']);

/** The subset of `fetch` that documents need. Resolves for every status. */
export type GuardedFetch = (url: string | URL, init?: FetchRequest) => Promise<Response>;

/** The response exceeds the limit. */
export class TooLargeError extends Error {
  override readonly name = 'TooLargeError';

  constructor(bytesMax: number) {
    super(`The response is larger than ${bytesMax} bytes.`);
  }
}

/** @returns the fetch function, and a function that closes its connections */
export function createGuardedFetch(
  options: ConnectorOptions,
  limits: FetchLimits = {},
): {
  fetch: GuardedFetch;
  close: () => Promise<void>;
} {
  const { timeoutMs = fetchTimeoutMs, bytesMax = fetchBytesMax } = limits;
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

/** @throws EgressError unless the URL is https (or http on loopback, in development) with an allowed port */
function checkUrl(url: string | URL, { allowLoopback, allow = [] }: ConnectorOptions): URL {
  const target = URL.parse(String(url));
  const isAllowed =
    target !== null &&
    target.href.length <= urlBytesMax &&
    target.username === '' &&
    target.password === '' &&
    // Low ports belong to other protocols, whose servers might act on the request.
    (target.port === '' || Number(target.port) >= 1_024) &&
    // Plain http is allowed for loopback and for hosts of the list only. The connector checks the resolved address again.
    (target.protocol === 'https:' ||
      (target.protocol === 'http:' &&
        ((allowLoopback && isLoopbackHost(target.hostname)) || allowListOf(allow).hasHost(target.hostname))));
  if (!isAllowed) throw new EgressError('address_refused');
  return target;
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

/** Responses with these statuses cannot have a body. */
function isBodiless(status: number): boolean {
  return status === 204 || status === 205 || status === 304;
}
