/** The intake has a lease of the inbox: a server that is paused or cut off in a pass keeps nobody's events waiting, and stores nothing twice. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { Lease } from '../../src/database/lease.ts';
import type { Notifications } from '../../src/database/notifications.ts';
import { createCatalogue } from '../../src/events/catalogue.ts';
import { type ReadRow, readBatch, takeRows } from '../../src/events/inbox.ts';
import { Intake } from '../../src/events/intake.ts';
import { loadPlatform } from '../../src/platform.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { connectApplication } from '../support/publishing/sql_publisher.ts';
import type { TestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const catalogue = createCatalogue((await loadPlatform(null)).eventKinds);

/** Two servers that take events in: the first one through a proxy. */
async function setUp(t: TestContext) {
  const intakes: Intake[] = [];
  const { db, url } = await openTestDatabase(t, 4);
  const proxy = await startDatabaseProxy(url);
  const proxied = openDatabase({ connectionString: proxy.url, connectionsMax: 4 });
  t.after(async () => {
    proxy.cut();
    await Promise.all(intakes.map((intake) => intake.stop()));
    await proxied.destroy();
    await proxy.close();
  });
  const start = (own: Database) => {
    const intake = new Intake({
      db: own,
      // Without notifications the intake looks by itself, and only `listen` is called: a real one would need connections of its own.
      notifications: { listen: () => {} } as unknown as Notifications,
      catalogue,
      onPublished: () => {},
      onTaken: () => {},
      onError: () => {},
    });
    intakes.push(intake);
    intake.start();
  };
  const { id } = await createTestAccount({ db } as TestServer);
  const publish = (count: number, bytes: number) =>
    sql`
    select publish('push', ${id}, jsonb_build_object('ref', 'refs/heads/' || n, 'repository', '{"name":"x"}'::jsonb,
      'commits', jsonb_build_array(jsonb_build_object('id', '1', 'message', '', 'more', repeat('x', ${bytes}::int)))))
    from generate_series(1, ${count}::int) as n`.execute(db);
  const stored = async () => {
    const { rows } = await sql<{ mark: string }>`
      select replace(body::json->>'ref', 'refs/heads/', '') as mark from events where account_id = ${id} order by position`.execute(
      db,
    );
    return rows.map(({ mark }) => Number(mark));
  };
  return { db, url, proxy, proxied, start, publish, stored };
}

const numbers = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

/** Waits until a session of another server is in this state. */
async function untilSession(db: Database, state: ReturnType<typeof sql>): Promise<void> {
  await until(
    async () =>
      (await sql`select from pg_stat_activity where datname = current_database() and ${state}`.execute(db))
        .rows.length,
    (count) => count > 0,
  );
}

test('another server takes large events in while one does not read the batch that it asked for', async (t) => {
  const { db, proxy, proxied, start, publish, stored } = await setUp(t);
  start(proxied);
  await publish(1, 10);
  await until(stored, ({ length }) => length === 1);
  // The batch is larger than the buffers between the database and the server.
  proxy.slow(5_000);
  await publish(4, 200_000);
  await untilSession(db, sql`wait_event = 'ClientWrite'`);
  proxy.freeze();
  // A transaction that waits for its server has written nothing, and so has no lock that others wait for.
  const { rows } = await sql<{ is_reading: boolean }>`
    select backend_xid is null as is_reading from pg_stat_activity
    where datname = current_database() and wait_event = 'ClientWrite'`.execute(db);
  assert.deepEqual(rows, [{ is_reading: true }]);
  start(db);
  const marks = await until(stored, ({ length }) => length >= 5);
  assert.deepEqual(marks, [1, ...numbers(4)]);
});

test('the intake leaves a connection that has fallen silent long before the pool would', async (t) => {
  const { proxy, proxied, start, publish, stored } = await setUp(t);
  start(proxied);
  await publish(1, 10);
  await until(stored, ({ length }) => length === 1);
  await Promise.all(numbers(3).map(() => sql`select pg_sleep(0.2)`.execute(proxied)));
  // New connections work.
  proxy.freeze();
  let isLeft = false;
  const silent = sql`select 1`.execute(proxied).catch(() => {
    isLeft = true;
  });
  await publish(1, 10);
  await until(stored, ({ length }) => length === 2);
  assert.equal(isLeft, false);
  proxy.cut();
  await silent;
});

test('a server that is cut off before its commit stores nothing, and another one stores each event once', async (t) => {
  const { db, url, proxy, proxied, start, publish, stored } = await setUp(t);
  start(proxied);
  const blocker = await connectApplication(t, url);
  await blocker.query('begin; lock table nuncio.events in exclusive mode');
  await publish(20, 10);
  await untilSession(db, sql`wait_event_type = 'Lock' and query ~ 'insert into events'`);
  start(db);
  proxy.freeze();
  await blocker.query('rollback');
  await until(stored, ({ length }) => length >= 20);
  proxy.mend();
  await publish(20, 10);
  assert.deepEqual(await until(stored, ({ length }) => length >= 40), [...numbers(20), ...numbers(20)]);
});

test('rows are taken by the holder of the lease, and only if all of them still exist', async (t) => {
  const { db, publish } = await setUp(t);
  await publish(3, 10);
  const lease = new Lease({ db, name: 'intake', holder: 'one', onError: () => {} });
  t.after(async () => lease.forget());
  const take = (rows: ReadRow[]) =>
    db.transaction().execute(async (tx) => {
      const isTaken = await takeRows(tx, lease.held, rows);
      if (!isTaken) await sql`rollback; begin`.execute(tx);
      return isTaken;
    });
  const { rows } = await readBatch(db, '', 1_000);
  assert.equal(rows.length, 3);
  assert.equal(await take(rows), false);
  assert.equal(await lease.acquire(), 'self');
  // A server of an earlier version takes rows with a lock of the lease's row alone.
  await sql`delete from inbox where id = ${rows[1]?.id}::bigint`.execute(db);
  assert.equal(await take(rows), false);
  // Another row gets the place.
  await sql`vacuum inbox`.execute(db);
  await publish(1, 10);
  const next = await readBatch(db, '', 1_000);
  assert.equal(next.rows.length, 3);
  assert.equal(next.rows[2]?.place, rows[1]?.place);
  assert.equal(await take(rows), false);
  assert.equal(await take(next.rows), true);
  assert.deepEqual((await readBatch(db, '', 1_000)).rows, []);
});
