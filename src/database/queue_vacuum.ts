/**
 * Vacuums a queue table often. Its rows live for milliseconds, and each search for the next row scans the dead ones until
 * they are vacuumed. Autovacuum runs too rarely to keep up with a burst.
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

/** Vacuum after this many taken rows: under load, and when idle. */
const busyRows = 10_000;
const idleRows = 1_000;
/** Vacuum uses at most this share of the time, even when an old snapshot prevents the removal of dead rows. */
const shareMax = 0.05;

export class QueueVacuum {
  readonly #table: string;
  #rows = 0;
  #notBefore = 0;

  constructor(table: string) {
    this.#table = table;
  }

  /** Adds to the number of taken rows. */
  count(rows: number): void {
    this.#rows += rows;
  }

  async run(db: Database, isIdle: boolean): Promise<void> {
    const begunAt = performance.now();
    if (this.#rows < (isIdle ? idleRows : busyRows) || begunAt < this.#notBefore) return;
    this.#rows = 0;
    // The next run and autovacuum make up for a failed run, such as one that timed out.
    await sql`vacuum (skip_locked, index_cleanup on, truncate off) ${sql.id(this.#table)}`
      .execute(db)
      .catch(() => {});
    const endedAt = performance.now();
    this.#notBefore = endedAt + (endedAt - begunAt) / shareMax;
  }
}
