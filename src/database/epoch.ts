/**
 * Epochs of the database. After a failover to a lagging standby, or a restore from a backup, the last commits are lost. A
 * process then holds wrong data in memory, and sequences hand out the same numbers again. Each connection compares the
 * system identifier and the timeline before it is used, and fails on a standby. One check per connection suffices: a server
 * changes its timeline only when it is promoted. The first connection that finds a different identifier or timeline begins
 * an epoch. Owns `database_epochs` and `lane_epochs`.
 *
 *   epoch → failover, restored backup, or the operator's command → next epoch, recorded by one conditional statement
 */

import { sql } from 'kysely';
import type pg from 'pg';
import type { Database } from './database.ts';

/**
 * Begins an epoch if the system identifier or the timeline has changed.
 * @returns the id of the current epoch
 * @throws DatabaseError with code 25006 on a standby
 */
export async function enterEpoch(client: Pick<pg.ClientBase, 'query'>): Promise<string> {
  const { rows } = await client.query<{ epoch: string }>('select enter_epoch() as epoch');
  return (rows[0] as { epoch: string }).epoch;
}

/** Begins an epoch on the operator's request, without a visible change of the database. @returns its number */
export async function beginEpoch(db: Database): Promise<number> {
  const { rows } = await sql<{ number: number }>`
    with latest as materialized (select max(number) as number from database_epochs),
    begun as materialized (select begin_epoch(number, database_identity()) from latest)
    select latest.number + 1 as number from latest, begun`.execute(db);
  return (rows[0] as { number: number }).number;
}
