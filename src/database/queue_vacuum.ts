/**
 * Keeps a queue small. Each row of it lives for some milliseconds, and every look for the next account steps over the
 * rows that are dead until they are vacuumed. PostgreSQL's own vacuum comes once a minute: after a burst that is too late.
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

/** Rows taken after which the table is vacuumed: under load, and when there is nothing to do. */
const busyRows = 10_000;
const idleRows = 1_000;
/** It takes at most this share of the time, also where an old snapshot keeps dead rows from being removed. */
const shareMax = 0.05;

export class QueueVacuum {
  readonly #table: string;
  #rows = 0;
  #notBefore = 0;

  constructor(table: string) {
    this.#table = table;
  }

  /** So many rows were taken. */
  count(rows: number): void {
    this.#rows += rows;
  }

  async run(db: Database, isIdle: boolean): Promise<void> {
    const begunAt = performance.now();
    if (this.#rows < (isIdle ? idleRows : busyRows) || begunAt < this.#notBefore) return;
    this.#rows = 0;
    // One that fails, because it takes too long for example, is made up for by the next one and by PostgreSQL's own.
    await sql`vacuum (skip_locked, index_cleanup on, truncate off) ${sql.id(this.#table)}`
      .execute(db)
      .catch(() => {});
    const endedAt = performance.now();
    this.#notBefore = endedAt + (endedAt - begunAt) / shareMax;
  }
}
