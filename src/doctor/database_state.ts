/** The state of PostgreSQL: its version, its clock, its transactions, its replicas and its archive. */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { bytesText, type Check, check, countText, durationText, type Probe } from './report.ts';

/** The oldest version that the migrations support. */
const majorMin = 15;
/** From when on a check is a warning or an error. Durations in seconds. */
export interface DatabaseLimits {
  /** Tokens allow little clock skew, and logs of different clocks are hard to read. */
  skew: { warning: number; error: number };
  transaction: { warning: number; error: number };
  /** Of 2^31. PostgreSQL refuses writes some millions before the end. */
  transactionIds: { warning: number; error: number };
  lag: { seconds: number; bytes: number };
  /** WAL that a replication slot without a standby keeps. */
  retainedWalBytes: number;
}

export const databaseLimits: DatabaseLimits = {
  skew: { warning: 2, error: 30 },
  transaction: { warning: 300, error: 3_600 },
  transactionIds: { warning: 1_000_000_000, error: 1_800_000_000 },
  lag: { seconds: 30, bytes: 256 * 1_048_576 },
  retainedWalBytes: 4 * 1_073_741_824,
};

export function databaseStateProbes(db: Database, limits = databaseLimits): readonly Probe[] {
  return [
    { name: 'database.version', run: () => checkVersion(db) },
    { name: 'clock', run: () => checkClock(db, limits) },
    { name: 'database.transactions', run: () => checkTransactions(db, limits) },
    { name: 'database.transaction_ids', run: () => checkTransactionIds(db, limits) },
    { name: 'database.replication', run: () => checkReplication(db, limits) },
    { name: 'database.slots', run: () => checkSlots(db, limits) },
    { name: 'database.archive', run: () => checkArchive(db) },
  ];
}

async function checkVersion(db: Database): Promise<Check> {
  const { rows } = await sql<{ number: number; shown: string; is_standby: boolean }>`
    select current_setting('server_version_num')::int as number, current_setting('server_version') as shown,
      pg_is_in_recovery() as is_standby`.execute(db);
  const { number, shown, is_standby: isStandby } = rows[0] as (typeof rows)[number];
  const values = { version: shown };
  const advice = 'Let DATABASE_URL name the primary.';
  if (isStandby) return check('database.version', 'error', 'the database is a standby', advice, values);
  if (number < majorMin * 10_000) {
    return check(
      'database.version',
      'error',
      `PostgreSQL ${shown} is too old`,
      `Upgrade PostgreSQL to ${majorMin} or later.`,
      values,
    );
  }
  return check('database.version', 'ok', `PostgreSQL ${shown}, a primary`, null, values);
}

/** Compares the clocks of this machine and of the database. The time of the statement counts half. */
async function checkClock(db: Database, { skew }: DatabaseLimits): Promise<Check> {
  const before = Date.now();
  const { rows } = await sql<{ now: number }>`
    select (extract(epoch from clock_timestamp()) * 1000)::float8 as now`.execute(db);
  const seconds = ((rows[0]?.now ?? before) - (before + Date.now()) / 2) / 1_000;
  const values = { difference_seconds: Math.round(seconds * 1_000) / 1_000 };
  const away = Math.abs(seconds);
  if (away < skew.warning) {
    return check('clock', 'ok', 'the clocks of this machine and of the database agree', null, values);
  }
  return check(
    'clock',
    away < skew.error ? 'warning' : 'error',
    `the clock of this machine is ${durationText(away)} ${seconds > 0 ? 'behind' : 'ahead of'} that of the database`,
    'Synchronize both clocks (chrony, systemd-timesyncd). Tokens and signatures are refused when clocks differ.',
    values,
  );
}

async function checkTransactions(db: Database, { transaction }: DatabaseLimits): Promise<Check> {
  const { rows } = await sql<{ seconds: number | null; application: string | null; prepared: number }>`
    select extract(epoch from now() - oldest.xact_start)::float8 as seconds, oldest.application_name as application,
      (select count(*)::int from pg_prepared_xacts
        where prepared < now() - make_interval(secs => ${transaction.warning})) as prepared
    from (select) as one left join lateral (
      select xact_start, application_name from pg_stat_activity
      where datname = current_database() and xact_start is not null and pid <> pg_backend_pid()
        and backend_type = 'client backend'
      order by xact_start limit 1
    ) as oldest on true`.execute(db);
  const { seconds, application, prepared } = rows[0] as (typeof rows)[number];
  const values = { oldest_seconds: seconds === null ? null : Math.round(seconds), prepared };
  const advice =
    'Find it in pg_stat_activity and end it (pg_terminate_backend). Until then PostgreSQL cannot remove dead rows, and fan-out becomes slow.';
  if (prepared > 0) {
    const what = `${countText(prepared, 'prepared transaction')} of more than ${durationText(transaction.warning)}`;
    return check(
      'database.transactions',
      'warning',
      what,
      'Commit or roll them back: see pg_prepared_xacts.',
      values,
    );
  }
  if (seconds === null || seconds < transaction.warning) {
    return check('database.transactions', 'ok', 'no transaction has been open for long', null, values);
  }
  return check(
    'database.transactions',
    seconds < transaction.error ? 'warning' : 'error',
    `a transaction of ${JSON.stringify(application ?? '')} has been open for ${durationText(seconds)}`,
    advice,
    values,
  );
}

async function checkTransactionIds(db: Database, { transactionIds }: DatabaseLimits): Promise<Check> {
  const { rows } = await sql<{ age: number }>`
    select age(datfrozenxid)::int as age from pg_database where datname = current_database()`.execute(db);
  const age = rows[0]?.age ?? 0;
  const name = 'database.transaction_ids';
  if (age < transactionIds.warning) {
    return check(name, 'ok', 'transaction ids are frozen in time', null, { age });
  }
  return check(
    name,
    age < transactionIds.error ? 'warning' : 'error',
    `${Math.round(age / 1e6)} of 2,147 million transaction ids are used up`,
    'Find what keeps vacuum from freezing: long transactions, replication slots, disabled autovacuum. Then run vacuum freeze.',
    { age },
  );
}

async function checkReplication(db: Database, { lag }: DatabaseLimits): Promise<Check> {
  const { rows } = await sql<{
    name: string;
    state: string | null;
    seconds: number | null;
    bytes: string | null;
  }>`
    select application_name as name, state, extract(epoch from replay_lag)::float8 as seconds,
      pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::text as bytes
    from pg_stat_replication
    -- A base backup that is being taken is no standby.
    where state is null or state in ('streaming', 'catchup')
    order by 4 desc nulls first limit 10`.execute(db);
  const name = 'database.replication';
  if (rows.length === 0) {
    return (await waitsForStandby(db))
      ? check(
          name,
          'error',
          'synchronous_standby_names is set, but no standby is connected: every commit waits',
          'Start a standby. To go on without one: alter system reset synchronous_standby_names; select pg_reload_conf().',
          { standbys: 0 },
        )
      : check(name, 'ok', 'no standby is connected', null, { standbys: 0 });
  }
  if (rows.some(({ state }) => state === null)) {
    return check(
      name,
      'unknown',
      'the lag of the standbys is not visible to the database user',
      'Grant it the role pg_monitor.',
      { standbys: rows.length },
    );
  }
  const worst = {
    seconds: Math.max(...rows.map(({ seconds }) => seconds ?? 0)),
    bytes: Math.max(...rows.map(({ bytes }) => Number(bytes ?? 0))),
  };
  const values = { standbys: rows.length, lag_seconds: Math.round(worst.seconds), lag_bytes: worst.bytes };
  if (worst.seconds < lag.seconds && worst.bytes < lag.bytes) {
    return check(name, 'ok', `${countText(rows.length, 'standby', 'standbys')}, up to date`, null, values);
  }
  return check(
    name,
    'warning',
    `the standby ${JSON.stringify(rows[0]?.name ?? '')} is ${bytesText(worst.bytes)} behind`,
    'Check its disk and network. A failover now loses what it has not received.',
    values,
  );
}

async function waitsForStandby(db: Database): Promise<boolean> {
  const { rows } = await sql<{ waits: boolean }>`
    select current_setting('synchronous_standby_names') <> ''
      and current_setting('synchronous_commit') not in ('off', 'local') as waits`.execute(db);
  return rows[0]?.waits === true;
}

async function checkSlots(db: Database, { retainedWalBytes }: DatabaseLimits): Promise<Check> {
  const { rows } = await sql<{ name: string; active: boolean; status: string | null; bytes: string | null }>`
    select slot_name as name, active, wal_status as status, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::text as bytes
    from pg_replication_slots order by restart_lsn nulls last`.execute(db);
  const name = 'database.slots';
  const bad = rows.find(
    ({ active, status, bytes }) => status === 'lost' || (!active && Number(bytes) > retainedWalBytes),
  );
  const values = { slots: rows.length, inactive: rows.filter(({ active }) => !active).length };
  if (bad === undefined) return check(name, 'ok', 'no replication slot keeps much WAL', null, values);
  return bad.status === 'lost'
    ? check(
        name,
        'warning',
        `the replication slot ${bad.name} has lost WAL`,
        'Set its standby up again, and drop the slot (pg_drop_replication_slot).',
        values,
      )
    : check(
        name,
        'error',
        `the unused replication slot ${bad.name} keeps ${bytesText(Number(bad.bytes))} of WAL`,
        'Drop it (pg_drop_replication_slot), or start its standby: it fills the disk of the database.',
        { ...values, retained_bytes: Number(bad.bytes) },
      );
}

async function checkArchive(db: Database): Promise<Check> {
  const { rows } = await sql<{ mode: string; is_failing: boolean; failed_wal: string | null }>`
    select current_setting('archive_mode') as mode, last_failed_wal as failed_wal,
      coalesce(last_failed_time > coalesce(last_archived_time, '-infinity'), false) as is_failing
    from pg_stat_archiver`.execute(db);
  const { mode, is_failing: isFailing, failed_wal: wal } = rows[0] as (typeof rows)[number];
  const name = 'database.archive';
  const values = { mode };
  if (mode === 'off')
    return check(
      name,
      'ok',
      'WAL is not archived',
      'Without an archive, make backups (docs/backup.md).',
      values,
    );
  if (!isFailing) return check(name, 'ok', 'WAL is archived', null, values);
  return check(
    name,
    'error',
    `WAL is not archived since ${wal}`,
    'Read the log of PostgreSQL and mend archive_command: pg_wal fills the disk, and point-in-time recovery ends before that file.',
    values,
  );
}
