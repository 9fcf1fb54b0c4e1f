/**
 * Retention: events, deliveries and attempts are kept for some days and leave by dropping a day's partition. What has
 * no partitions of its own follows it. Also erases the body of one event at once.
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { dropPartitions, ensurePartitions } from '../../database/partitions.ts';
import { dropOldStats } from './delivery_stats.ts';

/** Days that events and their deliveries are kept. */
export const retentionDays = 30;

/** Deliveries refer to events, attempts to deliveries: what refers is dropped first. */
const dayTables = ['attempts', 'deliveries', 'events'];

/**
 * Makes the partitions of the coming days and drops those that are over.
 * @returns false where others hold locks on them, such as a backup: to be called again soon
 */
export async function keepDays(db: Database, days = retentionDays): Promise<boolean> {
  const areMade = await ensurePartitions(db, dayTables);
  const areDropped = await dropPartitions(db, dayTables, days);
  await sql`delete from retries where day < (now() at time zone 'utc')::date - ${days}::int`.execute(db);
  await sql`delete from event_ids where created_at < now() - make_interval(days => ${days}::int)`.execute(db);
  // Of a subscription's revisions those stay that an attempt in the log may have been made by.
  await sql`
    delete from subscription_revisions r using subscription_revisions next
    where next.lane = r.lane and next.revision = r.revision + 1
      and next.created_at < now() - make_interval(days => ${days + 1}::int)`.execute(db);
  await sql`
    delete from recoveries where state <> 'running' and created_at < now() - make_interval(days => ${days}::int)`.execute(
    db,
  );
  await dropOldStats(db);
  return areMade && areDropped;
}

/**
 * Erases the body of an event: ids and what became of its deliveries stay, what has not been sent is cancelled.
 * Reads the whole of the event's day, for this is asked seldom.
 * @returns the positions of the erased event; empty where there is none
 */
export async function eraseEvent(db: Database, id: string): Promise<number[]> {
  const { rows } = await sql<{ position: string }>`
    update events set body = null where id = ${id} and body is not null returning position`.execute(db);
  if (rows.length > 0) {
    const positions = rows.map(({ position }) => position).join(',');
    await sql`select pg_notify('nuncio_event_erased', ${positions})`.execute(db);
  }
  return rows.map(({ position }) => Number(position));
}
