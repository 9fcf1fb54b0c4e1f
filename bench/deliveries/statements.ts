/** What the database's own statistics (pg_stat_statements) say that each delivery asked of it. */

import { sql } from 'kysely';
import type { Database } from '../../src/database/database.ts';

/** Before PostgreSQL is started the last time: it loads the extension at its start. */
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
  /** All in all, of one core, as the clock says. */
  milliseconds: number;
  rows: number;
  /** Pages looked at and pages changed in the cache. */
  pages: number;
  dirtied: number;
  walBytes: number;
}

/** The dearest statements since the reset. */
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
