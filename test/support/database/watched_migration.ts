/** Runs `nuncio migrate` and reports which locks it took, and whether it let others continue while it had to wait. */

import { sql } from 'kysely';
import pg from 'pg';
import type { Database } from '../../../src/database/database.ts';
import type { CommandResult } from '../servers/process.ts';
import { until } from '../webhooks/apps.ts';

export interface WatchedMigration {
  result: CommandResult;
  /** Tables that were locked against readers. Partitions count as their table. */
  exclusive: Set<string>;
  /** Deadlocks that PostgreSQL ended by cancelling a transaction. */
  deadlocks: number;
}

/**
 * @param databaseUrl of a role that may create event triggers
 * @param whileBlocked runs while a foreign transaction keeps the migration from its locks
 */
export async function watchMigration(
  db: Database,
  databaseUrl: string,
  run: () => Promise<CommandResult>,
  whileBlocked: () => Promise<void>,
): Promise<WatchedMigration> {
  await recordLocks(db);
  const before = await countDeadlocks(db);
  const holder = new pg.Client({ connectionString: databaseUrl });
  await holder.connect();
  try {
    await holder.query('begin');
    await holder.query('select from nuncio.subscriptions limit 1');
    const running = run();
    // The second attempt is on another connection.
    const seen = new Set<number>();
    await until(
      async () => {
        for (const pid of await waitingMigrations(db)) seen.add(pid);
        return seen.size;
      },
      (count) => count >= 2,
    );
    await whileBlocked();
    await holder.query('commit');
    const result = await running;
    const { rows } = await sql<{ name: string }>`
      select distinct regexp_replace(name, '_[0-9]{8}$', '') as name from watch.locks`.execute(db);
    const exclusive = new Set(rows.map(({ name }) => name));
    return { result, exclusive, deadlocks: (await countDeadlocks(db)) - before };
  } finally {
    await holder.end();
    await sql`drop event trigger watch_locks`.execute(db);
  }
}

/** Locks are kept until the end of the transaction, so the last statement that changes a schema sees them all. */
async function recordLocks(db: Database): Promise<void> {
  await sql`create schema watch`.execute(db);
  await sql`create table watch.locks (name text)`.execute(db);
  await sql`
    create function watch.record() returns event_trigger language plpgsql as $$
    begin
      insert into watch.locks
      select c.relname from pg_locks l join pg_class c on c.oid = l.relation
      where l.pid = pg_backend_pid() and l.granted and l.mode = 'AccessExclusiveLock'
        and c.relkind in ('r', 'p') and c.relnamespace <> 'watch'::regnamespace;
    end $$`.execute(db);
  await sql`create event trigger watch_locks on ddl_command_end execute function watch.record()`.execute(db);
}

async function waitingMigrations(db: Database): Promise<number[]> {
  const { rows } = await sql<{ pid: number }>`
    select a.pid from pg_stat_activity a join pg_locks l on l.pid = a.pid and not l.granted
    where a.application_name = 'nuncio migrate' and a.datname = current_database()`.execute(db);
  return rows.map(({ pid }) => pid);
}

async function countDeadlocks(db: Database): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select deadlocks::int as count from pg_stat_database where datname = current_database()`.execute(db);
  return rows[0]?.count ?? 0;
}
