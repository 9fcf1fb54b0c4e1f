/**
 * Retention: events, deliveries and attempts are kept for some days and leave by dropping a day's partition. What has
 * no partitions of its own follows it. Also erases the body of one event at once.
 */

import { sql } from 'kysely';
import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { dropPartitions, ensurePartitions } from '../../database/partitions.ts';
import { dropOldStats } from './delivery_stats.ts';

/** Days that events and their deliveries are kept. */
export const retentionDays = 30;

/** Deliveries refer to events, attempts to deliveries: what refers is dropped first. */
const dayTables = ['attempts', 'deliveries', 'events'];

/**
 * Makes the partitions of the coming days and drops those that are over. The clock may be wrong: what retention takes for
 * today follows it by one day with each call at most, and never leads the youngest event by more than a day. A day with
 * deliveries that are still to be made stays.
 * @returns false where others hold locks on them, such as a backup: to be called again soon
 */
export async function applyRetention(db: Database, days = retentionDays): Promise<boolean> {
  const areMade = await ensurePartitions(db, dayTables);
  const today = await followClock(db);
  const kept = await pendingDays(db, today, days);
  const areDropped = await dropPartitions(db, dayTables, { before: today, days, kept });
  await sql`
    delete from retries where day < ${today}::date - ${days}::int and day <> all(${kept}::date[])`.execute(
    db,
  );
  const now = sql`least(now(), ${today}::date + interval '1 day')`;
  await sql`delete from event_ids where created_at < ${now} - make_interval(days => ${days}::int)`.execute(
    db,
  );
  await sql`delete from parked_events where day < (now() at time zone 'utc')::date - ${days}::int`.execute(
    db,
  );
  // Of a subscription's revisions those stay that an attempt in the log may have been made by.
  await sql`
    delete from subscription_revisions r using subscription_revisions next
    where next.lane = r.lane and next.revision = r.revision + 1
      and next.created_at < ${now} - make_interval(days => ${days + 1}::int)`.execute(db);
  await sql`
    delete from recoveries
    where state <> 'running' and created_at < ${now} - make_interval(days => ${days}::int)`.execute(db);
  // Of a lane's epochs those stay whose deliveries may still be looked up.
  await sql`
    delete from lane_epochs e using lane_epochs next
    where next.lane = e.lane and next.first > e.first
      and next.began_at < ${now} - make_interval(days => ${days + 1}::int)`.execute(db);
  await dropOldStats(db);
  return areMade && areDropped;
}

/** @returns the day that counts as today */
async function followClock(db: Database): Promise<string> {
  const { rows } = await sql<{ day: string }>`
    update retention_day set day = least(
      (now() at time zone 'utc')::date, day + 1, (select day + 1 from events order by day desc limit 1))
    returning day::text`.execute(db);
  return (rows[0] as { day: string }).day;
}

/** Days that are over and that have something to be delivered yet, to an active subscription. */
async function pendingDays(db: Database, today: string, days: number): Promise<string[]> {
  const isOver = sql`day < ${today}::date - ${days}::int`;
  const { rows } = await sql<{ day: string }>`
    select distinct day::text from (
      select day from outbox where ${isOver}
      union all
      select r.day from retries r join subscriptions s on s.lane = r.lane and s.state = 'active'
      where r.${isOver} and r.due_at is not null
      union all
      select d.day
      from lane_progress p
      join lanes l on l.id = p.lane and l.next_sequence - 1 > p.cursor
      join subscriptions s on s.lane = p.lane and s.state = 'active'
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
 * Milliseconds by which an event may have been written after its id was made (a statement runs for a minute at most), and
 * before it by the clock of another machine.
 */
const writtenWithin = { beforeMs: 60_000, afterMs: 120_000 };

/**
 * Erases the body of an event: ids and what became of its deliveries stay, what has not been sent is cancelled.
 * @returns the positions of the erased event; empty where there is none
 */
export async function eraseEvent(db: Database, id: string): Promise<number[]> {
  const madeAt = await idMadeAt(db, id);
  if (madeAt === undefined) return [];
  const from = new Date(madeAt.getTime() - writtenWithin.beforeMs);
  const until = new Date(madeAt.getTime() + writtenWithin.afterMs);
  const positions = (await eraseNear(db, id, from, until)) ?? (await eraseAround(db, id, madeAt));
  if (positions.length > 0) {
    await sql`select pg_notify(current_schema() || '.event_erased', ${positions.join(',')})`.execute(db);
  }
  return positions;
}

/** @returns undefined where nothing was found */
async function eraseNear(db: Database, id: string, from: Date, until: Date): Promise<number[] | undefined> {
  for (const day of new Set([dayOf(from), dayOf(until)])) {
    const positions = await eraseOfDay(db, id, day, from, until);
    if (positions.length > 0) return positions;
  }
  return undefined;
}

/** The clock of the node that made the id may differ from the database's: three whole days are read. */
async function eraseAround(db: Database, id: string, madeAt: Date): Promise<number[]> {
  const days = [-1, 0, 1].map((offset) => dayOf(new Date(madeAt.getTime() + offset * 86_400_000)));
  const { rows } = await sql<{ position: string }>`
    update events set body = null
    where day = any(${days}::date[]) and id = ${id} and body is not null returning position`.execute(db);
  return rows.map(({ position }) => Number(position));
}

const dayOf = (time: Date): string => time.toISOString().slice(0, 10);

/** When an event's id was made: as the publisher's own ids were noted, or as an id made here says itself. */
async function idMadeAt(db: Database, id: string): Promise<Date | undefined> {
  const { rows } = await sql<{ created_at: Date }>`
    select created_at from event_ids where id = ${id}`.execute(db);
  if (rows[0] !== undefined) return rows[0].created_at;
  if (!isId(id) || id[14] !== '7') return undefined;
  const madeAt = Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
  return madeAt < latestMs ? new Date(madeAt) : undefined;
}

/** An id can state a time that no date of the database can name. */
const latestMs = Date.UTC(9999, 0);

/** Positions of a day are in the order of its times, but for moments: the primary key leads to the range to read. */
async function eraseOfDay(db: Database, id: string, day: string, from: Date, until: Date): Promise<number[]> {
  const { rows } = await sql<{ position: string }>`
    update events set body = null
    where day = ${day}::date and id = ${id} and body is not null
      and position >= (select event_position_at(${day}::date, ${from}))
      and position < (select event_position_at(${day}::date, ${until}))
    returning position`.execute(db);
  return rows.map(({ position }) => Number(position));
}
