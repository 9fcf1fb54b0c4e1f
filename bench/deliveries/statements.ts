/** The database work for each delivery, from pg_stat_statements. */

import { sql } from 'kysely';
import type { Database } from '../../src/database/database.ts';

/** Loads the extension. Call it before the last start of PostgreSQL, because it takes effect at startup. */
export async function wantStatements(db: Database): Promise<void> {
  await sql`alter system set shared_preload_libraries = 'pg_stat_statements'`.execute(db);
  await sql`alter system set pg_stat_statements.track_utility = off`.execute(db);
  await sql`create extension if not exists pg_stat_statements`.execute(db);
}

export async function resetStatements(db: Database): Promise<void> {
  await sql`select pg_stat_statements_reset()`.execute(db);
}

export interface StatementCost {
  text: string;
  calls: number;
  /** Total elapsed time, for planning and execution. */
  milliseconds: number;
  rows: number;
  /** Pages read and pages dirtied in the cache. */
  pages: number;
  dirtied: number;
  walBytes: number;
}

/** Returns the most expensive statements since the reset. */
export async function readStatements(db: Database): Promise<StatementCost[]> {
  const { rows } = await sql<Record<string, string>>`
    select query, calls, total_exec_time + total_plan_time as ms, rows, shared_blks_hit + shared_blks_read as pages,
      shared_blks_dirtied as dirtied, wal_bytes
    from pg_stat_statements where query !~ 'pg_stat|pg_current_wal' order by ms desc`.execute(db);
  return rows.map((row) => ({
    text: (row.query ?? '').replace(/\s+/g, ' '),
    calls: Number(row.calls),
    milliseconds: Number(row.ms),
    rows: Number(row.rows),
    pages: Number(row.pages),
    dirtied: Number(row.dirtied),
    walBytes: Number(row.wal_bytes),
  }));
}
