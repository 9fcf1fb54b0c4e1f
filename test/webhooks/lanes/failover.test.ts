/** Failover to a standby that lagged. The database is the source of truth: changes that it lost did not happen. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { CommandError } from '../../../src/commands/command.ts';
import { epochBegin } from '../../../src/commands/epoch_begin.ts';
import { loadConfig } from '../../../src/config/config.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { enterEpoch } from '../../../src/database/epoch.ts';
import { migrate } from '../../../src/database/migrate.ts';
import { Notifications } from '../../../src/database/notifications.ts';
import { WithdrawalList } from '../../../src/grants/withdrawals.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startDatabaseProxy } from '../../support/database/database_proxy.ts';
import { startReplicated } from '../../support/database/standby.ts';
import { startProcess } from '../../support/servers/process.ts';
import { freePort, startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const marks = (word: string, count: number) =>
  Array.from({ length: count }, (_, index) => `${word}-${index}`);
const sequenceOf = ({ headers }: Received) => Number(headers['nuncio-sequence']);
const idOf = ({ headers }: Received) => String(headers['nuncio-delivery']);
const markOf = ({ body }: Received) => JSON.parse(body).ref.slice('refs/heads/'.length) as string;

test('webhooks 62, 66: a failover that loses deliveries loses nothing later and reuses no id', async (t) => {
  const { primary, standby, caughtUp, disconnect, promote } = await startReplicated(t);
  const proxy = await startDatabaseProxy(primary.connectionString);
  t.after(() => proxy.close());
  await migrate(primary.connectionString);
  const settings = {
    PORT: String(await freePort()),
    DATABASE_URL: proxy.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    LOG_LEVEL: 'error',
  };
  const first = startProcess(t, ['start'], settings);
  await first.ready();
  const config = loadConfig(settings, 'start');
  const before = openDatabase({ connectionString: primary.connectionString, connectionsMax: 2 });
  const client = await createTestClient({ db: before }, { scopes: [...appScopes, 'write:events'] });
  const account = await createTestAccount({ db: before });
  const server = { db: before, config, baseUrl: config.baseUrl };
  const forUser = await mintAccessToken(server, { account, client, scopes: appScopes });
  const forMachine = await mintAccessToken(server, { client, scopes: ['write:events'] });
  await before.destroy();
  const request = requester(server, forUser.accessToken);
  const publisher = requester(server, forMachine.accessToken);
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe({ request }, { url: subscriber.url });

  await publish(publisher, account, marks('both', 100));
  await subscriber.waitFor(100);
  const states = async (wanted: string) => {
    const { body } = await request('GET', `/subscriptions/${id}/deliveries?status=${wanted}&limit=200`);
    return body.items.length as number;
  };
  await until(
    () => states('succeeded'),
    (count) => count === 100,
  );
  await caughtUp();
  await disconnect();
  const onStandby = openDatabase({
    connectionString: standby.connectionString,
    connectionsMax: 1,
    onConnect: async (connection) => void (await enterEpoch(connection)),
  });
  await assert.rejects(sql`select 1`.execute(onStandby), { code: '25006' });
  await onStandby.destroy();

  // Only the primary knows these events. Some are in flight when it fails.
  await publish(publisher, account, marks('lost', 200));
  await subscriber.waitFor(300);
  const held: ServerResponse[] = [];
  subscriber.behave((_received, response) => void held.push(response));
  await publish(publisher, account, marks('in-flight', 20));
  await subscriber.waitFor(320);
  const lostCount = subscriber.received.length;
  const lostIds = subscriber.received.slice(100).map(idOf);

  proxy.cut();
  await primary.stop();
  await promote();
  proxy.lead(standby.connectionString);
  subscriber.behave(accept);
  proxy.mend();
  for (const response of held) accept(subscriber.received[0] as Received, response);

  await until(
    async () => (await publisher('GET', '/event-kinds')).status,
    (status) => status === 200,
  );
  await publish(publisher, account, marks('after', 90));
  const after = () => subscriber.received.slice(lostCount).filter((one) => markOf(one).startsWith('after'));
  await until(
    async () => new Set(after().map(markOf)).size,
    (count) => count === 90,
  );
  const sequences = [...new Set(after().map(sequenceOf))].toSorted((one, other) => one - other);
  assert.deepEqual(
    sequences,
    Array.from({ length: 90 }, (_, index) => 101 + index),
  );
  // Only events of the surviving timeline are sent, each with an id that no other event ever had.
  assert.deepEqual(
    new Set(subscriber.received.slice(lostCount).map((one) => markOf(one).split('-')[0])),
    new Set(['after']),
  );
  assert.equal(new Set(after().map(idOf)).size, 90);
  assert.ok(after().every((one) => !lostIds.includes(idOf(one))));

  await until(
    () => states('succeeded'),
    (count) => count === 190,
  );
  assert.equal(await states('pending'), 0);
  const find = async (delivery: string) => request('GET', `/deliveries/${delivery}`);
  const [old, fresh] = [subscriber.received[0] as Received, after()[0] as Received];
  for (const one of [old, fresh]) {
    const { status, body } = await find(idOf(one));
    assert.deepEqual([status, body.id, body.sequence], [200, idOf(one), sequenceOf(one)]);
  }
  assert.equal((await find(lostIds[0] as string)).status, 404);

  // A resend keeps the id.
  for (const one of [old, fresh]) {
    const count = subscriber.received.length;
    assert.equal((await request('POST', `/deliveries/${idOf(one)}/resend`)).status, 202);
    await subscriber.waitFor(count + 1);
    assert.equal(idOf(subscriber.received.at(-1) as Received), idOf(one));
  }

  // The written state is right: another process continues from it.
  assert.equal(await first.end('SIGKILL'), 'SIGKILL');
  const second = startProcess(t, ['start'], settings);
  await second.ready();
  await publish(publisher, account, ['last']);
  const [last] = await until(
    async () => subscriber.received.filter((one) => markOf(one) === 'last'),
    (found) => found.length > 0,
  );
  assert.equal(sequenceOf(last as Received), 191);
  const db = openDatabase({ connectionString: standby.connectionString, connectionsMax: 1 });
  const { rows } = await sql<{ number: number }>`select number from database_epochs order by number`.execute(
    db,
  );
  await db.destroy();
  assert.deepEqual(rows, [{ number: 0 }, { number: 1 }]);
});

test('webhooks 66: epoch begin` gives later deliveries ids of a new epoch and waits for servers to sto', async (t) => {
  const server = await startTestServer(t);
  const [publisher, app, subscriber] = [
    await createPublisher(server),
    await createApp(server),
    await startSubscriber(t),
  ];
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  const begin = () =>
    epochBegin.run(
      { values: {}, positionals: [] },
      {
        config: { ...server.config, databaseUrl: server.databaseUrl },
        print: () => {},
        printError: () => {},
      },
    );
  await assert.rejects(begin(), CommandError);

  // All leases have ended, as after a stop of all servers. The running server finds out with its next heartbeat.
  const nodes = async () =>
    (await sql<{ id: string }>`select id from nodes`.execute(server.db)).rows.map(({ id }) => id);
  const [firstNode] = await nodes();
  await until(
    async () => {
      await sql`update nodes set alive_until = now()`.execute(server.db);
      // Unless a heartbeat comes in between.
      return begin().then(
        () => true,
        () => false,
      );
    },
    (hasBegun) => hasBegun,
  );
  const { rows } = await sql<{ epoch: string }>`select current_epoch()::text as epoch`.execute(server.db);
  assert.ok(rows[0]?.epoch);
  await until(nodes, (ids) => ids.length > 0 && !ids.includes(firstNode as string));
  await publish(publisher, app.account, ['after']);
  const [, after] = (await subscriber.waitFor(2)) as [Received, Received];
  const [before] = subscriber.received as [Received];
  assert.deepEqual([sequenceOf(before), sequenceOf(after)], [1, 2]);
  assert.notEqual(idOf(before).slice(0, 24), idOf(after).slice(0, 24));
  const { body } = await app.request('GET', `/subscriptions/${id}/deliveries`);
  assert.deepEqual(
    body.items.map((item: { id: string }) => item.id),
    [idOf(after), idOf(before)],
  );
  for (const one of [before, after]) {
    const found = await app.request('GET', `/subscriptions/${id}/deliveries?id=${idOf(one)}`);
    assert.deepEqual(
      found.body.items.map((item: { id: string }) => item.id),
      [idOf(one)],
    );
  }
});

test('webhooks 62: a cursor past the last delivery returns to the oldest one that may be unsent', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const app = await createApp(server);
  const cases = [
    { stored: [3, 4, 5], heldUpTo: null, expected: '2' },
    { stored: [3, 4, 5], heldUpTo: 4, expected: '4' },
    { stored: [], heldUpTo: null, expected: '5' },
  ];
  for (const { stored, heldUpTo, expected } of cases) {
    const { id } = await subscribe(app, { url: 'http://127.0.0.1:20001/' });
    const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
    const lane = rows[0]?.lane as string;
    await sql`update lanes set next_sequence = 6 where id = ${lane}`.execute(db);
    await sql`update lane_progress set cursor = 300 where lane = ${lane}`.execute(db);
    await sql`
      insert into deliveries (day, lane, sequence, event)
      select current_date, ${lane}::bigint, sequence, 1 from unnest(${stored}::bigint[]) as given (sequence)`.execute(
      db,
    );
    if (heldUpTo !== null) {
      await sql`insert into held_ranges (lane, first, last) values (${lane}, 1, ${heldUpTo})`.execute(db);
    }
    await sql`select mend_cursors()`.execute(db);
    const { rows: mended } = await sql<{ cursor: string }>`
      select cursor from lane_progress where lane = ${lane}`.execute(db);
    assert.equal(mended[0]?.cursor, expected);
  }
});

test('a withdrawal with an earlier transaction number is seen in another epoch of the database', async (t) => {
  const { db, databaseUrl } = await startTestServer(t);
  // The list receives no notification, because notifications are not started.
  const list = new WithdrawalList(db, new Notifications(databaseUrl, () => {}));
  await list.fresh();
  const grantId = newId();
  await sql`
    insert into withdrawals (kind, subject, until, transaction_id)
    values ('grant', ${grantId}, now() + interval '1 hour', '3')`.execute(db);
  await sql`select begin_epoch(0, 'another timeline')`.execute(db);
  await sleep(1_000);
  await list.fresh();
  assert.ok(list.has({ tokenId: 'token', grantId, grantRevision: 0, clientEpoch: newId() }));
});
