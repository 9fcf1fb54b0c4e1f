/**
 * One question for one address: who asks for what was asked for a moment ago gets the same answer. What is fetched for
 * a client is asked for whenever somebody speaks in its name, so without this a stranger could have any server on the
 * internet asked as often as this one.
 */

import { LRUCache } from 'lru-cache';
import type { GuardedFetch } from './fetch.ts';

/** Milliseconds after an answer (or its failure) in which it is given again. */
const sharedMs = 1_000;
/** Addresses remembered at most, each with the 64 KiB that are taken of it. */
const addressesMax = 200;

interface Asked {
  answer: Promise<Response>;
  /** Milliseconds of the monotonic clock; infinite while there is no answer yet. */
  until: number;
}

/** @returns the same fetch, whose GETs of one address share an answer; everything else is passed on */
export function shareAnswers(fetch: GuardedFetch): GuardedFetch {
  const asked = new LRUCache<string, Asked>({ max: addressesMax });

  function ask(address: string, init: Parameters<GuardedFetch>[1]): Asked {
    const entry: Asked = { answer: fetch(address, init), until: Number.POSITIVE_INFINITY };
    const settle = () => {
      entry.until = performance.now() + sharedMs;
    };
    entry.answer.then(settle, settle);
    asked.set(address, entry);
    return entry;
  }

  return async (url, init = {}) => {
    if ((init.method ?? 'GET') !== 'GET') return fetch(url, init);
    const address = String(url);
    const known = asked.get(address);
    const entry = known !== undefined && performance.now() < known.until ? known : ask(address, init);
    return (await entry.answer).clone();
  };
}
