/**
 * Rate limit: so many requests a minute for each grant or client, and for each address without a good token. Every
 * node counts in memory; what it counted goes to the database once a second in one statement, which gives back what
 * all nodes counted together. So a limit may be passed by what the other nodes let through in one second, and no
 * request waits for a write. Owns the table `rate_windows`.
 */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { networksOf, wideFactor } from './network.ts';
import { Problem } from './problem.ts';

/** Milliseconds between two exchanges with the other nodes. */
const exchangeMs = 1_000;
/** Keys counted at once at most; past that the oldest are forgotten. */
const keysMax = 200_000;

interface Count {
  minute: number;
  /** Of all nodes, as the database had it at the last exchange. */
  known: number;
  /** Of this node since. */
  fresh: number;
}

/** What a client is told of its limit. */
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

  /** @param limit requests a minute for each key; 0 is none */
  constructor(db: Database, limit: number) {
    this.#db = db;
    this.#limit = limit;
  }

  start(): void {
    if (this.#limit === 0) return;
    this.#timer = setInterval(() => {
      this.#exchange ??= this.#exchangeCounts()
        // Without the database each node limits by what it saw itself.
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
   * @param factor how many times the limit this key has
   * @returns undefined where there is no limit
   * @throws Problem 429 past the limit
   */
  count(key: string, factor = 1): RateState | undefined {
    if (this.#limit === 0) return undefined;
    const limit = this.#limit * factor;
    const count = this.#countOf(key);
    const used = count.known + count.fresh;
    const reset = secondsLeft();
    if (used >= limit) throw tooMany({ limit, remaining: 0, reset });
    count.fresh += 1;
    return { limit, remaining: limit - used - 1, reset };
  }

  /**
   * Whether the key has anything left, without counting.
   * @throws Problem 429 past the limit
   */
  peek(key: string, factor = 1): void {
    const limit = this.#limit * factor;
    const count = this.#counts.get(key);
    if (this.#limit === 0 || count?.minute !== Math.floor(Date.now() / 60_000)) return;
    if (count.known + count.fresh >= limit) throw tooMany({ limit, remaining: 0, reset: secondsLeft() });
  }

  /** Counts one request that was answered already: past the limit too. */
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
    // In one order on every node, so that two that write the same keys wait for each other and not in a circle.
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

/** Until the minute ends. */
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

function tooMany(state: RateState): Problem {
  return new Problem(429, `This is limited to ${state.limit} requests a minute.`, {
    code: 'rate-limited',
    headers: { ...rateHeaders(state), 'retry-after': String(state.reset) },
  });
}

/**
 * Counts one request of an address: for the address itself, and for the site of an IPv6 one. Past its own limit an
 * address adds nothing to its site's.
 * @param prefix what is counted apart from other things that the same address does
 */
export function countAddress(limiter: RateLimiter, prefix: string, address: string): RateState | undefined {
  const { near, wide } = networksOf(address);
  const state = limiter.count(`${prefix}${addressKey(near)}`);
  if (wide !== null) limiter.count(`${prefix}${addressKey(wide)}`, wideFactor);
  return state;
}

function addressKey(network: string): string {
  return `address:${network}`;
}
