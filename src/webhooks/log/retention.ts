/**
 * Retention: events, deliveries and attempts are kept for a number of days, then whole day partitions are dropped.
 * Rows in other tables are deleted to match. Also erases the body of a single event.
 */

import { sql } from 'kysely';
import { isId } from '../../crypto/ids.ts';
import { deleteBatches } from '../../database/batches.ts';
import type { Database } from '../../database/database.ts';
import { dropPartitions, ensurePartitions } from '../../database/partitions.ts';
import { keptDays, readDeliveriesDays } from '../../database/retention.ts';
import { steadyNow } from '../../database/steady_clock.ts';
import { expireRejected } from '../../events/rejected_events.ts';
import { deleteEnded } from '../subscriptions/ended.ts';
import { dropOldStats } from './delivery_stats.ts';
import { deleteResponses } from './response_retention.ts';

/** Attempts refer to deliveries, and deliveries to events: referring tables are dropped first. */
const dayTables = ['attempts', 'deliveries', 'events'];

/**
 * Creates the partitions of the coming days and drops expired ones. A day that still has pending deliveries is kept. Then deletes
 * from the other tables, in batches.
 * @param slow the connections for reading many rows and for deleting
 * @returns false if locks of others, such as a backup, were in the way: call again soon
 */
export async function applyRetention(db: Database, slow = db): Promise<boolean> {
  const days = await readDeliveriesDays(slow);
  const areMade = await ensurePartitions(db);
  const now = steadyNow();
  const today = await dayAt(slow, now);
  const kept = await pendingDays(slow, today, days);
  const areDropped = await dropPartitions(db, dayTables, { before: today, days, kept });
  const expired = (more = 0) => sql`${now} - make_interval(days => ${days + more}::int)`;
  const isDropped = sql`day < ${today}::date - ${days}::int`;
  await deleteBatches(slow, 'retries', sql`${isDropped} and day <> all(${kept}::date[])`);
  await deleteBatches(slow, 'event_ids', sql`created_at < ${expired()}`);
  await deleteBatches(slow, 'parked_events', isDropped);
  // Keep revisions that an attempt in the log may refer to.
  const isReplaced = sql`exists (
    select from subscription_revisions next
    where next.lane = subscription_revisions.lane and next.revision = subscription_revisions.revision + 1
      and next.created_at < ${expired(1)})`;
  await deleteBatches(slow, 'subscription_revisions', isReplaced);
  await deleteBatches(slow, 'recoveries', sql`state <> 'running' and created_at < ${expired()}`);
  // Keep epochs of deliveries that may still be looked up.
  const isPast = sql`exists (
    select from lane_epochs next
    where next.lane = lane_epochs.lane and next.first > lane_epochs.first and next.began_at < ${expired(1)})`;
  await deleteBatches(slow, 'lane_epochs', isPast);
  await deleteEnded(slow, expired(1));
  await dropOldStats(slow, now);
  await expireRejected(slow, now);
  await deleteResponses(slow, today);
  return areMade && areDropped;
}

/** Days before its deletion at which a parked event is reported. */
const expiringDays = 3;

/** Counts parked events that retention will delete within three days. */
export async function countExpiringParked(db: Database): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from parked_events
    where day < (now() at time zone 'utc')::date - (${keptDays.deliveries} - ${expiringDays}::int)`.execute(
    db,
  );
  return rows[0]?.count ?? 0;
}

async function dayAt(db: Database, now: ReturnType<typeof steadyNow>): Promise<string> {
  const { rows } = await sql<{ day: string }>`select (${now} at time zone 'utc')::date::text as day`.execute(
    db,
  );
  return (rows[0] as { day: string }).day;
}

/** Expired days that still have deliveries to send to an active subscription. */
async function pendingDays(db: Database, today: string, days: number): Promise<string[]> {
  const isOver = sql`day < ${today}::date - ${days}::int`;
  const { rows } = await sql<{ day: string }>`
    select distinct day::text from (
      select day from outbox where ${isOver}
      union all
      select day from deferred_deliveries where ${isOver}
      union all
      select r.day from retries r join subscriptions s on s.lane = r.lane and s.state = 'active'
      where r.${isOver} and r.due_at is not null
      union all
      select d.day
      from lane_progress p
      join lanes l on l.id = p.lane and l.next_sequence - 1 > p.cursor
      join subscriptions s on s.lane = p.lane and s.state = 'active' and s.url is not null
      cross join lateral (
        select distinct day from deliveries d
        where d.lane = p.lane and d.sequence > p.cursor and d.${isOver}
          and not exists (select from attempts a where a.lane = d.lane and a.sequence = d.sequence and a.day = d.day)
          and not exists (select from retries r where r.lane = d.lane and r.sequence = d.sequence)
      ) as d
    ) as pending`.execute(db);
  return rows.map(({ day }) => day);
}

/**
 * How long before and after its id was created an event may have been written: clocks of machines differ, and a
 * statement runs for at most a minute.
 */
const writtenWithin = { beforeMs: 60_000, afterMs: 120_000 };

/**
 * Erases the body of an event. Its id and delivery history stay; deliveries that were not sent are cancelled.
 * @returns the positions of the erased event; empty if it does not exist
 */
export async function eraseEvent(db: Database, id: string): Promise<number[]> {
  const madeAt = await idMadeAt(db, id);
  if (madeAt === undefined) return [];
  const from = new Date(madeAt.getTime() - writtenWithin.beforeMs);
  const until = new Date(madeAt.getTime() + writtenWithin.afterMs);
  const positions = (await eraseNear(db, id, from, until)) ?? (await eraseAround(db, id, madeAt));
  if (positions.length > 0) {
    await sql`select announce('event_erased', ${positions.join(',')})`.execute(db);
  }
  return positions;
}

/** @returns undefined if nothing was found */
async function eraseNear(db: Database, id: string, from: Date, until: Date): Promise<number[] | undefined> {
  for (const day of new Set([dayOf(from), dayOf(until)])) {
    const positions = await eraseOfDay(db, id, day, from, until);
    if (positions.length > 0) return positions;
  }
  return undefined;
}

/**
 * The clock of the node that created the id may differ from the database's, so three whole days are searched.
 */
async function eraseAround(db: Database, id: string, madeAt: Date): Promise<number[]> {
  const days = [-1, 0, 1].map((offset) => dayOf(new Date(madeAt.getTime() + offset * 86_400_000)));
  const { rows } = await sql<{ position: string }>`
    update events set body = null
    where day = any(${days}::date[]) and id = ${id} and body is not null returning position`.execute(db);
  return rows.map(({ position }) => Number(position));
}

const dayOf = (time: Date): string => time.toISOString().slice(0, 10);

/**
 * When an event's id was created: recorded for ids that the publisher chose, encoded in ids that this server made.
 */
async function idMadeAt(db: Database, id: string): Promise<Date | undefined> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from event_ids where id = ${id}`.execute(db);
  if (rows[0] !== undefined) return rows[0].created_at;
  if (!isId(id) || id[14] !== '7') return undefined;
  const madeAt = Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
  return madeAt < latestMs ? new Date(madeAt) : undefined;
}

/** An id can encode a time beyond what PostgreSQL can represent. */
const latestMs = Date.UTC(9999, 0);

/** Positions within a day almost follow time, so the primary key leads to the range to read. */
async function eraseOfDay(db: Database, id: string, day: string, from: Date, until: Date): Promise<number[]> {
  const { rows } = await sql<{ position: string }>`
    update events set body = null
    where day = ${day}::date and id = ${id} and body is not null
      and position >= (select event_position_at(${day}::date, ${from}))
      and position < (select event_position_at(${day}::date, ${until}))
    returning position`.execute(db);
  return rows.map(({ position }) => Number(position));
}
