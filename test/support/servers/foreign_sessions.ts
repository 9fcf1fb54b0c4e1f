/** What other sessions of a database do to a server: they lock rows, and keep transactions open. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';

export type SessionFault = 'lock lane' | 'lock progress' | 'snapshot' | 'long transaction';
export const sessionFaults: readonly SessionFault[] = [
  'lock lane',
  'lock progress',
  'snapshot',
  'long transaction',
];

/** Maximum milliseconds of a fault. */
const faultMsMax = 6_000;

/** Runs a fault to its end. Does nothing if the database is away. */
export async function strikeSession(db: Database, fault: SessionFault, random: () => number): Promise<void> {
  const ms = random() * faultMsMax;
  const place = random();
  await db
    .transaction()
    .setIsolationLevel(fault === 'snapshot' ? 'repeatable read' : 'read committed')
    .execute(async (tx) => {
      await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
      if (fault === 'lock lane') await lockSome(tx, 'lanes', 'id', place);
      else if (fault === 'lock progress') await lockSome(tx, 'lane_progress', 'lane', place);
      else if (fault === 'snapshot') await sql`select from outbox`.execute(tx);
      // A transaction has an id from its first write on.
      else await sql`select pg_current_xact_id()`.execute(tx);
      await sleep(ms);
    })
    .catch(() => {});
}

/** Locks one row of several. @param place which one, from 0 to 1 */
async function lockSome(tx: Database, table: string, column: string, place: number): Promise<void> {
  await sql`
    select from ${sql.table(table)} where ${sql.ref(column)} in (
      select ${sql.ref(column)} from ${sql.table(table)} order by 1
      offset (select floor(count(*) * ${place}::float8)::int from ${sql.table(table)}) limit 1
    ) for update`.execute(tx);
}
