/** What the database stores: partitions, dead rows, and how long the disk lasts. */

import { existsSync } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { readDeliveriesDays } from '../database/retention.ts';
import { bytesText, type Check, check, countText, type Probe } from './report.ts';

/** Tables with a partition for each day (migrations/0001_foundation.sql). */
const dayTables = ['events', 'deliveries', 'attempts'];
/** The server creates partitions a week ahead. */
const daysAheadMin = 2;
/** A table with more dead rows than live ones, and this many. */
const deadRowsMin = 50_000;
/** From when on the disk is a problem: its free share, and the days that it lasts. */
export const diskLimits = { warning: { share: 0.1, days: 14 }, error: { share: 0.05, days: 3 } };

/** @param folder on the disk of the database; null if the database is on another machine */
export function storageProbes(db: Database, folder: string | null, limits = diskLimits): readonly Probe[] {
  return [
    { name: 'partitions', run: () => checkPartitions(db) },
    { name: 'dead_rows', run: () => checkDeadRows(db) },
    { name: 'disk', run: () => checkDisk(db, folder, limits) },
  ];
}

async function checkPartitions(db: Database): Promise<Check> {
  const { rows } = await sql<{ parent: string; days_ahead: number | null; pending: number }>`
    select parent, (max(day) filter (where not is_detaching) - (now() at time zone 'utc')::date)::int as days_ahead,
      count(*) filter (where is_detaching)::int as pending
    from unnest(${dayTables}::text[]) as parent left join lateral (
      select to_date(right(relname, 8), 'YYYYMMDD') as day, inhdetachpending as is_detaching
      from pg_inherits join pg_class on pg_class.oid = inhrelid where inhparent = to_regclass(parent)
    ) as partition on true
    group by parent order by 2 nulls first`.execute(db);
  const [worst] = rows as [(typeof rows)[number]];
  const days = worst.days_ahead;
  const values = { days_ahead: days, detaching: rows.reduce((sum, { pending }) => sum + pending, 0) };
  const advice =
    'A server creates them every few minutes. If one runs, look for "partitions" in its log, and for sessions that hold locks on the table.';
  if (days === null || days < 0) {
    return check('partitions', 'error', `${worst.parent} has no partition for today`, advice, values);
  }
  if (days < daysAheadMin) {
    return check(
      'partitions',
      'warning',
      `the partitions of ${worst.parent} end ${days === 0 ? 'today' : 'tomorrow'}`,
      advice,
      values,
    );
  }
  if (values.detaching > 1) {
    return check(
      'partitions',
      'warning',
      `${values.detaching} expired partitions cannot be dropped`,
      'Look for sessions that hold locks on them, such as a dump.',
      values,
    );
  }
  return check('partitions', 'ok', `there are partitions for the next ${days} days`, null, values);
}

async function checkDeadRows(db: Database): Promise<Check> {
  const { rows } = await sql<{ name: string; dead: number; live: number; vacuumed_at: Date | null }>`
    select relname as name, n_dead_tup::float8 as dead, n_live_tup::float8 as live,
      greatest(last_vacuum, last_autovacuum) as vacuumed_at
    from pg_stat_user_tables
    where schemaname = current_schema() and n_dead_tup > ${deadRowsMin} and n_dead_tup > n_live_tup
    order by n_dead_tup desc limit 5`.execute(db);
  const [worst] = rows;
  if (worst === undefined) return check('dead_rows', 'ok', 'no table has many dead rows');
  const when = worst.vacuumed_at === null ? 'never' : worst.vacuumed_at.toISOString();
  return check(
    'dead_rows',
    'warning',
    `${worst.name} has ${worst.dead} dead rows and ${worst.live} live ones; its last vacuum was ${when}`,
    'Something keeps vacuum from removing them: see database.transactions and database.slots. Otherwise run vacuum on the table.',
    { table: worst.name, dead: worst.dead, live: worst.live, tables: rows.length },
  );
}

interface Sizes {
  total: string;
  yesterday: string | null;
  oldest: string | null;
  days: number;
}

/**
 * Bytes that a day adds: the partitions of yesterday, less those that retention drops for it. Without a whole day, unknown.
 */
async function dailyGrowth(db: Database): Promise<{ total: number; perDay: number | null }> {
  const { rows } = await sql<Sizes>`
    with partitions as (
      select to_date(right(relname, 8), 'YYYYMMDD') as day, sum(pg_total_relation_size(pg_class.oid)) as bytes
      from pg_inherits join pg_class on pg_class.oid = inhrelid
      where inhparent in (select to_regclass(name) from unnest(${dayTables}::text[]) as name)
      group by 1
    ),
    past as (select * from partitions where day < (now() at time zone 'utc')::date)
    select pg_database_size(current_database())::text as total,
      (select bytes::text from past where day = (now() at time zone 'utc')::date - 1
        and exists (select from events where day = past.day)) as yesterday,
      (select bytes::text from past order by day limit 1) as oldest,
      (select count(*)::int from past) as days`.execute(db);
  const { total, yesterday, oldest, days } = rows[0] as Sizes;
  if (yesterday === null) return { total: Number(total), perDay: null };
  const dropped = days > (await readDeliveriesDays(db)) - 1 ? Number(oldest) : 0;
  return { total: Number(total), perDay: Math.max(0, Number(yesterday) - dropped) };
}

async function checkDisk(db: Database, folder: string | null, limits: typeof diskLimits): Promise<Check> {
  const { total, perDay } = await dailyGrowth(db);
  const growth = perDay === null ? '' : `, and grows by ${bytesText(perDay)} a day`;
  const values = { database_bytes: total, bytes_per_day: perDay };
  if (folder === null || !existsSync(folder)) {
    return check(
      'disk',
      'unknown',
      `the database has ${bytesText(total)}${growth}; the disk of its machine is not visible from here`,
      'Watch the free space of the disk of PostgreSQL.',
      values,
    );
  }
  const { bavail, blocks, bsize } = await statfs(folder);
  const free = bavail * bsize;
  const share = bavail / blocks;
  const days = perDay === null || perDay === 0 ? null : Math.floor(free / perDay);
  const isUnder = (limit: { share: number; days: number }) =>
    share < limit.share || (days !== null && days < limit.days);
  const left = days === null ? '' : ` (${countText(days, 'day')} at the rate of yesterday)`;
  const summary = `the database has ${bytesText(total)}${growth}; its disk has ${bytesText(free)} free${left}`;
  const all = { ...values, free_bytes: free, days_left: days };
  const advice = 'Enlarge the disk, or delete other files. PostgreSQL stops when the disk is full.';
  if (isUnder(limits.error)) return check('disk', 'error', summary, advice, all);
  if (isUnder(limits.warning)) return check('disk', 'warning', summary, advice, all);
  return check('disk', 'ok', summary, null, all);
}
