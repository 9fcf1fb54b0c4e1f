/**
 * Expired days that retention keeps, because an active subscription still waits for deliveries of them. A day is whole or gone, so one lane
 * can keep the days of all accounts.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { listExpiredDays } from '../../database/partitions.ts';
import { readDeliveriesDays } from '../../database/retention.ts';

/** Attempts refer to deliveries, and deliveries to events: referring tables are dropped first. */
export const dayTables = ['attempts', 'deliveries', 'events'];
/** Maximum subscriptions that are named. */
const keepersMax = 5;

/** The UTC day, and how many days before it are kept in any case. */
export interface Expiry {
  today: string;
  days: number;
}

export const isOver = ({ today, days }: Expiry) => sql`day < ${today}::date - ${days}::int`;

/** Expired days with events that are not deliveries yet. */
export async function waitingDays(db: Database, expiry: Expiry): Promise<string[]> {
  const { rows } = await sql<{ day: string }>`
    select day::text from outbox where ${isOver(expiry)}
    union
    select day::text from deferred_deliveries where ${isOver(expiry)}`.execute(db);
  return rows.map(({ day }) => day);
}

/** Whether the day has a delivery to send to an active subscription. */
export async function isPending(db: Database, day: string): Promise<boolean> {
  const { rows } = await sql<{ is_pending: boolean }>`
    select exists (${pendingLanes(day)}) as is_pending`.execute(db);
  return rows[0]?.is_pending === true;
}

/**
 * Lanes of active subscriptions that have a delivery of the day to send. Reads little, however many wait: of each lane the first delivery
 * after its cursor, by key. Those after the cursor that were attempted fit in the lane's window, so few are passed over.
 */
function pendingLanes(day: string): RawBuilder<unknown> {
  return sql`
    select p.lane
    from lane_progress p
    join lanes l on l.id = p.lane and newest_sequence(l) > p.cursor
    join subscriptions s on s.lane = p.lane and s.state = 'active' and s.url is not null
    cross join lateral (
      select from deliveries d
      where d.day = ${day}::date and d.lane = p.lane and d.sequence > p.cursor
        and not exists (
          select from attempts a where a.day = ${day}::date and a.lane = d.lane and a.sequence = d.sequence offset 0)
        and not exists (select from retries r where r.lane = d.lane and r.sequence = d.sequence offset 0)
      order by d.sequence limit 1
    ) as first
    union all
    select r.lane from retries r join subscriptions s on s.lane = r.lane and s.state = 'active'
    where r.day = ${day}::date and r.due_at is not null`;
}

export interface KeptDays {
  /** Days that retention should have dropped by now. */
  count: number;
  oldest: string | null;
  /** Some of the subscriptions that wait for a delivery of the oldest. */
  subscriptions: string[];
}

/** Finds what is kept for longer than configured. A day is dropped within some hours, so the last one does not count. */
export async function findKeptDays(db: Database): Promise<KeptDays> {
  const days = await readDeliveriesDays(db);
  const { rows: now } = await sql<{ today: string }>`
    select (now() at time zone 'utc')::date::text as today`.execute(db);
  const { today } = now[0] as { today: string };
  const expired = await listExpiredDays(db, dayTables, { before: today, days: days + 1, kept: [] });
  const [oldest = null] = expired;
  if (oldest === null) return { count: 0, oldest, subscriptions: [] };
  const { rows } = await sql<{ id: string }>`
    select distinct s.id from (select lane from (${pendingLanes(oldest)}) as pending limit ${keepersMax}::int) as few
    join subscriptions s on s.lane = few.lane order by s.id`.execute(db);
  return { count: expired.length, oldest, subscriptions: rows.map(({ id }) => id) };
}
