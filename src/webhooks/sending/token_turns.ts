/**
 * Turns of requests for access tokens. Many accounts may have the same authorization server, so they take turns at it, and requests that
 * hang are few for each of them. Requests that take longer leave the places of short ones, so that others do not wait until they time out.
 * Accounts whose last request failed get at most half of the places. An origin that has never issued a token may be the server of somebody
 * who wants no requests: it gets few.
 *
 *   asked → waiting for a turn → requested (→ has taken longer) → token (the origin is known) | failed
 *                              → refused: too many wait
 */

import { LRUCache } from 'lru-cache';
import { upTo } from '../../shared/entries.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import { TokenBucket } from '../../shared/token_bucket.ts';

/** Requests to one origin that began a short time ago: while it is unknown, and after it has issued a token. */
const recentMax = { unknown: 4, known: 16 };
const recentMs = 250;
/** Requests to one origin at once, for each place of a recent one; and those of one account. */
const runningPerRecent = 4;
const runningMaxOfAccount = 2;
/** Requests per second to an unknown origin, and at once after a quiet time. */
const unknownRate = { perSecond: 5, burst: 20 };
/** Milliseconds that a request waits for its turn. */
const waitMsMax = 15_000;
/** Maximum number of origins to remember, and of accounts whose last request at one of them failed. */
const originsMax = 10_000;
const failedMax = 1_000;

interface Origin {
  recent: Places;
  running: Places;
  runningOf: Map<string, number>;
  /** Accounts whose last request failed. */
  failed: Set<string>;
  /** By account, in the order of their turns. */
  waiting: Map<string, Set<(turn: Turn) => void>>;
  /** Null once it is known. */
  rate: TokenBucket | null;
  timer: NodeJS.Timeout | undefined;
}

interface Turn {
  /** Whether the account's last request failed. */
  hasFailed: boolean;
}

class Places {
  #taken = 0;
  #ofFailed = 0;

  hasRoom({ hasFailed }: Turn, max: number): boolean {
    return this.#taken < max && (!hasFailed || this.#ofFailed < max / 2);
  }

  take({ hasFailed }: Turn): void {
    this.#taken += 1;
    if (hasFailed) this.#ofFailed += 1;
  }

  release({ hasFailed }: Turn): void {
    this.#taken -= 1;
    if (hasFailed) this.#ofFailed -= 1;
  }
}

export class TokenTurns {
  readonly #origins = new LRUCache<string, Origin>(upTo(originsMax));

  /**
   * Runs a request in its turn.
   * @param account or another tenant
   * @returns undefined if there was no turn in time
   */
  async run<T>(url: string, account: string, request: () => Promise<T>): Promise<T | undefined> {
    const { origin: name } = new URL(url);
    let origin = this.#origins.get(name);
    if (origin === undefined) {
      const rate = new TokenBucket(unknownRate.perSecond, unknownRate.burst, performance.now());
      const none = {
        recent: new Places(),
        running: new Places(),
        runningOf: new Map(),
        failed: new Set<string>(),
      };
      origin = { ...none, waiting: new Map(), rate, timer: undefined };
      this.#origins.set(name, origin);
    }
    const turn = await waitForTurn(origin, account);
    if (turn === null) return undefined;
    const endRecent = leaveRecentLater(origin, turn);
    try {
      const result = await request();
      origin.rate = null;
      origin.failed.delete(account);
      return result;
    } catch (error) {
      if (!(error instanceof NoTurnError)) remember(origin.failed, account);
      throw error;
    } finally {
      endRecent();
      origin.running.release(turn);
      const left = (origin.runningOf.get(account) ?? 1) - 1;
      if (left === 0) origin.runningOf.delete(account);
      else origin.runningOf.set(account, left);
      startNext(origin);
    }
  }
}

/** @returns a function that leaves the place at once; call it when the request has ended */
function leaveRecentLater(origin: Origin, turn: Turn): () => void {
  let isRecent = true;
  const leave = () => {
    if (isRecent) origin.recent.release(turn);
    isRecent = false;
  };
  const timer = setTimeout(() => {
    leave();
    startNext(origin);
  }, recentMs).unref();
  return () => {
    clearTimeout(timer);
    leave();
  };
}

function remember(failed: Set<string>, account: string): void {
  failed.delete(account);
  failed.add(account);
  const [oldest] = failed;
  if (failed.size > failedMax && oldest !== undefined) failed.delete(oldest);
}

/** @returns null if there was no turn in time */
function waitForTurn(origin: Origin, account: string): Promise<Turn | null> {
  return new Promise((resolve) => {
    const those = origin.waiting.get(account) ?? new Set();
    const start = (turn: Turn) => {
      clearTimeout(timer);
      resolve(turn);
    };
    const timer = setTimeout(() => {
      those.delete(start);
      if (those.size === 0 && origin.waiting.get(account) === those) origin.waiting.delete(account);
      resolve(null);
    }, waitMsMax);
    timer.unref();
    origin.waiting.set(account, those.add(start));
    startNext(origin);
  });
}

function startNext(origin: Origin): void {
  const { waiting, recent, running, runningOf, failed } = origin;
  clearTimeout(origin.timer);
  const max = origin.rate === null ? recentMax.known : recentMax.unknown;
  const hasRoom = (hasFailed: boolean) =>
    recent.hasRoom({ hasFailed }, max) && running.hasRoom({ hasFailed }, max * runningPerRecent);
  const mayStart = (account: string) =>
    (runningOf.get(account) ?? 0) < runningMaxOfAccount && hasRoom(failed.has(account));
  while (hasRoom(false)) {
    const next = [...waiting].find(([account]) => mayStart(account));
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
    starts.delete(start as (turn: Turn) => void);
    // To the end of the turns.
    waiting.delete(account);
    if (starts.size > 0) waiting.set(account, starts);
    const turn = { hasFailed: failed.has(account) };
    recent.take(turn);
    running.take(turn);
    runningOf.set(account, (runningOf.get(account) ?? 0) + 1);
    (start as (turn: Turn) => void)(turn);
  }
}
