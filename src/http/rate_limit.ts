/**
 * Rate limit per minute: for each grant or client, and for each address without a valid token. Each node counts in memory.
 * Once a second one statement adds its counts to the database and reads the totals of all nodes. No request waits for a
 * write. The limit can be exceeded by what the other nodes accept in one second. Owns the table `rate_windows`.
 */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { networksOf, wideLimitFactor } from './network.ts';
import { Problem } from './problem.ts';

/** Interval between exchanges with the other nodes. */
const exchangeMs = 1_000;
/** Above this number of keys, the oldest are dropped. */
const keysMax = 200_000;

interface Count {
  minute: number;
  /** Total of all nodes at the last exchange. */
  known: number;
  /** Count of this node since then. */
  fresh: number;
}

/** The state of a limit, as sent to the client. */
export interface RateState {
  limit: number;
  remaining: number;
  /** Seconds until the minute ends. */
  reset: number;
}

export class RateLimiter {
  readonly #db: Database;
  readonly #limit: number;
  readonly #counts = new Map<string, Count>();
  #timer: NodeJS.Timeout | undefined;
  #exchange: Promise<void> | undefined;
  #sweptMinute = 0;

  /** @param limit requests per minute and key; 0 for no limit */
  constructor(db: Database, limit: number) {
    this.#db = db;
    this.#limit = limit;
  }

  start(): void {
    if (this.#limit === 0) return;
    this.#timer = setInterval(() => {
      this.#exchange ??= this.#exchangeCounts()
        // Without the database, each node limits by its own counts.
        .catch(() => {})
        .finally(() => {
          this.#exchange = undefined;
        });
    }, exchangeMs);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#exchange;
  }

  /**
   * Counts one request.
   * @param factor multiplies the limit for this key
   * @param counted what is counted, for the response
   * @returns undefined when there is no limit
   * @throws Problem 429 above the limit
   */
  count(key: string, factor = 1, counted = 'requests'): RateState | undefined {
    if (this.#limit === 0) return undefined;
    const limit = this.#limit * factor;
    const count = this.#countOf(key);
    const used = count.known + count.fresh;
    const reset = secondsLeft();
    if (used >= limit) throw tooMany({ limit, remaining: 0, reset }, counted);
    count.fresh += 1;
    return { limit, remaining: limit - used - 1, reset };
  }

  /**
   * Checks the limit without counting.
   * @throws Problem 429 above the limit
   */
  peek(key: string, factor = 1): void {
    const limit = this.#limit * factor;
    const count = this.#counts.get(key);
    if (this.#limit === 0 || count?.minute !== Math.floor(Date.now() / 60_000)) return;
    if (count.known + count.fresh >= limit) throw tooMany({ limit, remaining: 0, reset: secondsLeft() });
  }

  /** Counts a request that already has its response. Never throws. */
  note(key: string, factor = 1): RateState | undefined {
    if (this.#limit === 0) return undefined;
    const limit = this.#limit * factor;
    const count = this.#countOf(key);
    count.fresh += 1;
    return { limit, remaining: Math.max(0, limit - count.known - count.fresh), reset: secondsLeft() };
  }

  #countOf(key: string): Count {
    const minute = Math.floor(Date.now() / 60_000);
    const known = this.#counts.get(key);
    if (known?.minute === minute) return known;
    const count = { minute, known: 0, fresh: 0 };
    this.#counts.delete(key);
    this.#counts.set(key, count);
    if (this.#counts.size > keysMax) this.#counts.delete(this.#counts.keys().next().value as string);
    return count;
  }

  async #exchangeCounts(): Promise<void> {
    const minute = Math.floor(Date.now() / 60_000);
    const sent: [key: string, count: Count, fresh: number][] = [];
    for (const [key, count] of this.#counts) {
      if (count.minute !== minute) this.#counts.delete(key);
      else if (count.fresh > 0) sent.push([key, count, count.fresh]);
    }
    if (sent.length === 0) return;
    // All nodes write keys in the same order, so that their statements do not deadlock.
    sent.sort(([a], [b]) => (a < b ? -1 : 1));
    const { rows } = await sql<{ key: string; used: string }>`
      insert into rate_windows as w (key, minute, used)
      select key, ${minute}::bigint, fresh
        from unnest(${sent.map(([key]) => key)}::text[], ${sent.map(([, , fresh]) => fresh)}::bigint[]) as t (key, fresh)
      on conflict (key, minute) do update set used = w.used + excluded.used
      returning key, used`.execute(this.#db);
    const totals = new Map(rows.map((row) => [row.key, Number(row.used)]));
    for (const [key, count, fresh] of sent) {
      count.known = totals.get(key) ?? count.known;
      count.fresh -= fresh;
    }
    if (this.#sweptMinute === minute) return;
    this.#sweptMinute = minute;
    await sql`delete from rate_windows where minute < ${minute - 1}`.execute(this.#db);
  }
}

function secondsLeft(): number {
  return 60 - Math.floor((Date.now() / 1_000) % 60);
}

export function rateHeaders({ limit, remaining, reset }: RateState): Record<string, string> {
  return {
    'ratelimit-limit': String(limit),
    'ratelimit-remaining': String(remaining),
    'ratelimit-reset': String(reset),
  };
}

function tooMany(state: RateState, counted = 'requests'): Problem {
  return new Problem(429, `The limit is ${state.limit} ${counted} per minute.`, {
    code: 'rate-limited',
    headers: { ...rateHeaders(state), 'retry-after': String(state.reset) },
  });
}

/**
 * Counts one request for an address and, for IPv6, for its site. A request above the limit of the address does not count
 * for the site.
 * @param prefix separates this count from others of the same address
 */
export function countAddress(limiter: RateLimiter, prefix: string, address: string): RateState | undefined {
  const { near, wide } = networksOf(address);
  const state = limiter.count(`${prefix}${addressKey(near)}`);
  if (wide !== null) limiter.count(`${prefix}${addressKey(wide)}`, wideLimitFactor);
  return state;
}

function addressKey(network: string): string {
  return `address:${network}`;
}
