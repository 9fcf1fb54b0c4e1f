/** Deletes many rows in short statements, so that no delete holds locks for long. */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';

const batchRows = 1_000;
/** Pages of a table that one statement of `deleteByPage` reads: 1 MiB. */
const stepPages = 128;

/**
 * Deletes rows that an index finds: without one, every statement would read the table from its beginning. Skips rows that another
 * session has locked, such as a node that is deleting them.
 * @param condition on the columns of the table
 * @param batchesMax maximum statements. The next call continues
 * @returns the number of deleted rows
 */
export async function deleteBatches(
  db: Database,
  table: string,
  condition: RawBuilder<unknown>,
  batchesMax = Number.POSITIVE_INFINITY,
): Promise<number> {
  let deleted = 0;
  for (let batch = 0; batch < batchesMax; batch += 1) {
    const rows = await deleteBatch(db, table, condition);
    deleted += rows;
    if (rows < batchRows) break;
  }
  return deleted;
}

async function deleteBatch(db: Database, table: string, condition: RawBuilder<unknown>): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from ${sql.table(table)}
    where ctid = any(array(
      select ctid from ${sql.table(table)} where ${condition}
      limit ${batchRows}::int for update skip locked))`.execute(db);
  return Number(numAffectedRows ?? 0);
}

/** Where a call of `deleteByPage` begins, and when it ends before the end of the table. */
export interface PageRange {
  readonly from: number;
  /** @param pages of the table */
  readonly pagesMax: (pages: number) => number;
  /** A call ends after the statement that reaches them. */
  readonly rowsMax: number;
}

const wholeTable: PageRange = { from: 0, pagesMax: (pages) => pages, rowsMax: Number.POSITIVE_INFINITY };

/**
 * As `deleteBatches`, for conditions without an index: looks at the pages of the table one after the other, so the work grows with the
 * table and not with its square.
 * @returns the number of deleted rows, and the page at which the next call continues: 0 at the end of the table
 */
export async function deleteByPage(
  db: Database,
  table: string,
  condition: RawBuilder<unknown>,
  { from, pagesMax, rowsMax }: PageRange = wholeTable,
): Promise<{ deleted: number; next: number }> {
  const pages = await countPages(db, table);
  const end = Math.min(pages, from + pagesMax(pages));
  let deleted = 0;
  let next = from;
  while (next < end && deleted < rowsMax) {
    const beyond = Math.min(end, next + stepPages);
    const isInStep = sql`ctid >= ${`(${next},0)`}::tid and ctid < ${`(${beyond},0)`}::tid`;
    deleted += await deleteBatches(db, table, sql`${isInStep} and (${condition})`);
    next = beyond;
  }
  return { deleted, next: next < pages ? next : 0 };
}

async function countPages(db: Database, table: string): Promise<number> {
  const { rows } = await sql<{ pages: number }>`
    select ceil(pg_relation_size(${table}::regclass) / current_setting('block_size')::numeric)::int as pages`.execute(
    db,
  );
  return (rows[0] as { pages: number }).pages;
}
