/** Single requests, such as those for small documents, to URLs that a third party chose. */

import { isLoopbackHost } from '../config/config.ts';
import { allowListOf } from './allow_list.ts';
import { type ConnectorOptions, connectGuarded } from './connector.ts';
import { EgressError } from './error.ts';
import { Http1Connection } from './http1/connection.ts';
import { type Exchange, type HttpRequest, ProtocolError, type ResponseParts } from './http1/interface.ts';
import { nameWaitMsMax } from './resolve.ts';
import { tunnelWaitMsMax } from './tunnel_turns.ts';

/** Total timeout in milliseconds, from name resolution to the last byte, without waits for turns. */
export const fetchTimeoutMs = 5_000;
/** The longest wait for both turns in milliseconds. */
const turnsWaitMsMax = nameWaitMsMax + tunnelWaitMsMax;
/** Maximum size of a response body in bytes. */
export const fetchBytesMax = 65_536;
/** Maximum length of a URL in bytes. */
const urlBytesMax = 2_048;

export interface FetchRequest {
  method?: string;
  headers?: NonNullable<RequestInit['headers']>;
  body?: unknown;
  /** Who causes the request: an account, or the network of a stranger. */
  tenant?: string;
  /** Ends the request before its time. */
  signal?: AbortSignal;
  /** Called when no turn is left to wait for. */
  onTurns?: () => void;
}

/** Limits for requests other than those for small documents. */
export interface FetchLimits {
  /** Total timeout in milliseconds. */
  timeoutMs?: number;
  /** Maximum size of a response body, in bytes. */
  bytesMax?: number;
}

/** The subset of `fetch` that documents need. Resolves for every status. */
export type GuardedFetch = (url: string | URL, init?: FetchRequest) => Promise<Response>;

export interface ClosableFetch {
  fetch: GuardedFetch;
  /** Ends all requests. */
  close: () => Promise<void>;
}

/** The response exceeds the limit. */
export class TooLargeError extends Error {
  override readonly name = 'TooLargeError';

  constructor(bytesMax: number) {
    super(`The response is larger than ${bytesMax} bytes, or has too many chunks.`);
  }
}

/**
 * Fetches a small document from a URL that a third party chose: over a connection of its own, with limits on time and size, without redirects,
 * decompression, cookies and proxy environment variables. The response has the limits of `http1`, too, so that no server keeps this
 * thread busy.
 */
export function createGuardedFetch(options: ConnectorOptions, limits: FetchLimits = {}): ClosableFetch {
  const { timeoutMs = fetchTimeoutMs, bytesMax = fetchBytesMax } = limits;
  /** The requests in progress, by what ends them. */
  const running = new Set<(reason: unknown) => void>();
  let isClosed = false;
  const fetch: GuardedFetch = async (url, init = {}) => {
    const target = checkUrl(url, options);
    const { method = 'GET', headers, body, tenant, signal, onTurns } = init;
    if (!isSupported(method)) throw new TypeError(`the method ${method} is not supported`);
    if (isClosed) throw new EgressError('connect_error');
    signal?.throwIfAborted();
    const request = {
      method,
      path: target.pathname + target.search,
      headers: headerLines(new Headers(headers)),
      body: Buffer.from(body === undefined || body === null || method === 'GET' ? '' : String(body)),
      responseBytesMax: bytesMax,
      ...(tenant === undefined ? {} : { tenant }),
    };
    const { promise: ended, reject: end } = Promise.withResolvers<never>();
    const abort = () => end(signal?.reason);
    signal?.addEventListener('abort', abort);
    const expire = () => end(new DOMException('The request timed out.', 'TimeoutError'));
    // Turns have times of their own.
    let timer = setTimeout(expire, timeoutMs + turnsWaitMsMax);
    // That of the name, and that of the tunnel.
    let turnsLeft = options.proxy === undefined || tenant === undefined ? 1 : 2;
    const onTurn = () => {
      clearTimeout(timer);
      if (!running.has(end)) return;
      turnsLeft -= 1;
      if (turnsLeft === 0) onTurns?.();
      timer = setTimeout(expire, timeoutMs + (turnsLeft === 0 ? 0 : tunnelWaitMsMax));
    };
    running.add(end);
    try {
      return await exchange(target, request, options, onTurn, ended);
    } finally {
      running.delete(end);
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    }
  };
  return {
    fetch,
    async close() {
      isClosed = true;
      for (const end of running) end(new EgressError('connect_error'));
    },
  };
}

function isSupported(method: string): method is 'GET' | 'POST' {
  return method === 'GET' || method === 'POST';
}

function headerLines(headers: Headers): string {
  headers.set('user-agent', 'Nuncio');
  return [...headers].map(([name, value]) => `${name}: ${value}\r\n`).join('');
}

/**
 * @param onTurn called when a turn has come
 * @param ended rejects to end the request
 * @throws EgressError, ProtocolError, TooLargeError, NoTurnError, or why it ended
 */
async function exchange(
  target: URL,
  request: HttpRequest,
  options: ConnectorOptions,
  onTurn: () => void,
  ended: Promise<never>,
): Promise<Response> {
  let connection: Http1Connection | undefined;
  let isOver = false;
  const wanted = { tenant: request.tenant ?? null, onTurn, isOver: () => isOver };
  const response = connectGuarded(target, options, wanted).then((opened) => {
    connection = new Http1Connection(opened, target, { bytes: null, head: null }, 0);
    if (!isOver) return send(connection, request);
    connection.destroy();
    return ended;
  });
  try {
    return toResponse(await Promise.race([response, ended]));
  } finally {
    isOver = true;
    connection?.destroy();
  }
}

function send(connection: Http1Connection, request: HttpRequest): Promise<ResponseParts> {
  const { promise, resolve, reject } = Promise.withResolvers<ResponseParts>();
  const exchange: Exchange = {
    request,
    onHead: () => {},
    onResponse(isTruncated) {
      if (isTruncated) reject(new TooLargeError(request.responseBytesMax ?? fetchBytesMax));
      else resolve(connection.parts);
    },
    onFailure: reject,
  };
  connection.start(exchange);
  return promise;
}

function toResponse({ status, headers, body }: ResponseParts): Response {
  // Statuses of which `Response` knows nothing.
  if (status === null || status > 599) throw new ProtocolError('the response has no usable status');
  return new Response(isBodiless(status) ? null : new Uint8Array(body ?? []), {
    status,
    headers: Object.entries(headers ?? {}).flatMap(([name, value]) =>
      [value].flat().map((each): [string, string] => [name, each]),
    ),
  });
}

/** @throws EgressError unless the URL is https (or http on loopback, in development) with an allowed port */
export function checkUrl(url: string | URL, { allowLoopback, allow = [] }: ConnectorOptions): URL {
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

/** Responses with these statuses cannot have a body. */
export function isBodiless(status: number): boolean {
  return status === 204 || status === 205 || status === 304;
}
