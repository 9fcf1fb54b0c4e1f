/** Nodes that die or freeze: others take their lanes within seconds, whatever the database's clock says. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { silentNodeAfterMs } from '../../../src/grants/delivery_hold.ts';
import { deadNodeAfterMs, Peers } from '../../../src/webhooks/lanes/peers.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { runCommandProcess, startProcess } from '../../support/servers/process.ts';
import { freePort, startTestServer, testSecret } from '../../support/servers/server.ts';
import { startTwoNodes } from '../../support/servers/two_nodes.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

test('a peer is dead when its counter stands still for seven seconds of gapless observation', () => {
  const peers = new Peers();
  const deadAt = (at: number, heartbeats: string) =>
    peers.observe([{ id: '1', heartbeats }], at, at + 10).dead.map(({ id }) => id);
  assert.deepEqual(deadAt(0, '5'), []);
  for (let at = 1_000; at < deadNodeAfterMs; at += 1_000) assert.deepEqual(deadAt(at, '5'), []);
  // The counter advanced, so the observation starts again.
  assert.deepEqual(deadAt(deadNodeAfterMs, '6'), []);
  for (let at = 1_000; at < deadNodeAfterMs; at += 1_000) {
    assert.deepEqual(deadAt(deadNodeAfterMs + at, '6'), []);
  }
  // The observation has a gap: the observer cannot tell whether the counter advanced in that time.
  assert.deepEqual(deadAt(100_000, '6'), []);
  for (let at = 1_000; at <= deadNodeAfterMs; at += 1_000) assert.deepEqual(deadAt(100_000 + at, '6'), []);
  assert.deepEqual(deadAt(100_000 + deadNodeAfterMs + 1_000, '6'), ['1']);
});

test('a peer is silent when its counter stands still longer than nodes send without a heartbeat', () => {
  const peers = new Peers();
  const silentAt = (at: number, heartbeats: string) =>
    peers.observe([{ id: '1', heartbeats }], at, at + 10).silent.map(({ id }) => id);
  for (const at of [0, 1_000, 2_000, 3_000]) assert.deepEqual(silentAt(at, '5'), []);
  assert.deepEqual(silentAt(4_000, '6'), []);
  for (const at of [5_000, 6_000, 7_000, 4_010 + silentNodeAfterMs - 1])
    assert.deepEqual(silentAt(at, '6'), []);
  assert.deepEqual(silentAt(4_010 + silentNodeAfterMs, '6'), ['1']);
});

async function startTwo(t: TestContext) {
  const { db, first, serverB } = await startTwoNodes(t);
  const { child } = first;
  // The row names the process of its node.
  const { rows } = await sql<{ id: string }>`
    select id from nodes where split_part(process, ' ', 1) = ${String(child.pid)}`.execute(db);
  const subscriber = await startSubscriber(t);
  const app = await createApp(serverB);
  await subscribe(app, { url: subscriber.url });
  const publisher = await createPublisher(serverB);
  return { db, first, firstNode: rows[0]?.id as string, subscriber, app, publisher };
}

test('webhooks 62: a frozen node loses its lanes before its lease ends, and sends nothing of them afterwards', async (t) => {
  const { db, first, firstNode, subscriber, app, publisher } = await startTwo(t);
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  // An attempt that is not recorded yet would rightly be sent again.
  await until(
    async () => (await sql`select from attempts`.execute(db)).rows.length,
    (count) => count === 1,
  );
  first.child.kill('SIGSTOP');
  // Others would wait for a day if they waited for the lease to end.
  await sql`
    update lane_progress set owner = ${firstNode}::bigint where lane = (select id from lanes)`.execute(db);
  await sql`update nodes set alive_until = now() + interval '1 day' where id = ${firstNode}`.execute(db);
  await publish(publisher, app.account, ['during']);
  await subscriber.waitFor(2);
  const isBack = async () => (await sql`select from nodes where id = ${firstNode}`.execute(db)).rows.length;
  assert.equal(await isBack(), 0);
  first.child.kill('SIGCONT');
  await until(isBack, (count) => count === 1);
  await publish(publisher, app.account, ['after']);
  await subscriber.waitFor(3);
  assert.deepEqual(
    subscriber.received.map(({ headers, body }) => [
      headers['nuncio-sequence'],
      JSON.parse(body).ref.slice('refs/heads/'.length),
    ]),
    [
      ['1', 'before'],
      ['2', 'during'],
      ['3', 'after'],
    ],
  );
});

test('nobody waits for a dead node of another machine after some seconds', async (t) => {
  const { db } = await startTestServer(t);
  await sql`
    insert into nodes (id, host, process, alive_until, heartbeats, generation)
    values (7, 'elsewhere', '1 1', now() + interval '1 day', 5, 2)`.execute(db);
  await until(
    async () => (await sql`select from nodes where id = 7`.execute(db)).rows.length,
    (count) => count === 0,
  );
});

test('a node that starts under a used name replaces the earlier node once that is silent', async (t) => {
  const { db, url } = await openTestDatabase(t, 2);
  for (const [id, name] of [
    [7, 'nuncio-0'],
    [8, 'nuncio-1'],
  ]) {
    await sql`
      insert into nodes (id, host, process, alive_until, heartbeats, name, generation)
      values (${id}, 'elsewhere', '1 1', now() + interval '1 day', 5, ${name}, 2)`.execute(db);
  }
  const running = startProcess(t, ['start'], settingsOf(String(await freePort()), url, 'nuncio-0'));
  await running.ready();
  const { rows } = await sql<{ id: string; name: string }>`
    select id, name from nodes where name is not null order by name`.execute(db);
  assert.equal(rows[0]?.name, 'nuncio-0');
  assert.notEqual(rows[0]?.id, '7');
});

const settingsOf = (port: string, url: string, name: string) => ({
  PORT: port,
  DATABASE_URL: url,
  NUNCIO_SECRET: testSecret.toString(),
  NUNCIO_NODE_NAME: name,
  LOG_LEVEL: 'error',
});

test('a node does not start while another of its name runs, and starts afterwards', async (t) => {
  const { url } = await openTestDatabase(t, 2);
  const first = startProcess(t, ['start'], settingsOf(String(await freePort()), url, 'nuncio-0'));
  await first.ready();
  const settings = settingsOf(String(await freePort()), url, 'nuncio-0');
  const second = await runCommandProcess(['start'], settings);
  assert.equal(second.code, 1);
  const lines = second.stderr.trim().split('\n');
  assert.equal(lines.length, 1, second.stderr);
  assert.match(
    second.stderr,
    new RegExp(
      `NUNCIO_NODE_NAME is "nuncio-0": a node of this name is running on \\S+ \\(process ${first.child.pid}\\), its last heartbeat`,
    ),
  );
  await first.end('SIGKILL');
  await startProcess(t, ['start'], settings).ready();
});

test('a database restored under running nodes starts an epoch', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const [publisher, app, subscriber] = [
    await createPublisher(server),
    await createApp(server),
    await startSubscriber(t),
  ];
  await subscribe(app, { url: subscriber.url });
  await until(
    async () =>
      (await sql<{ heartbeats: number }>`select heartbeats::int from nodes`.execute(db)).rows[0]
        ?.heartbeats ?? 0,
    (heartbeats) => heartbeats > 3,
  );
  await sql`update nodes set heartbeats = 1`.execute(db);
  const epochs = async () => (await sql`select from database_epochs`.execute(db)).rows.length;
  await until(epochs, (count) => count === 2);
  await publish(publisher, app.account, ['after']);
  await subscriber.waitFor(1);
  assert.equal(await epochs(), 2);
});
