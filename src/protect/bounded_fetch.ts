/**
 * Requests to the issuer, each with an end: in time, in bytes, and without following a redirect to elsewhere.
 */

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

/** Milliseconds for one answer of the issuer, its body included. */
const answerMs = 5_000;
/** Bytes of one answer at most, decompressed. */
const answerBytesMax = 262_144;

/** Fetches a JSON object. @throws IssuerUnavailable */
export type FetchObject = (url: string, init?: RequestInit) => Promise<Record<string, unknown>>;

/** The issuer gave no usable answer: nobody can be let in, and it is not the fault of who asks. */
export class IssuerUnavailable extends Error {
  override readonly name = 'IssuerUnavailable';
}

/**
 * Makes a fetch that reads the whole answer within its bounds.
 * @returns a fetch whose answers are 200 and JSON objects
 * @throws IssuerUnavailable (the fetch) otherwise
 */
export function createFetchObject(fetcher: Fetch): FetchObject {
  return async function fetchObject(url, init = {}) {
    const answer = await fetchBounded(fetcher, url, init, answerMs);
    if (answer.status !== 200) throw new IssuerUnavailable(`${url} answered ${answer.status}`);
    const parsed = parseObject(answer.text);
    if (parsed === undefined) throw new IssuerUnavailable(`${url} answered with something else than JSON`);
    return parsed;
  };
}

export interface BoundedAnswer {
  status: number;
  headers: Headers;
  text: string;
}

/**
 * One request, its answer read whole.
 * @param timeoutMs for all of it
 * @param signal ends it before that
 * @throws IssuerUnavailable when no answer came, or more of it than is taken
 */
export async function fetchBounded(
  fetcher: Fetch,
  url: string,
  init: RequestInit,
  timeoutMs: number,
  signal?: AbortSignal,
): Promise<BoundedAnswer> {
  const ending = new AbortController();
  const abort = () => ending.abort(signal?.reason);
  const timer = setTimeout(() => ending.abort(new Error(`no response within ${timeoutMs} ms`)), timeoutMs);
  signal?.addEventListener('abort', abort, { once: true });
  if (signal?.aborted) abort();
  try {
    const response = await fetcher(url, {
      ...init,
      redirect: 'manual',
      signal: ending.signal,
    });
    return { status: response.status, headers: response.headers, text: await readText(response) };
  } catch (cause) {
    throw new IssuerUnavailable(`${url} gave no answer: ${reasonOf(cause)}`, { cause });
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', abort);
  }
}

/** A JSON object, or undefined for any other text. */
export function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isObject ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

async function readText(response: Response): Promise<string> {
  const chunks: Uint8Array[] = [];
  let received = 0;
  // Leaving the loop early cancels the stream, and with it the connection.
  for await (const chunk of response.body ?? []) {
    received += (chunk as Uint8Array).length;
    if (received > answerBytesMax) throw new Error(`more than ${answerBytesMax} bytes`);
    chunks.push(chunk as Uint8Array);
  }
  return Buffer.concat(chunks).toString();
}

/** `fetch failed` alone helps nobody: the reason is in its cause. */
function reasonOf(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error ? `${message}: ${cause.message}` : String(message);
}
