/**
 * Limits requests per URL. Documents of clients are fetched whenever someone sends a request in the client's name, so
 * without a limit a stranger could use this server to flood another one.
 */

import { LRUCache } from 'lru-cache';
import { TokenBucket } from '../shared/token_bucket.ts';
import type { GuardedFetch } from './fetch.ts';

/** Maximum burst of requests per URL, and refill per second. Beyond that the last response is repeated. */
const burstMax = 10;
const requestsPerSecond = 1;
/** Maximum number of remembered URLs, each with a response of up to 64 KiB. */
const urlsMax = 200;

interface LimitedUrl {
  response: Promise<() => Response>;
  requests: TokenBucket;
}

/** @returns a fetch with a limit on GET requests per URL; other methods pass through */
export function limitRequestRate(fetch: GuardedFetch): GuardedFetch {
  const limited = new LRUCache<string, LimitedUrl>({ max: urlsMax });
  return async (url, init = {}) => {
    if ((init.method ?? 'GET') !== 'GET') return fetch(url, init);
    const href = String(url);
    const recent = limited.get(href);
    const now = performance.now();
    const requests = recent?.requests ?? new TokenBucket(requestsPerSecond, burstMax, now);
    if (recent !== undefined && requests.nextAt(now) !== null) return (await recent.response)();
    requests.take();
    const response = fetch(url, init).then(toReusable);
    limited.set(href, { response, requests });
    return (await response)();
  };
}

/** Buffers a response, whose body can be read only once, and returns a function that creates copies. */
async function toReusable(response: Response): Promise<() => Response> {
  const { status, headers } = response;
  const bytes = response.body === null ? null : await response.arrayBuffer();
  return () => new Response(bytes, { status, headers });
}
