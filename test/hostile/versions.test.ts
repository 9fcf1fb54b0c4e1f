/** Functions of a kind's versions that fail in every way: only the delivery that needs them fails, and visibly. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { appendEvent } from '../../src/events/event.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startTestServer } from '../support/servers/server.ts';
import { type App, createApp, createPublisher, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const file = fileURLToPath(new URL('../support/servers/platforms/versioned.config.ts', import.meta.url));
const platform = await loadPlatform(file);
// The retry of a failed conversion comes long after the test, so each delivery has one attempt.
// The engine has its own thread, as in production, so the thread of the conversions is one of the engine's.
const retries = { NUNCIO_RETRY_SCHEDULE: '1h' };
const server = await startTestServer({ after }, retries, 'dev', platform, undefined, 'thread');
const { db } = server;
const publisher = await createPublisher(server);

async function publish(app: App, ...modes: string[]): Promise<void> {
  const json = modes.map((mode) => ({ kind: 'trial', account: app.account.id, body: { mode, new: true } }));
  assert.equal((await publisher('POST', '/events', { json })).status, 202);
}

const failing = [
  ...[
    'throws',
    'throwsOdd',
    'loops',
    'hangs',
    'returnsNothing',
    'returnsFunction',
    'returnsPromise',
    'returnsHuge',
  ],
  ...['returnsWrong', 'returnsCircle', 'takesMemory', 'exits'],
];

/** Publishes an event, and waits until its delivery to a subscription has an attempt. */
async function attemptOf(app: App, id: string, mode: string) {
  await publish(app, mode);
  const { items } = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries?limit=1`)).body,
    ({ items }) => items[0]?.attempt_count === 1 && items[0].sequence > (seen.get(id) ?? 0),
  );
  seen.set(id, items[0].sequence);
  return (await app.request('GET', `/deliveries/${items[0].id}`)).body;
}
const seen = new Map<string, number>();

test('a conversion that fails in any way is a failed attempt of that delivery alone', async (t) => {
  const subscriber = await startSubscriber(t);
  for (const [index, mode] of failing.entries()) {
    const app = await createApp(server);
    const made = { url: `${subscriber.url}/old`, version: '2026-03-01', kinds: ['trial'] };
    const { id } = await subscribe(app, made);
    await subscribe(app, { url: `${subscriber.url}/new`, kinds: ['trial'] });
    const failed = await attemptOf(app, id, mode);
    const { state, last_error, last_status, attempts } = failed;
    assert.deepEqual([state, last_error, last_status], ['pending', 'conversion_error', null], mode);
    assert.match(attempts[0].error_detail, /^Nothing was sent: /);
    assert.doesNotMatch(JSON.stringify(attempts), /it has thrown/);
    // It says nothing about the subscriber.
    const { body: subscription } = await app.request('GET', `/subscriptions/${id}`);
    assert.deepEqual([subscription.state, subscription.failing_since], ['active', null]);
    // The next event of the same kind is converted and sent.
    assert.equal((await attemptOf(app, id, 'fine')).state, 'succeeded', mode);
    await subscriber.waitFor(3 * (index + 1));
  }
  const old = subscriber.received.filter(({ path }) => path === '/old');
  assert.deepEqual(new Set(old.map(({ body }) => body)), new Set(['{"mode":"fine"}']));
});

test('pull lists an event that cannot be converted as a gap, and reads on', async () => {
  const app = await createApp(server);
  const made = { url: 'https://app.example/hooks', version: '2026-03-01', kinds: ['trial'] };
  const { id } = await subscribe(app, made);
  await publish(app, 'fine', 'throws', 'throws', 'fine');
  const read = async () => (await app.request('GET', `/subscriptions/${id}/events`)).body;
  const page = await until(read, ({ items }) => items.length === 2);
  assert.deepEqual(page.gaps, [{ from: 2, through: 3, reason: 'failed' }]);
  await app.request('PATCH', `/subscriptions/${id}`, { json: { version: null } });
  assert.equal((await read()).items.length, 4);
});

test('a delivery that could not be converted is sent once its subscription is moved', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, version: '2026-03-01', kinds: ['trial'] });
  const failed = await attemptOf(app, id, 'throws');
  await app.request('PATCH', `/subscriptions/${id}`, { json: { version: '2026-09-01' } });
  await app.request('POST', `/deliveries/${failed.id}/resend`);
  const [received] = await subscriber.waitFor(1);
  assert.deepEqual(JSON.parse(received?.body as string), { mode: 'throws', new: true });
  assert.equal(received?.headers['nuncio-delivery'], failed.id);
});

test('a node sends an event of a version that it does not know unchanged or not at all', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const made = { url: subscriber.url, kinds: ['trial'] };
  const { id: behind } = await subscribe(app, { ...made, version: '2026-10-01' });
  const { id: ahead } = await subscribe(app, { ...made, url: `${subscriber.url}/ahead` });
  // A node of a newer configuration pinned the second one, and published.
  await sql`update subscriptions set version = '2027-05-05', revision = revision + 1 where id = ${ahead}`.execute(
    db,
  );
  await db.transaction().execute((tx) =>
    appendEvent(tx, {
      accountId: app.account.id,
      kind: 'trial',
      version: '2027-02-02',
      body: { newer: true },
    }),
  );
  const [received] = await subscriber.waitFor(1);
  assert.deepEqual([received?.path, received?.body], ['/ahead', '{"newer":true}']);
  const { items } = await until(
    async () => (await app.request('GET', `/subscriptions/${behind}/deliveries`)).body,
    ({ items }) => items[0]?.attempt_count === 1,
  );
  assert.equal(items[0].last_error, 'conversion_error');
  assert.equal(subscriber.received.length, 1);
});

test('a withdrawal during a conversion wins: nothing is sent', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, version: '2026-03-01', kinds: ['trial'] });
  await publish(app, 'slow', 'slow', 'slow');
  await subscriber.waitFor(1);
  await withdrawGrant(db, app.grantId, 'user');
  const sent = subscriber.received.length;
  await publish(app, 'fine');
  const { rows } = await until(
    () => sql`select from outbox limit 1`.execute(db),
    (found) => found.rows.length === 0,
  );
  assert.equal(rows.length, 0);
  assert.equal(subscriber.received.length, sent);
});

test('content that makes a conversion hang costs another account’s conversions little time', async (t) => {
  const subscriber = await startSubscriber(t);
  const [attacker, victim] = [await createApp(server), await createApp(server)];
  const made = { version: '2026-03-01', kinds: ['trial'] };
  await subscribe(attacker, { ...made, url: `${subscriber.url}/attacker` });
  await subscribe(victim, { ...made, url: `${subscriber.url}/victim` });
  for (let count = 0; count < 10; count += 1) {
    await publish(attacker, 'hangs', 'hangs', 'hangs');
    await publish(victim, 'fine');
  }
  // Each arrives at its first attempt: the next would come after an hour.
  const received = await subscriber.waitFor(10);
  assert.deepEqual(new Set(received.map(({ path }) => path)), new Set(['/victim']));
});

test('conversions that hang do not delay deliveries that need none, and stop being tried', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: `${subscriber.url}/old`,
    version: '2026-03-01',
    kinds: ['trial'],
  });
  await subscribe(app, { url: `${subscriber.url}/new`, kinds: ['trial'] });
  await publish(app, ...Array(40).fill('hangs'));
  const received = await subscriber.waitFor(40);
  assert.deepEqual(new Set(received.map(({ path }) => path)), new Set(['/new']));
  const failed = () =>
    sql<{ started_at: Date; ms: number }>`
    select a.started_at, a.duration_ms::float8 as ms from attempts a join subscriptions s on s.lane = a.lane
    where s.id = ${id} and a.error = 'conversion_error'`.execute(db);
  await until(failed, ({ rows }) => rows.length === 40);
  // Not even a new event is tried: its attempt ends before the time that a conversion may take.
  await publish(app, 'hangs');
  const { rows } = await until(failed, ({ rows }) => rows.length === 41);
  const last = rows.toSorted((a, b) => a.started_at.getTime() - b.started_at.getTime()).at(-1);
  assert.ok((last?.ms ?? 1_000) < 1_000);
  await subscriber.waitFor(41);
});

test('what waits for a conversion takes no place of an attempt', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, version: '2026-03-01', kinds: ['trial'] });
  await publish(app, ...Array(8).fill('hangs'));
  const failed = () =>
    sql`select from attempts a join subscriptions s on s.lane = a.lane
      where s.id = ${id} and a.error = 'conversion_error'`.execute(db);
  // The first of three that take a second each. The others wait.
  await until(failed, ({ rows }) => rows.length >= 1);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_worker\{of="in_flight"\} 0$/m);
  await until(failed, ({ rows }) => rows.length === 8);
});

test('a resend waits for no conversion, because it holds a transaction', async () => {
  const app = await createApp(server);
  const made = { url: 'https://app.example/hooks', version: '2026-03-01', kinds: ['trial'] };
  const { id } = await subscribe(app, made);
  const failed = await attemptOf(app, id, 'hangs');
  const ended: string[] = [];
  const request = async (method: 'GET' | 'POST', path: string, status: number) => {
    const response = await app.request(method, path);
    ended.push(method);
    assert.equal(response.status, status, response.text);
  };
  const path = `/deliveries/${failed.id}`;
  // The read converts the body for each attempt, which takes a second.
  await Promise.all([request('GET', path, 200), request('POST', `${path}/resend`, 202)]);
  assert.deepEqual(ended, ['POST', 'GET']);
});
