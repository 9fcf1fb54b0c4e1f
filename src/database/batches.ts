/** Deletes many rows in short statements, so that no delete holds locks for long. */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';

const batchRows = 1_000;

/**
 * Skips rows that another session has locked, such as a node that is deleting them.
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
    const { numAffectedRows } = await sql`
      delete from ${sql.table(table)}
      where ctid = any(array(
        select ctid from ${sql.table(table)} where ${condition}
        limit ${batchRows}::int for update skip locked))`.execute(db);
    const rows = Number(numAffectedRows ?? 0);
    deleted += rows;
    if (rows < batchRows) break;
  }
  return deleted;
}
