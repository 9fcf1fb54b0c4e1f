/**
 * Tables partitioned by day (UTC). Partitions are named `<table>_<YYYYMMDD>`, created ahead of time and dropped as a whole.
 * No step takes a lock that blocks readers or writers of the table. No step waits long for a lock, because a backup can
 * hold locks for hours. The caller retries a step that did not get its lock.
 *
 *   created → attached → detached concurrently (pending → final) → dropped
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { type Database, isLockFailure } from './database.ts';
import { Lease } from './lease.ts';

/** A waiting `detach concurrently` blocks no other session. A waiting `drop` blocks readers of that partition. */
const lockTimeouts = { detach: '2s', drop: '200ms' };

/** Partitions are created this many days ahead. */
const daysAhead = 7;

/**
 * Creates the partitions of the next days. Cheap when they exist.
 * @returns false when a lock was not available in time
 */
export function ensurePartitions(db: Database): Promise<boolean> {
  return unlessLocked(() => sql`select ensure_day_partitions(${daysAhead}::int)`.execute(db));
}

export interface Expiry {
  /** The reference day, such as `2026-01-31`. */
  before: string;
  /** Number of days before the reference day to keep. */
  days: number;
  /** Older days to keep as well. */
  kept: readonly string[];
}

/**
 * Drops expired partitions.
 * @returns false when a lock was not available in time, or another node is dropping partitions
 */
export async function dropPartitions(
  db: Database,
  tables: readonly string[],
  expiry: Expiry,
): Promise<boolean> {
  // Detaching cannot run in a transaction, so a row lock does not suffice. If the lease is lost, two nodes detach the same
  // partition, and one of them fails.
  const lease = new Lease({ db, name: 'drop partitions', holder: newId(), onError: () => {} });
  if ((await lease.acquire()) !== 'self') return false;
  return db
    .connection()
    .execute(async (connection) => {
      try {
        let isComplete = true;
        for (const table of tables) {
          for (const partition of await listExpired(connection, table, expiry)) {
            const done = await unlessLocked(() => dropPartition(connection, table, partition));
            isComplete &&= done;
          }
        }
        return isComplete;
      } finally {
        await sql`reset lock_timeout`.execute(connection).catch(() => {});
      }
    })
    .finally(() => lease.release());
}

/** The days of which a table has a partition, expired and not kept, oldest first. */
export async function listExpiredDays(
  db: Database,
  tables: readonly string[],
  expiry: Expiry,
): Promise<string[]> {
  const found = new Set<string>();
  for (const table of tables) {
    for (const { name } of await listExpired(db, table, expiry)) {
      const digits = name.slice(-8);
      found.add(`${digits.slice(0, 4)}-${digits.slice(4, 6)}-${digits.slice(6)}`);
    }
  }
  return [...found].toSorted();
}

interface Partition {
  name: string;
  state: 'attached' | 'pending' | 'detached';
}

async function listExpired(
  connection: Database,
  table: string,
  { before, days, kept }: Expiry,
): Promise<Partition[]> {
  const { rows } = await sql<Partition>`
    select c.relname as name,
      case when i.inhrelid is null then 'detached' when i.inhdetachpending then 'pending' else 'attached' end as state
    from pg_class parent
    join pg_class c on c.relnamespace = parent.relnamespace and c.relkind = 'r' and c.relname ~ ('^' || ${table} || '_\\d{8}$')
    left join pg_inherits i on i.inhrelid = c.oid and i.inhparent = parent.oid
    where parent.relnamespace = current_schema()::regnamespace and parent.relname = ${table}
      and to_date(right(c.relname, 8), 'YYYYMMDD') < ${before}::date - ${days}::int
      and to_date(right(c.relname, 8), 'YYYYMMDD') <> all(${kept}::date[])
    order by c.relname`.execute(connection);
  return rows;
}

async function dropPartition(connection: Database, table: string, { name, state }: Partition): Promise<void> {
  if (state !== 'detached') {
    await sql`set lock_timeout = ${sql.lit(lockTimeouts.detach)}`.execute(connection);
    // PostgreSQL can only finish an interrupted detach, not restart it.
    const how = sql.raw(state === 'pending' ? 'finalize' : 'concurrently');
    await sql`alter table ${sql.id(table)} detach partition ${sql.id(name)} ${how}`.execute(connection);
  }
  await sql`set lock_timeout = ${sql.lit(lockTimeouts.drop)}`.execute(connection);
  await sql`drop table ${sql.id(name)}`.execute(connection);
}

/** @returns false when a lock was not available in time */
async function unlessLocked(work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (isLockFailure(error)) return false;
    throw error;
  }
}
