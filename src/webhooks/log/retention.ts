/**
 * Retention: events, deliveries and attempts are kept for a number of days, then whole day partitions are dropped.
 * Rows in other tables are deleted to match. Also erases the body of a single event.
 */

import { type RawBuilder, sql } from 'kysely';
import { isId } from '../../crypto/ids.ts';
import { deleteByPage } from '../../database/batches.ts';
import { type Database, isDatabaseUnavailable } from '../../database/database.ts';
import { dropPartitions, ensurePartitions, listExpiredDays } from '../../database/partitions.ts';
import { keptDays, readDeliveriesDays } from '../../database/retention.ts';
import { steadyNow } from '../../database/steady_clock.ts';
import { expireRejected } from '../../events/rejected_events.ts';
import { deleteEnded } from '../subscriptions/ended.ts';
import { dropOldStats } from './delivery_stats.ts';
import { dayTables, type Expiry, isOver, isPending, waitingDays } from './kept_days.ts';
import { isSettled, settleLanes } from './numbering.ts';
import { deleteResponses } from './response_retention.ts';

/**
 * Creates the partitions of the coming days and drops expired ones. A day that still has pending deliveries, or a lane that is locked, is
 * kept. Then deletes from the other tables, in batches. An error of one step does not stop the others, except where they need its result.
 * @param slow the connections for reading many rows and for deleting
 * @returns false if locks of others, such as a backup, were in the way: call again soon
 * @throws AggregateError at the end, with the errors of all steps that failed
 */
export async function applyRetention(db: Database, slow = db): Promise<boolean> {
  const steps = new Steps();
  const days = await readDeliveriesDays(slow);
  const now = steadyNow();
  const today = await dayAt(slow, now);
  const areMade = await steps.run('new days', () => ensurePartitions(db));
  await steps.run('numbers', () => settleLanes(slow, today));
  const areDropped = await steps.run('days', () => dropDays(db, slow, { today, days }, steps));
  const expired = (more = 0) => sql`${now} - make_interval(days => ${days + more}::int)`;
  await steps.delete(slow, 'event_ids', sql`created_at < ${expired()}`);
  await steps.delete(slow, 'parked_events', isOver({ today, days }));
  // Keep revisions that an attempt in the log may refer to.
  const isReplaced = sql`exists (
    select from subscription_revisions next
    where next.lane = subscription_revisions.lane and next.revision = subscription_revisions.revision + 1
      and next.created_at < ${expired(1)})`;
  await steps.delete(slow, 'subscription_revisions', isReplaced);
  await steps.delete(slow, 'recoveries', sql`state <> 'running' and created_at < ${expired()}`);
  // Keep epochs of deliveries that may still be looked up.
  const isPast = sql`exists (
    select from lane_epochs next
    where next.lane = lane_epochs.lane and next.first > lane_epochs.first and next.began_at < ${expired(1)})`;
  await steps.delete(slow, 'lane_epochs', isPast);
  await steps.run('subscriptions', () => deleteEnded(slow, expired(1)));
  await steps.run('delivery_stats', () => dropOldStats(slow, now));
  await steps.run('rejected_events', () => expireRejected(slow, now));
  await steps.run('responses', () => deleteResponses(slow, today));
  steps.end();
  return areMade === true && areDropped === true;
}

/** Steps of which each runs, whatever happened to the others. */
class Steps {
  readonly #failures: Error[] = [];

  /**
   * @returns undefined if the step failed
   * @throws the error if the database is unavailable: then no further step could run
   */
  async run<T>(name: string, work: () => Promise<T>): Promise<T | undefined> {
    try {
      return await work();
    } catch (cause) {
      if (isDatabaseUnavailable(cause) && !isOutOfResources(cause)) throw cause;
      this.#failures.push(new Error(`${name}: ${(cause as Error).message}`, { cause }));
      return undefined;
    }
  }

  async delete(db: Database, table: string, condition: RawBuilder<unknown>): Promise<void> {
    await this.run(table, () => deleteByPage(db, table, condition));
  }

  end(): void {
    if (this.#failures.length === 0) return;
    const messages = this.#failures.map(({ message }) => message);
    throw new AggregateError(this.#failures, `retention is incomplete: ${messages.join('; ')}`);
  }
}

/** Memory, space for a sort: another statement may need less. */
function isOutOfResources(error: unknown): boolean {
  return String((error as { code?: unknown }).code).startsWith('53');
}

/** Drops the expired days without pending deliveries, and deletes their retries. */
async function dropDays(db: Database, slow: Database, expiry: Expiry, steps: Steps): Promise<boolean> {
  const { today: before, days } = expiry;
  const waiting = await waitingDays(slow, expiry);
  const kept = [...waiting];
  for (const day of await listExpiredDays(slow, dayTables, { before, days, kept: waiting })) {
    // Also kept if that is not known.
    const isPast = await steps.run(
      `deliveries of ${day}`,
      async () => !(await isPending(slow, day)) && (await isSettled(slow, day)),
    );
    if (isPast !== true) kept.push(day);
  }
  const areDropped = await steps.run('partitions', () =>
    dropPartitions(db, dayTables, { before, days, kept }),
  );
  await steps.delete(slow, 'retries', sql`${isOver(expiry)} and day <> all(${kept}::date[])`);
  return areDropped === true;
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
