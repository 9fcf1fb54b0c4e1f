/** Locks that others hold: a backup, or a node that is paused within a transaction. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

/** Names of all partitions of a table, oldest first. */
async function partitionsOf(table: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select inhrelid::regclass::text as name from pg_inherits where inhparent = ${table}::regclass order by 1`.execute(
    server.db,
  );
  return rows.map(({ name }) => name);
}

/** Holds ACCESS SHARE on the whole log, as `pg_dump` does, while `work` runs. */
function whileDumping(work: () => Promise<void>): Promise<void> {
  return server.db.transaction().execute(async (tx) => {
    await sql`lock table events, deliveries, attempts in access share mode`.execute(tx);
    const beat = setInterval(() => void sql`select 1`.execute(tx).catch(() => {}), 1_000);
    try {
      await work();
    } finally {
      clearInterval(beat);
    }
  });
}

test('partitions are created and events delivered while a backup reads the log', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const before = await partitionsOf('events');
  const last = before.at(-1) as string;
  await sql`drop table ${sql.id(last)}`.execute(server.db);
  await whileDumping(async () => {
    assert.equal(await applyRetention(server.db), true);
    assert.deepEqual(await partitionsOf('events'), before);
    await publish(publisher, app.account, ['during the backup']);
    await subscriber.waitFor(1);
  });
});

test('a day that a backup reads is dropped after the backup and blocks nobody until then', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await sql`
    create table events_20200102 partition of events for values from ('2020-01-02') to ('2020-01-03')`.execute(
    server.db,
  );
  await whileDumping(async () => {
    assert.equal(await applyRetention(server.db), false);
    await publish(publisher, app.account, ['during the backup']);
    await subscriber.waitFor(1);
  });
  assert.equal(await applyRetention(server.db), true);
  const { rows } = await sql`select to_regclass('events_20200102') as old`.execute(server.db);
  assert.deepEqual(rows, [{ old: null }]);
});

test('two nodes that maintain days concurrently do not interfere', async () => {
  await sql`
    create table attempts_20200103 partition of attempts for values from ('2020-01-03') to ('2020-01-04')`.execute(
    server.db,
  );
  const last = (await partitionsOf('deliveries')).at(-1) as string;
  await sql`drop table ${sql.id(last)}`.execute(server.db);
  await Promise.all(Array.from({ length: 4 }, () => applyRetention(server.db)));
  assert.equal(await applyRetention(server.db), true);
  assert.equal((await partitionsOf('deliveries')).at(-1), last);
  const { rows } = await sql`select to_regclass('attempts_20200103') as old`.execute(server.db);
  assert.deepEqual(rows, [{ old: null }]);
});

test('fan-out continues when a client holds a lane’s row lock', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { promise: isLocked, resolve: locked } = Promise.withResolvers<void>();
  const { promise: isDelivered, resolve: delivered } = Promise.withResolvers<void>();
  const abandoned = server.db.transaction().execute(async (tx) => {
    await lockLane(tx, id);
    locked();
    // The client stays silent, like a stopped process.
    await isDelivered;
  });
  // The database ends the transaction.
  const ended = assert.rejects(abandoned);
  await isLocked;
  await publish(publisher, app.account, ['behind the lock']);
  await subscriber.waitFor(1);
  delivered();
  await ended;
});

async function lockLane(tx: Database, subscription: string): Promise<void> {
  const { rows } = await sql`
    select from lanes where id = (select lane from subscriptions where id = ${subscription}) for update`.execute(
    tx,
  );
  assert.equal(rows.length, 1);
}
