/**
 * Vacuums a queue table often, beside the reading of it. Its rows live for milliseconds. Autovacuum runs too rarely to keep up with
 * a burst. When the table is empty but large, it is truncated: a long transaction elsewhere keeps vacuum from removing dead rows.
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

/** Vacuum after this many taken rows: under load, and when idle. */
const busyRows = 10_000;
const idleRows = 1_000;
/** Vacuum uses at most this share of the time, even when an old snapshot prevents the removal of dead rows. */
const shareMax = 0.05;
/** Bytes of a table, with its indexes, that is worth truncating. */
const largeBytes = 16 * 1024 * 1024;
/** Milliseconds that a truncation waits for others, who then wait for it; and between two attempts. */
const truncateLockMs = 50;
/** Milliseconds for finding out whether the table is empty. All others wait for the second time. */
const truncateCheckMs = 200;
const truncatePauseMs = 5_000;

export class QueueVacuum {
  readonly #db: Database;
  readonly #table: string;
  #rows = 0;
  #isRunning = false;
  #notBefore = 0;
  #truncateNotBefore = 0;

  constructor(db: Database, table: string) {
    this.#db = db;
    this.#table = table;
  }

  /** Adds to the number of taken rows. */
  count(rows: number): void {
    this.#rows += rows;
  }

  /** Vacuums in the background if it is time to. @param isIdle whether the table is probably empty */
  start(isIdle: boolean): void {
    if (this.#isRunning) return;
    const now = performance.now();
    const isVacuumDue = now >= this.#notBefore && this.#rows >= (isIdle ? idleRows : busyRows);
    const isTruncationDue = isIdle && now >= this.#truncateNotBefore;
    if (!isVacuumDue && !isTruncationDue) return;
    this.#isRunning = true;
    // The next run and autovacuum make up for a failed run, such as one that timed out.
    void (async () => {
      if (isVacuumDue) await this.#vacuum().catch(() => {});
      if (isTruncationDue) await this.#truncate().catch(() => {});
      this.#isRunning = false;
    })();
  }

  async #vacuum(): Promise<void> {
    const begunAt = performance.now();
    this.#rows = 0;
    try {
      await sql`vacuum (skip_locked, index_cleanup on, truncate off) ${sql.id(this.#table)}`.execute(
        this.#db,
      );
    } finally {
      const endedAt = performance.now();
      this.#notBefore = endedAt + (endedAt - begunAt) / shareMax;
    }
  }

  /** Truncates the table if it is large, but empty. A dump that reads it prevents this. */
  async #truncate(): Promise<void> {
    this.#truncateNotBefore = performance.now() + truncatePauseMs;
    const table = sql.id(this.#table);
    const { rows } = await sql<{ is_large: boolean }>`
      select pg_total_relation_size(${this.#table}::regclass) > ${largeBytes}::bigint as is_large`.execute(
      this.#db,
    );
    if (!rows[0]?.is_large) return;
    const isEmpty = async (tx: Database) =>
      (await sql`select from ${table} limit 1`.execute(tx)).rows.length === 0;
    // Each statement must see what has committed before it, whatever the default of the database is.
    const transaction = this.#db.transaction().setIsolationLevel('read committed');
    await transaction.execute(async (tx) => {
      await sql`
        select set_config('lock_timeout', ${`${truncateLockMs}ms`}, true),
          set_config('statement_timeout', ${`${truncateCheckMs}ms`}, true)`.execute(tx);
      if (!(await isEmpty(tx))) return;
      await sql`lock table ${table} in access exclusive mode`.execute(tx);
      if (await isEmpty(tx)) await sql`truncate ${table}`.execute(tx);
    });
  }
}
