/** Publishing by SQL: `kill -9` of the application or the server neither loses nor duplicates a committed event. */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { connectApplication } from '../support/publishing/sql_publisher.ts';
import { startProcess } from '../support/servers/process.ts';
import { freePort, type TestServer, testSecret } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const dying = fileURLToPath(new URL('../support/publishing/killed_publisher.ts', import.meta.url));

async function setUp(t: TestContext) {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 3 });
  const settings = {
    PORT: String(await freePort()),
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    LOG_LEVEL: 'error',
  };
  const start = async () => {
    const server = startProcess(t, ['start'], settings);
    await server.ready();
    return server;
  };
  const account = await createTestAccount({ db } as TestServer);
  const eventIds = async () =>
    (
      await sql<{
        id: string;
      }>`select id from events where account_id = ${account.id} order by position`.execute(db)
    ).rows.map(({ id }) => id);
  return { database, db, start, account, eventIds };
}

test('an event exists exactly when its change does after kill -9 of the application at commit', async (t) => {
  const { database, db, start, account } = await setUp(t);
  await start();
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  await sql`create table orders (mark text)`.execute(db);
  const url = new URL(database.url);
  url.searchParams.set('options', '-c search_path=nuncio');
  for (let number = 0; number < 6; number += 1) {
    const when = number % 2 === 0 ? 'before' : 'after';
    const child = spawn(process.execPath, [dying, url.href, account.id, String(number), when], {
      stdio: 'inherit',
    });
    const [, signal] = await once(child, 'exit');
    assert.equal(signal, 'SIGKILL');
  }
  const { rows } = await until(
    () =>
      sql<{ orders: string; events: string }>`
        select (select string_agg(mark, ',' order by mark) from orders) as orders,
          (select string_agg(replace(body::json->>'ref', 'refs/heads/', ''), ',' order by body) from events
            where account_id = ${account.id}) as events`.execute(db),
    ({ rows: [row] }) => row?.events?.split(',').length === 3,
  );
  assert.deepEqual(rows, [{ orders: '1,3,5', events: '1,3,5' }]);
});

test('each event arrives once and in order after kill -9 of the server within an intake', async (t) => {
  const { database, db, start, account, eventIds } = await setUp(t);
  const application = await connectApplication(t, database.url);
  const blocker = await connectApplication(t, database.url);
  const published: string[] = [];
  for (let round = 0; round < 2; round += 1) {
    const server = await start();
    // The lock stops the server between taking rows out of the inbox and writing their events.
    await blocker.query('begin');
    await blocker.query('lock table nuncio.events in exclusive mode');
    const { rows } = await application.query(
      `select nuncio.publish('push', $1, '{"ref":"refs/heads/x","commits":[],"repository":{"name":"example"}}',
         case when n % 2 = 0 then $2 || n end) as id
       from generate_series(1, 1500) as n`,
      [account.id, `round-${round}-`],
    );
    published.push(...rows.map(({ id }) => id));
    await until(
      async () =>
        (
          await sql`
            select from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock' and query ~ 'insert into events'`.execute(
            db,
          )
        ).rows.length,
      (count) => count > 0,
    );
    assert.equal(await server.end('SIGKILL'), 'SIGKILL');
    await blocker.query('rollback');
  }
  assert.ok((await eventIds()).length < published.length, 'the server died too late');
  await start();
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  await until(
    async () => (await eventIds()).length,
    (count) => count >= published.length,
  );
  assert.deepEqual(await eventIds(), published);
  assert.equal((await sql`select from inbox`.execute(db)).rows.length, 0);
});
