/**
 * A limit on how often one address is asked: what is fetched for a client is asked for whenever somebody speaks in its
 * name, so without it a stranger could have any server on the internet asked as often as this one.
 */

import { LRUCache } from 'lru-cache';
import type { GuardedFetch } from './fetch.ts';

/** Requests for one address at once, and how many of them each second makes good. Past that the last answer is given. */
const requestsMax = 10;
const requestsPerSecond = 1;
/** Addresses remembered at most, each with the 64 KiB that are taken of it. */
const addressesMax = 200;

interface Asked {
  answer: Promise<() => Response>;
  /** Requests that are not yet made good, and when they were counted, in milliseconds of the monotonic clock. */
  requests: number;
  countedAt: number;
}

/** @returns the same fetch, whose GETs of one address are limited; everything else is passed on */
export function limitAsking(fetch: GuardedFetch): GuardedFetch {
  const asked = new LRUCache<string, Asked>({ max: addressesMax });
  return async (url, init = {}) => {
    if ((init.method ?? 'GET') !== 'GET') return fetch(url, init);
    const address = String(url);
    const known = asked.get(address);
    const now = performance.now();
    const madeGood = known === undefined ? 0 : ((now - known.countedAt) / 1_000) * requestsPerSecond;
    const requests = Math.max(0, (known?.requests ?? 0) - madeGood) + 1;
    if (known !== undefined && requests > requestsMax) return (await known.answer)();
    const answer = fetch(url, init).then(keep);
    asked.set(address, { answer, requests, countedAt: now });
    return (await answer)();
  };
}

/** An answer can be read once; this gives it as often as it is wanted. */
async function keep(response: Response): Promise<() => Response> {
  const { status, headers } = response;
  const bytes = response.body === null ? null : await response.arrayBuffer();
  return () => new Response(bytes, { status, headers });
}
