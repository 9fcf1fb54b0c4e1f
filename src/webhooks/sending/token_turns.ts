/**
 * Turns of requests for access tokens. Many accounts may have the same authorization server, so they take turns at it, and requests that
 * hang are few for each of them. An origin that has never issued a token may be the server of somebody who wants no requests: it gets few.
 *
 *   asked → waiting for a turn → requested → token (the origin is known) | failed
 *                              → refused: too many wait
 */

import { LRUCache } from 'lru-cache';
import { upTo } from '../../shared/entries.ts';
import { TokenBucket } from '../../shared/token_bucket.ts';

/** Requests to one origin at once: while it is unknown, after it has issued a token, and those of one account. */
const runningMax = { unknown: 4, known: 16, account: 2 };
/** Connections to one origin that are needed. */
export const tokenConnectionsMax = runningMax.known;
/** Requests per second to an unknown origin, and at once after a quiet time. */
const unknownRate = { perSecond: 5, burst: 20 };
/** Milliseconds that a request waits for its turn. */
const waitMsMax = 15_000;
/** Maximum number of origins to remember. */
const originsMax = 10_000;

interface Origin {
  running: number;
  runningOf: Map<string, number>;
  /** By account, in the order of their turns. */
  waiting: Map<string, Set<() => void>>;
  /** Null once it is known. */
  rate: TokenBucket | null;
  timer: NodeJS.Timeout | undefined;
}

export class TokenTurns {
  readonly #origins = new LRUCache<string, Origin>(upTo(originsMax));

  /**
   * Runs a request in its turn.
   * @param account or app that acts for itself
   * @returns undefined if there was no turn in time
   */
  async run<T>(url: string, account: string, request: () => Promise<T>): Promise<T | undefined> {
    const { origin: name } = new URL(url);
    let origin = this.#origins.get(name);
    if (origin === undefined) {
      const rate = new TokenBucket(unknownRate.perSecond, unknownRate.burst, performance.now());
      origin = { running: 0, runningOf: new Map(), waiting: new Map(), rate, timer: undefined };
      this.#origins.set(name, origin);
    }
    if (!(await waitForTurn(origin, account))) return undefined;
    try {
      const result = await request();
      origin.rate = null;
      return result;
    } finally {
      origin.running -= 1;
      const left = (origin.runningOf.get(account) ?? 1) - 1;
      if (left === 0) origin.runningOf.delete(account);
      else origin.runningOf.set(account, left);
      startNext(origin);
    }
  }
}

/** @returns false if there was no turn in time */
function waitForTurn(origin: Origin, account: string): Promise<boolean> {
  return new Promise((resolve) => {
    const those = origin.waiting.get(account) ?? new Set();
    const start = () => {
      clearTimeout(timer);
      resolve(true);
    };
    const timer = setTimeout(() => {
      those.delete(start);
      if (those.size === 0 && origin.waiting.get(account) === those) origin.waiting.delete(account);
      resolve(false);
    }, waitMsMax);
    timer.unref();
    origin.waiting.set(account, those.add(start));
    startNext(origin);
  });
}

function startNext(origin: Origin): void {
  const { waiting, runningOf } = origin;
  clearTimeout(origin.timer);
  while (origin.running < (origin.rate === null ? runningMax.known : runningMax.unknown)) {
    const next = [...waiting].find(([account]) => (runningOf.get(account) ?? 0) < runningMax.account);
    if (next === undefined) return;
    const now = performance.now();
    const nextAt = origin.rate?.nextAt(now) ?? null;
    if (nextAt !== null) {
      origin.timer = setTimeout(() => startNext(origin), nextAt - now).unref();
      return;
    }
    origin.rate?.take();
    const [account, starts] = next;
    const [start] = starts;
    starts.delete(start as () => void);
    // To the end of the turns.
    waiting.delete(account);
    if (starts.size > 0) waiting.set(account, starts);
    origin.running += 1;
    runningOf.set(account, (runningOf.get(account) ?? 0) + 1);
    (start as () => void)();
  }
}
