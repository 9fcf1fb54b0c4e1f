/**
 * Fetching small documents from addresses that somebody else chose: by the guarded connector, within a time and a
 * size, no redirect followed, nothing decompressed, no cookies, no proxy of the environment. The client is loaded with the
 * first fetch: many servers never need it, and it takes 12 MiB.
 */

import type { Agent } from 'undici';
import { type ConnectorOptions, createGuardedConnector } from './connector.ts';
import { EgressError } from './error.ts';

/** Milliseconds for all of it, from resolving the name to the last byte. */
export const fetchTimeoutMs = 5_000;
/** Bytes of an answer's body, and of its header block. */
export const fetchBytesMax = 65_536;
const headerBytesMax = 16_384;
/** Connections to one origin at once, and milliseconds that an idle one is kept. */
const connectionsMax = 4;
const idleMs = 1_000;
/** Bytes of a URL. */
const urlBytesMax = 2_048;

export interface FetchRequest {
  method?: string;
  headers?: NonNullable<RequestInit['headers']>;
  body?: unknown;
}

/** What it was told, whatever the status; a `fetch` as far as documents need one. */
export type GuardedFetch = (url: string | URL, init?: FetchRequest) => Promise<Response>;

/** The document was larger than is taken. */
export class TooLargeError extends Error {
  override readonly name = 'TooLargeError';

  constructor() {
    super(`The answer is larger than ${fetchBytesMax} bytes.`);
  }
}

/** @returns the fetch, and what closes its connections */
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
      const answer = await undici.request(target, {
        dispatcher: agent,
        method: method === 'POST' ? 'POST' : 'GET',
        headers: { ...Object.fromEntries(new Headers(init.headers)), 'user-agent': 'Nuncio' },
        body: init.body === undefined || init.body === null ? null : String(init.body),
        signal: AbortSignal.timeout(fetchTimeoutMs),
      });
      const body = await readBody(answer.body);
      return new Response(isBodiless(answer.statusCode) ? null : new Uint8Array(body), {
        status: answer.statusCode,
        headers: Object.entries(answer.headers).flatMap(([name, value]) =>
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

/** @throws EgressError when it is not https (or, for development, http), or not an address to ask on */
function checkUrl(url: string | URL, allowLoopback: boolean): URL {
  const target = URL.parse(String(url));
  const isAllowed =
    target !== null &&
    target.href.length <= urlBytesMax &&
    target.username === '' &&
    target.password === '' &&
    // Low ports are other protocols' services, which might be made to do something.
    (target.port === '' || Number(target.port) >= 1_024) &&
    // Of plain http nothing but loopback is asked: the connector refuses the rest below.
    (target.protocol === 'https:' || (target.protocol === 'http:' && allowLoopback && isLocal(target)));
  if (!isAllowed) throw new EgressError('address_refused');
  return target;
}

function isLocal({ hostname }: URL): boolean {
  return /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname);
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

/** A `Response` of these cannot have a body. */
function isBodiless(status: number): boolean {
  return status === 204 || status === 205 || status === 304;
}
