/**
 * A database that others use: a role that may only connect sends notifications and holds advisory locks, for which PostgreSQL
 * requires no privilege.
 */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { newId } from '../../src/crypto/ids.ts';
import { migrate } from '../../src/database/migrate.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createForeignDatabase, execute } from '../support/database/database.ts';
import { startTwoNodes } from '../support/servers/two_nodes.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  publish,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const admin = process.env.TEST_DATABASE_URL as string;
const role = `stranger_${newId().slice(-12)}`;
await execute(admin, `create role ${role} login password 'secret'`);
after(() => execute(admin, `drop role ${role}`));

/** Connects as a role that has no privilege but those of PUBLIC. */
async function connectStranger(t: TestContext, databaseUrl: string): Promise<pg.Client> {
  const url = new URL(databaseUrl);
  url.username = role;
  url.password = 'secret';
  const client = new pg.Client({ connectionString: url.href });
  client.on('error', () => {});
  await client.connect();
  t.after(() => client.end().catch(() => {}));
  return client;
}

/** What advisory locks could be taken for. */
const purposes = [
  'fan-out',
  'intake',
  'partitions',
  'drop partitions',
  'signing keys',
  'delivery keys',
  'collections',
  'migrate',
];

async function takeAdvisoryLocks(stranger: pg.Client): Promise<void> {
  for (const purpose of purposes) {
    await stranger.query(`select pg_advisory_lock(hashtextextended('nuncio ' || $1, 7236501127))`, [purpose]);
  }
}

const readyOf = (baseUrl: string) =>
  fetch(`${baseUrl}/readyz`).then(
    ({ status }) => status,
    () => 0,
  );

async function countFalseHints(baseUrl: string): Promise<Map<string, number>> {
  const text = await (await fetch(`${baseUrl}/metrics`)).text();
  return new Map(
    [...text.matchAll(/^nuncio_false_hints_total\{channel="(\w+)"\} (\d+)$/gm)].map(([, channel, count]) => [
      channel as string,
      Number(count),
    ]),
  );
}

test('migrations do not wait for a role that holds advisory locks, and run once when two nodes start', async (t) => {
  const database = await createForeignDatabase();
  t.after(() => database.drop());
  const stranger = await connectStranger(t, database.url);
  await takeAdvisoryLocks(stranger);
  const applied = await Promise.all([migrate(database.url), migrate(database.url), migrate(database.url)]);
  assert.equal(applied.filter((names) => names.length > 0).length, 1);
  await stranger.end();
});

test('a role that may only connect revokes, holds and stops nothing with forged notifications', async (t) => {
  const { db, databaseUrl, first, serverA, serverB } = await startTwoNodes(t);
  const subscriber = await startSubscriber(t);
  const account = await createTestAccount(serverB);
  const client = await createTestClient(serverB, { scopes: appScopes });
  const { accessToken, grantId } = await mintAccessToken(serverB, { account, client, scopes: appScopes });
  const app = { account, request: requester(serverB, accessToken) };
  const publisher = await createPublisher(serverB);
  const subscription = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  const { rows } = await sql<{ lane: string; position: string }>`
    select s.lane, (select max(position) from events) as position from subscriptions s
    where s.id = ${subscription.id}`.execute(db);
  const { lane, position } = rows[0] as (typeof rows)[number];

  const stranger = await connectStranger(t, databaseUrl);
  await assert.rejects(stranger.query('select from nuncio.leases'), { code: '42501' });
  const malformed = [
    'x',
    '{',
    'null',
    '[]',
    '{"id":null}',
    '__proto__',
    'constructor',
    '-1',
    '1e400',
    ',',
    ' '.repeat(7_990),
  ];
  const forged: Record<string, string[]> = {
    withdrawal: [`client:${client.id}`, `grant:${grantId}`, `grant_revision:${grantId}:0`],
    delivery_hold: [
      JSON.stringify({ id: newId(), clientId: client.id, accountId: null, lane: null }),
      JSON.stringify({ id: newId(), clientId: null, accountId: app.account.id, lane: null }),
      JSON.stringify({ id: newId(), isOver: true }),
      newId(),
    ],
    event_erased: [position, Array.from({ length: 500 }, (_, index) => index).join()],
    lane_changed: [
      ...[lane, `client:${client.id}`, `app:${client.id}`, `grant:${grantId}`, `account:${app.account.id}`],
      ...['client:', 'client:x', 'app:x', `grant:${newId()}`, 'account:1', '999999999999'],
    ],
    client_changed: [client.id, 'no such client'],
    signing_keys: ['', 'x'],
    delivery_keys: ['', 'x'],
    inbox: ['', 'x'],
    events: [newId(), 'x'],
  };
  let isOver = false;
  const flood = (async () => {
    for (let round = 0; !isOver; round += 1) {
      for (const [channel, payloads] of Object.entries(forged)) {
        for (const payload of [...malformed, ...payloads, `${round}`]) {
          await stranger.query('select pg_notify($1, $2) from generate_series(1, 3)', [
            `nuncio.${channel}`,
            payload,
          ]);
        }
      }
    }
  })();
  const marks = Array.from({ length: 30 }, (_, index) => `during-${index}`);
  for (const mark of marks) {
    await publish(publisher, app.account, [mark]);
    for (const server of [serverA, serverB]) {
      assert.equal((await requester(server, accessToken)('GET', '/api')).status, 200);
    }
  }
  const ids = () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery']));
  await until(
    async () => ids().size,
    (count) => count === 31,
  );
  for (const { baseUrl } of [serverA, serverB]) {
    const counts = await until(
      () => countFalseHints(baseUrl),
      (found) => Object.keys(forged).every((channel) => (found.get(channel) ?? 0) > 0),
    );
    assert.ok((counts.get('delivery_hold') ?? 0) > 0);
    assert.equal(await readyOf(baseUrl), 200);
  }
  // A genuine withdrawal is not lost among the forged ones.
  await sql`
    insert into withdrawals (kind, subject, until) values ('grant', ${grantId}, now() + interval '1 hour')`.execute(
    db,
  );
  for (const server of [serverA, serverB]) {
    await until(
      async () => (await requester(server, accessToken)('GET', '/api')).status,
      (status) => status === 401,
    );
  }
  isOver = true;
  await flood;
  assert.equal(first.child.exitCode, null);
  assert.equal((await sql`select from withdrawals`.execute(db)).rows.length, 1);
  assert.equal((await sql`select from delivery_holds`.execute(db)).rows.length, 0);
});

test('another node replaces a killed leader and takes in events while a role holds every advisory lock', async (t) => {
  const { db, databaseUrl, first, serverB } = await startTwoNodes(t);
  const subscriber = await startSubscriber(t);
  const app = await createApp(serverB);
  const publisher = await createPublisher(serverB);
  await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  const stranger = await connectStranger(t, databaseUrl);
  first.child.kill('SIGKILL');
  await until(
    async () => (await sql`select from pg_locks where locktype = 'advisory'`.execute(db)).rows.length,
    (count) => count === 0,
  );
  await takeAdvisoryLocks(stranger);
  await publish(publisher, app.account, ['http']);
  await sql`select publish('push', ${app.account.id}, ${JSON.stringify(pushBody('sql'))}::jsonb)`.execute(db);
  await until(
    async () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-sequence'])).size,
    (count) => count === 3,
  );
  await until(
    () => readyOf(serverB.baseUrl),
    (status) => status === 200,
  );
});
