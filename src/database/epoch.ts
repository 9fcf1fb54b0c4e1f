/**
 * Epochs of the database. After a failover to a standby that lagged, and after a backup is restored, the database does
 * not know what was committed last: what a process keeps in memory of it is wrong, and numbers are given out a second
 * time. A connection stays with the PostgreSQL process that it was opened to, which changes its timeline by no other way
 * than its promotion: so each connection asks once, before anything else, and none is opened to a standby. The first
 * that finds another system identifier or timeline begins an epoch. Owns `database_epochs` and `lane_epochs`.
 *
 *   epoch → failover, restored backup, or the operator's command → the next epoch, recorded by one conditional statement
 */

import { sql } from 'kysely';
import type pg from 'pg';
import type { Database } from './database.ts';

/**
 * Begins an epoch where this is not the database that it was.
 * @returns the id of the epoch
 * @throws Error of PostgreSQL, code 25006, on a standby
 */
export async function enterEpoch(client: Pick<pg.ClientBase, 'query'>): Promise<string> {
  const { rows } = await client.query<{ epoch: string }>('select enter_epoch() as epoch');
  return (rows[0] as { epoch: string }).epoch;
}

/** Begins an epoch although nothing tells that the database has changed. @returns its number */
export async function beginEpoch(db: Database): Promise<number> {
  const { rows } = await sql<{ number: number }>`
    with latest as materialized (select max(number) as number from database_epochs),
    begun as materialized (select begin_epoch(number, database_identity()) from latest)
    select latest.number + 1 as number from latest, begun`.execute(db);
  return (rows[0] as { number: number }).number;
}
