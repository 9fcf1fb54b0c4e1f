/** Connections that are lost while idle, or fall silent. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import { test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import {
  type Database,
  isDatabaseUnavailable,
  openDatabase,
  poolStatus,
  withResultsWithin,
} from '../../src/database/database.ts';
import { openEngineDatabases } from '../../src/webhooks/engine/engine_databases.ts';
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

test('a statement with its own limit leaves a silent connection, and idle ones are not used again', async (t) => {
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

test('a connection without a result is closed soon after the time that its statements may take', async (t) => {
  const database = await createDatabase();
  const proxy = await startDatabaseProxy(database.url);
  const open = (statementTimeoutMs: number) =>
    openDatabase({ connectionString: proxy.url, connectionsMax: 1, statementTimeoutMs });
  const [short, long] = [open(1_000), open(60_000)];
  t.after(async () => {
    for (const db of [short, long]) await db.destroy();
    await proxy.close();
    await database.drop();
  });
  const ask = (db: Database) => sql`select ${1}::int`.execute(db);
  await Promise.all([ask(short), ask(long)]);
  proxy.freeze();
  let isLeft = false;
  const silent = ask(long).then(() => {
    isLeft = true;
  });
  const error: unknown = await ask(short).catch((reason: unknown) => reason);
  assert.ok(isDatabaseUnavailable(error), String(error));
  assert.equal(isLeft, false);
  proxy.mend();
  await silent;
});

test('a connection names only what poolers accept, and makes its settings by a statement', async (t) => {
  const database = await createDatabase();
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = new URL(database.url);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  url.searchParams.delete('host');
  const events = { onIdleError: () => {}, onConnect: async () => {} };
  const pooled = openEngineDatabases(url.href, 3, events);
  const direct = openEngineDatabases(database.url, 3, events);
  t.after(async () => {
    for (const db of [...Object.values(pooled), ...Object.values(direct)]) await db.destroy();
    server.close();
    await database.drop();
  });
  const refused = sql`select`.execute(pooled.slowDb).catch(() => {});
  const [socket] = await once(server, 'connection');
  const [startup] = (await once(socket, 'data')) as [Buffer];
  socket.destroy();
  await refused;
  // A length, the version of the protocol, and pairs that end with an empty name.
  const words = startup.toString('latin1', 8).split('\0');
  const names = words.filter((word, index) => index % 2 === 0 && word !== '');
  assert.deepEqual(names.sort(), ['application_name', 'client_encoding', 'database', 'user']);
  const { rows } = await sql<{ settings: string }>`
    select concat_ws(' ', current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),
      current_setting('enable_seqscan'), current_setting('idle_session_timeout'), current_setting('lock_timeout')) as settings`.execute(
    direct.slowDb,
  );
  assert.equal(rows[0]?.settings, '1min 10s off 45s 1s');
});
