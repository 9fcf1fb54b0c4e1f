/** Kinds that a subscription no longer has: deliveries that wait are cancelled, those sent by hand are sent. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, type Behaviour, countNow, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s' });
const { db } = server;
const publisher = await createPublisher(server);
const invoice = { invoice: { id: 'inv_1', amount: 1, currency: 'EUR' } };

/** An app with a subscription to pushes and paid invoices. */
async function start(t: TestContext, behaviour?: Behaviour) {
  const subscriber = await startSubscriber(t, behaviour);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push', 'invoice.paid'] });
  return { subscriber, app, id: id as string };
}

async function removePushes(app: App, id: string): Promise<void> {
  const { status } = await app.request('PATCH', `/subscriptions/${id}`, {
    json: { kinds: ['invoice.paid'] },
  });
  assert.equal(status, 200);
}

async function payInvoice({ account }: App): Promise<void> {
  const event = { kind: 'invoice.paid', account: account.id, body: invoice };
  assert.equal((await publisher('POST', '/events', { json: [event] })).status, 202);
}

async function statesOf({ request }: App, id: string): Promise<Record<string, number>> {
  const { body } = await request('GET', `/subscriptions/${id}/deliveries?limit=100`);
  const counts: Record<string, number> = {};
  for (const { state } of body.items) counts[state] = (counts[state] ?? 0) + 1;
  return counts;
}

const kindsOf = (received: { headers: Record<string, unknown> }[]) =>
  received.map(({ headers }) => headers['nuncio-event']);

test('no waiting delivery starts after its kind was removed from the subscription, in memory or not', async (t) => {
  const open: ServerResponse[] = [];
  const { subscriber, app, id } = await start(t, (_received, response) => open.push(response));
  await publish(
    publisher,
    app.account,
    Array.from({ length: 60 }, (_, index) => index),
  );
  await fannedOut(server);
  await subscriber.waitFor(1);
  await removePushes(app, id);
  const started = await countNow(subscriber);
  await payInvoice(app);
  subscriber.behave(accept);
  for (const response of open) response.writeHead(204).end();
  await subscriber.waitFor(started + 1);
  assert.deepEqual(kindsOf(subscriber.received.slice(started)), ['invoice.paid']);
  const ended = { succeeded: started + 1, cancelled: 60 - started };
  await until(
    () => statesOf(app, id),
    (states) => JSON.stringify(states) === JSON.stringify({ ...states, ...ended }) && !('pending' in states),
  );
});

test('a retry is cancelled when its kind was removed from the subscription', async (t) => {
  const { subscriber, app, id } = await start(t, (_received, response) => response.writeHead(503).end());
  await publish(publisher, app.account, [1]);
  await subscriber.waitFor(1);
  await until(
    () => sql`select from retries where lane = (select lane from subscriptions where id = ${id})`.execute(db),
    ({ rows }) => rows.length === 1,
  );
  await removePushes(app, id);
  const tried = subscriber.received.length;
  await until(
    () => statesOf(app, id),
    ({ cancelled }) => cancelled === 1,
  );
  assert.equal(subscriber.received.length, tried);
});

test('tests and resends are sent when the subscription does not have their kind', async (t) => {
  const { subscriber, app, id } = await start(t);
  await publish(publisher, app.account, [1]);
  await until(
    () => statesOf(app, id),
    ({ succeeded }) => succeeded === 1,
  );
  await removePushes(app, id);
  const { body } = await app.request('GET', `/subscriptions/${id}/deliveries`);
  const send = async (path: string, json: unknown) => {
    const before = subscriber.received.length;
    const { status, text } = await app.request('POST', path, { json });
    assert.equal(status, 202, text);
    await subscriber.waitFor(before + 1);
  };
  await send(`/deliveries/${body.items[0].id}/resend`, {});
  await send(`/subscriptions/${id}/test`, {});
  await send(`/subscriptions/${id}/test`, { kind: 'push' });
  assert.deepEqual(kindsOf(subscriber.received), ['push', 'push', 'ping', 'push']);
});

test('an event about a subscription is sent although the other subscription lost its kind', async (t) => {
  const open: ServerResponse[] = [];
  const { subscriber, app, id } = await start(t, (_received, response) => open.push(response));
  const event = { kind: 'subscription.failing', body: pushBody() };
  await sql`
    with event as (
      insert into events (id, account_id, kind, body)
      values (gen_random_uuid()::text, ${app.account.id}, ${event.kind}, ${JSON.stringify(event.body)})
      returning day, position, account_id
    )
    insert into outbox (day, turn, positions, lanes)
    select day, account_id, array[position], array(select lane from subscriptions where id = ${id}) from event`.execute(
    db,
  );
  await subscriber.waitFor(1);
  assert.deepEqual(kindsOf(subscriber.received), ['subscription.failing']);
  for (const response of open) response.writeHead(204).end();
});
