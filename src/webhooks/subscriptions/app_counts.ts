/**
 * Counts the subscriptions of large apps, for their quota. All users of an app ask for the same count, and PostgreSQL takes some 25 ms for
 * 100,000 subscriptions. So a node remembers a count for a hundred times as long as it took: counting one app takes at most a hundredth of
 * one connection, however many users ask.
 */

import { sql } from 'kysely';
import { LRUCache } from 'lru-cache';
import { asServer } from '../../database/connection_user.ts';
import type { Database } from '../../database/database.ts';
import { upTo } from '../../shared/entries.ts';

const rememberedFactor = 100;
/** Milliseconds. The wait for a connection counts, too. */
const rememberedMsMax = 60_000;
const appsMax = 10_000;

export class AppCounts {
  readonly #db: Database;
  readonly #max: number;
  readonly #counts = new LRUCache<string, { count: number; until: number }>(upTo(appsMax));
  readonly #counting = new Map<string, Promise<number>>();

  /** @param max where counting stops */
  constructor(db: Database, max: number) {
    this.#db = db;
    this.#max = max;
  }

  /** Waits for the count, unless it is remembered. Call it outside a transaction: the count needs a connection. */
  async read(clientId: string): Promise<number> {
    const found = this.#counts.get(clientId);
    if (found !== undefined && performance.now() < found.until) return found.count;
    const counting = this.#counting.get(clientId) ?? asServer(() => this.#count(clientId));
    this.#counting.set(clientId, counting);
    return counting;
  }

  /**
   * Returns the last count, however old, and begins another one if it is no longer remembered.
   * @returns undefined if there is none yet
   */
  latest(clientId: string): number | undefined {
    this.read(clientId).catch(() => {});
    return this.#counts.get(clientId)?.count;
  }

  async #count(clientId: string): Promise<number> {
    const begunAt = performance.now();
    try {
      const { rows } = await sql<{ count: number }>`
        select count(*)::int as count from (
          select from subscriptions where client_id = ${clientId} and state <> 'ended' limit ${this.#max}::int
        ) as counted`.execute(this.#db);
      const count = rows[0]?.count ?? 0;
      const now = performance.now();
      const rememberedMs = Math.min(rememberedFactor * (now - begunAt), rememberedMsMax);
      this.#counts.set(clientId, { count, until: now + rememberedMs });
      return count;
    } finally {
      this.#counting.delete(clientId);
    }
  }
}
