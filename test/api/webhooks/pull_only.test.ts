/** Subscriptions without a URL: nothing is sent, the subscriber reads. And acknowledgements, which only inform. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { markDue } from '../../../src/webhooks/fan_out/mark_due.ts';
import { sweepLanes } from '../../../src/webhooks/lanes/lane_sweep.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

const sequencesOf = (body: { items: { sequence: number }[] }) => body.items.map(({ sequence }) => sequence);

async function subscribeToPull(): Promise<{ app: App; id: string; path: string; lane: number }> {
  const app = await createApp(server);
  const { id, url, acknowledged } = await subscribe(app, { url: null });
  assert.deepEqual([url, acknowledged], [null, null]);
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  return { app, id, path: `/subscriptions/${id}`, lane: Number(rows[0]?.lane) };
}

async function progressOf(lane: number) {
  const { rows } = await sql<{ owner: string | null; due_at: Date | null; cursor: string }>`
    select owner, due_at, cursor from lane_progress where lane = ${lane}`.execute(db);
  return rows[0];
}

const untouched = { owner: null, due_at: null, cursor: '0' };

test('a subscriber without a URL reads its events in order, and no node takes its lane', async (t) => {
  const subscriber = await startSubscriber(t);
  const { app, path, lane } = await subscribeToPull();
  const pushed = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['1', '2', '3']);
  await subscriber.waitFor(3);
  const { body } = await app.request('GET', `${path}/events`);
  assert.deepEqual(sequencesOf(body), [1, 2, 3]);
  const { body: other } = await app.request('GET', `/subscriptions/${pushed.id}/events`);
  assert.deepEqual(
    body.items.map(({ id }: { id: string }) => id),
    other.items.map(({ id }: { id: string }) => id),
  );
  assert.deepEqual(await progressOf(lane), untouched);
});

test('a waiting reader of a lane without a URL is woken by a new event', async () => {
  const { app, path } = await subscribeToPull();
  const waiting = app.request('GET', `${path}/events?wait=60`);
  await publish(publisher, app.account, ['awaited']);
  assert.deepEqual(sequencesOf((await waiting).body), [1]);
});

test('the statements that look for lanes to send leave pulled lanes alone', async () => {
  const { app, lane } = await subscribeToPull();
  await publish(publisher, app.account, ['1']);
  await fannedOut(server);
  const addition = { lane, owner: null, tenant: null };
  assert.deepEqual(await markDue(db, [addition], '123'), []);
  assert.notEqual(addition.owner, '123');
  assert.deepEqual(await markDue(db, [{ lane, owner: null, tenant: null }], null), []);
  await sweepLanes(db, '123', lane - 1, 1);
  assert.deepEqual(await progressOf(lane), untouched);
});

test('a test event of a subscription without a URL waits to be read', async () => {
  const { app, path, lane } = await subscribeToPull();
  const { status, body: test } = await app.request('POST', `${path}/test`, { json: {} });
  assert.equal(status, 202);
  const { body } = await app.request('GET', `${path}/events`);
  assert.deepEqual([sequencesOf(body), body.items[0].kind], [[1], 'ping']);
  assert.deepEqual(await progressOf(lane), untouched);
  const { body: delivery } = await app.request('GET', `/deliveries/${test.delivery}`);
  assert.deepEqual([delivery.state, delivery.attempt_count, delivery.next_attempt_at], ['pending', 0, null]);
  const resent = await app.request('POST', `/deliveries/${test.delivery}/resend`);
  assert.deepEqual([resent.status, resent.body.code], [409, 'pull-only']);
});

test('whether events are sent or read is decided at the creation', async (t) => {
  const subscriber = await startSubscriber(t);
  const { app, path } = await subscribeToPull();
  const given = await app.request('PATCH', path, { json: { url: subscriber.url } });
  assert.deepEqual([given.status, given.body.errors[0].pointer], [422, '/url']);
  assert.equal(given.body.errors[0].code, 'pull-only');
  const { id } = await subscribe(app, { url: subscriber.url });
  const taken = await app.request('PATCH', `/subscriptions/${id}`, { json: { url: null } });
  assert.equal(taken.status, 422);
  const missing = await app.request('POST', '/subscriptions', { json: { kinds: ['*'] } });
  assert.equal(missing.status, 422, 'a forgotten URL is an error');
  const changed = await app.request('PATCH', path, { json: { description: 'reconciliation' } });
  assert.deepEqual([changed.status, changed.body.description], [200, 'reconciliation']);
});

test('what was added while a subscription without a URL was paused can be read afterwards', async () => {
  const { app, path } = await subscribeToPull();
  await publish(publisher, app.account, ['1']);
  await fannedOut(server);
  assert.equal((await app.request('PATCH', path, { json: { state: 'disabled' } })).status, 200);
  assert.equal((await app.request('GET', `${path}/events`)).body.code, 'subscription-disabled');
  await publish(publisher, app.account, ['2']);
  await fannedOut(server);
  assert.equal((await app.request('PATCH', path, { json: { state: 'active' } })).status, 200);
  const { body } = await app.request('GET', `${path}/events`);
  assert.deepEqual(sequencesOf(body), [1, 2]);
});

test('a recovery gives a subscriber without a URL the events from before, and sends nothing', async () => {
  const app = await createApp(server);
  await publish(publisher, app.account, ['before']);
  await fannedOut(server);
  const { id: accountId } = app.account;
  await sql`update events set created_at = created_at - interval '1 hour' where account_id = ${accountId}`.execute(
    db,
  );
  await sql`update grants set created_at = created_at - interval '2 hours' where account_id = ${accountId}`.execute(
    db,
  );
  const { id } = await subscribe(app, { url: null });
  const path = `/subscriptions/${id}`;
  const since = new Date(Date.now() - 7_200_000).toISOString();
  const refused = await app.request('POST', `${path}/recover`, { json: { since, status: 'failed' } });
  assert.deepEqual([refused.status, refused.body.code], [409, 'pull-only']);
  const started = await app.request('POST', `${path}/recover`, { json: { since } });
  assert.equal(started.status, 202);
  await until(
    async () => (await app.request('GET', started.headers.get('location') as string)).body.state,
    (state) => state === 'done',
  );
  const { body } = await app.request('GET', `${path}/events`);
  assert.deepEqual(
    body.items.map((item: { body: { ref: string } }) => item.body.ref),
    ['refs/heads/before'],
  );
});

test('acknowledging moves forward only, and shows in the subscription, the log and a metric', async () => {
  const { app, path } = await subscribeToPull();
  await publish(publisher, app.account, ['1', '2', '3']);
  await fannedOut(server);
  const ack = (sequence: unknown) => app.request('POST', `${path}/ack`, { json: { sequence } });
  assert.deepEqual((await ack(2)).body.sequence, 2);
  const { at } = (await ack(2)).body;
  assert.deepEqual((await ack(1)).body, { sequence: 2, at });
  assert.deepEqual((await app.request('GET', path)).body.acknowledged, { sequence: 2, at });
  const { body: log } = await app.request('GET', `${path}/deliveries`);
  assert.deepEqual(
    log.items.map(({ sequence, state }: { sequence: number; state: string }) => [sequence, state]),
    [
      [3, 'pending'],
      [2, 'succeeded'],
      [1, 'succeeded'],
    ],
  );
  const pending = await app.request('GET', `${path}/deliveries?status=pending`);
  assert.deepEqual(sequencesOf(pending.body), [3]);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_unacknowledged_deliveries\{of="one"\} 1$/m);
});

test('nobody acknowledges for another app, nor what does not exist', async () => {
  const { app, path } = await subscribeToPull();
  await publish(publisher, app.account, ['1']);
  await fannedOut(server);
  const other = await createApp(server);
  assert.equal((await other.request('POST', `${path}/ack`, { json: { sequence: 1 } })).status, 404);
  for (const sequence of [2, 0, -1, 1.5, '1', null, 1e16]) {
    const { status, body } = await app.request('POST', `${path}/ack`, { json: { sequence } });
    assert.deepEqual([status, body.errors[0].pointer], [422, '/sequence'], String(sequence));
  }
  assert.equal((await app.request('GET', path)).body.acknowledged, null);
});

test('a pushed subscription can be acknowledged as well, and its log keeps the states of sending', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['1', '2']);
  await subscriber.waitFor(2);
  const path = `/subscriptions/${id}`;
  assert.equal((await app.request('POST', `${path}/ack`, { json: { sequence: 1 } })).status, 200);
  const { body } = await app.request('GET', path);
  assert.equal(body.acknowledged.sequence, 1);
  await until(
    async () => (await app.request('GET', `${path}/deliveries?status=succeeded`)).body.items.length,
    (count) => count === 2,
  );
});
