/** Connections that are lost while idle, or fall silent. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import {
  isDatabaseUnavailable,
  openDatabase,
  poolStatus,
  withResultsWithin,
} from '../../src/database/database.ts';
import { createDatabase } from '../support/database/database.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { until } from '../support/webhooks/apps.ts';

test('the log of a lost connection has the error, and nothing of the connection', async (t) => {
  const database = await createDatabase();
  const lines: string[] = [];
  const logger = pino({ base: null }, { write: (line: string) => lines.push(line) });
  const onIdleError = (error: Error) => logger.warn({ err: error }, 'database connection lost');
  const idle = openDatabase({ connectionString: database.url, connectionsMax: 1, onIdleError });
  const other = openDatabase({ connectionString: database.url, connectionsMax: 1 });
  t.after(async () => {
    await idle.destroy();
    await other.destroy();
    await database.drop();
  });
  const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(idle);
  await sql`select pg_terminate_backend(${rows[0]?.pid})`.execute(other);
  await until(
    async () => lines.length,
    (count) => count > 0,
  );
  const { err } = JSON.parse(lines[0] as string);
  assert.match(err.message, /terminating connection/);
  assert.equal(err.client, undefined);
  assert.doesNotMatch(lines[0] as string, /secretKey|parsedStatements|connectionParameters/);
});

test('a statement with a limit of its own leaves a silent connection, and idle ones are not used any more', async (t) => {
  const database = await createDatabase();
  const proxy = await startDatabaseProxy(database.url);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 3 });
  t.after(async () => {
    await proxy.close();
    await db.destroy();
    await database.drop();
  });
  const ask = (on: typeof db) => sql<{ n: number }>`select ${1}::int as n, pg_sleep(0.1)`.execute(on);
  await Promise.all([ask(db), ask(db), ask(db)]);
  assert.equal(poolStatus(db).idle, 3);
  // New connections work.
  proxy.freeze();
  // With the limit of the pool, a minute.
  let isLeft = false;
  const silent = ask(db).catch(() => {
    isLeft = true;
  });
  const error: unknown = await ask(withResultsWithin(1_000, db)).catch((reason: unknown) => reason);
  assert.ok(isDatabaseUnavailable(error), String(error));
  assert.equal((await ask(db)).rows[0]?.n, 1);
  assert.equal(isLeft, false);
  proxy.mend();
  await silent;
});
