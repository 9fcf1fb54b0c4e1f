/**
 * Requests to the issuer with limits on time and size. Redirects are not followed.
 */

import { parseObject, readText } from '../shared/response_text.ts';

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

/** Total timeout of one request in milliseconds. */
const requestTimeoutMs = 5_000;
/** Maximum size of a decompressed response in bytes. */
const responseBytesMax = 262_144;

/** Fetches a JSON object. @throws IssuerUnavailable */
export type FetchObject = (url: string, init?: RequestInit) => Promise<Record<string, unknown>>;

/** The issuer gave no usable response. No request can be authorized, for reasons outside the request. */
export class IssuerUnavailable extends Error {
  override readonly name = 'IssuerUnavailable';
}

/**
 * Creates a fetch for JSON objects.
 * @returns a fetch that resolves to the object of a response with status 200
 * @throws IssuerUnavailable (the fetch) for all other responses
 */
export function createFetchObject(fetcher: Fetch): FetchObject {
  return async function fetchObject(url, init = {}) {
    const response = await fetchBounded(fetcher, url, init, requestTimeoutMs);
    if (response.status !== 200)
      throw new IssuerUnavailable(`${url} responded with status ${response.status}`);
    const parsed = parseObject(response.text);
    if (parsed === undefined) throw new IssuerUnavailable(`the response of ${url} is not a JSON object`);
    return parsed;
  };
}

export interface BoundedResponse {
  status: number;
  headers: Headers;
  text: string;
}

/**
 * Sends one request and reads the whole response.
 * @param timeoutMs total timeout
 * @param signal aborts earlier
 * @throws IssuerUnavailable if there is no response, or it is too large
 */
export async function fetchBounded(
  fetcher: Fetch,
  url: string,
  init: RequestInit,
  timeoutMs: number,
  signal?: AbortSignal,
): Promise<BoundedResponse> {
  const ending = new AbortController();
  const abort = () => ending.abort(signal?.reason);
  const timer = setTimeout(() => ending.abort(new Error(`timeout after ${timeoutMs} ms`)), timeoutMs);
  signal?.addEventListener('abort', abort, { once: true });
  if (signal?.aborted) abort();
  try {
    const response = await fetcher(url, {
      ...init,
      redirect: 'manual',
      signal: ending.signal,
    });
    return {
      status: response.status,
      headers: response.headers,
      text: await readText(response, responseBytesMax),
    };
  } catch (cause) {
    throw new IssuerUnavailable(`no response from ${url}: ${reasonOf(cause)}`, { cause });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}

/** Adds the cause to the message, because the message of `fetch` is only "fetch failed". */
function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${cause.message}` : String(message);
}
