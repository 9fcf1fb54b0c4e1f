/**
 * Decides whether the database's clock can be trusted with deleting expired rows. A clock that is a month ahead for some seconds
 * must not delete every refresh token and session, nor the withdrawals of access tokens that are still valid. A clock that stays
 * ahead is right, and it was wrong before.
 *
 * At its start, the server compares the database's clock with its own.
 *
 *   trusted → jumped ahead → (back again, or an hour later) → trusted
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

/** Milliseconds that the clock may gain on the monotonic clock between two checks. */
const gainMsMax = 300_000;
/** Milliseconds after which a clock that stays ahead is trusted. */
const acceptedAfterMs = 3_600_000;

export class TrustedClock {
  /** The difference to the monotonic clock when the clock was last trusted. */
  #offsetMs: number | undefined;
  /** Since when the clock has been ahead, on the monotonic clock. */
  #aheadSince: number | undefined;

  /**
   * @param nowMs the time to check
   * @param monotonicMs the monotonic time at that moment
   */
  isTrusted(nowMs: number, monotonicMs: number): boolean {
    const offsetMs = nowMs - monotonicMs;
    const isAhead = this.#offsetMs !== undefined && offsetMs > this.#offsetMs + gainMsMax;
    if (isAhead) {
      this.#aheadSince ??= monotonicMs;
      if (monotonicMs - this.#aheadSince < acceptedAfterMs) return false;
    }
    this.#aheadSince = undefined;
    this.#offsetMs = offsetMs;
    return true;
  }
}

/**
 * Watches the database's clock from now on.
 * @returns a function that reads the clock and tells whether it can be trusted now
 */
export function watchClock(db: Database): () => Promise<boolean> {
  const clock = new TrustedClock();
  clock.isTrusted(Date.now(), performance.now());
  return async () => {
    const { rows } = await sql<{ now: number }>`
      select (extract(epoch from clock_timestamp()) * 1000)::float8 as now`.execute(db);
    return clock.isTrusted((rows[0] as { now: number }).now, performance.now());
  };
}
