/** From an event to its delivery: recipients, retries, cancellation and the log. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { appendEvent } from '../../src/events/event.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s' });
const publisher = await createPublisher(server);

const marksOf = (received: { body: string }[]) =>
  received.map(({ body }) => JSON.parse(body).ref.slice('refs/heads/'.length));

async function deliveries(app: App, id: string, query = '') {
  return (await app.request('GET', `/subscriptions/${id}/deliveries?limit=200${query}`)).body.items;
}

test('an event reaches its account’s subscriptions and no others', async (t) => {
  const [mine, others] = [await startSubscriber(t), await startSubscriber(t)];
  const [app, stranger] = [await createApp(server), await createApp(server)];
  const { id } = await subscribe(app, { url: `${mine.url}/hook?x=1`, kinds: ['push'] });
  await subscribe(stranger, { url: others.url });
  await publish(publisher, app.account, ['a', 'b', 'c']);
  const received = await mine.waitFor(3);
  assert.deepEqual(marksOf(received).sort(), ['a', 'b', 'c']);
  assert.deepEqual(
    received.map(({ path }) => path),
    ['/hook?x=1', '/hook?x=1', '/hook?x=1'],
  );
  const items = await until(
    () => deliveries(app, id),
    (list) => list.every(({ state }: { state: string }) => state === 'succeeded'),
  );
  assert.deepEqual(
    items.map(({ sequence }: { sequence: number }) => sequence),
    [3, 2, 1],
  );
  const { body } = await app.request('GET', `/deliveries/${items[0].id}`);
  assert.equal(body.attempt_count, 1);
  assert.equal(body.attempts[0].status, 204);
  assert.equal(body.attempts[0].error, null);
  assert.equal(others.received.length, 0);
});

test('webhooks 13: a subscription gets only kinds that its grant’s scopes may read, also after the grant narrows', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server, { scopes: ['read:posts', 'write:webhooks', 'read:webhooks'] });
  await subscribe(app, { url: subscriber.url });
  const invoice = { invoice: { id: 'inv_1', amount: 1, currency: 'EUR' } };
  await publisher('POST', '/events', {
    json: { kind: 'invoice.paid', account: app.account.id, body: invoice },
  });
  await publish(publisher, app.account, ['allowed']);
  await subscriber.waitFor(1);
  await sql`update grants set scopes = '{read:profile,read:webhooks}' where id = ${app.grantId}`.execute(
    server.db,
  );
  await publish(publisher, app.account, ['no more']);
  await publisher('POST', '/events', {
    json: { kind: 'invoice.paid', account: app.account.id, body: invoice },
  });
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-event']),
    ['push', 'invoice.paid'],
  );
});

test('webhooks 16: an event of a rolled-back transaction does not exist', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const event = { accountId: app.account.id, kind: 'push', body: pushBody('rolled back') };
  await assert.rejects(
    server.db.transaction().execute(async (tx) => {
      await appendEvent(tx, event);
      throw new Error('no');
    }),
    /^Error: no$/,
  );
  await server.db.transaction().execute((tx) => appendEvent(tx, { ...event, body: pushBody('committed') }));
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['committed']);
  const { rows } = await sql`select from events where body like '%rolled back%'`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a change of an article reaches its owner’s subscription', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, kinds: ['article.*'] });
  const { body } = await app.request('POST', '/articles', { json: { title: 'Hello' } });
  await app.request('POST', `/articles/${body.id}/publish`);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(received.map(({ headers }) => headers['nuncio-event']).sort(), [
    'article.created',
    'article.published',
  ]);
  for (const { body: text } of received) assert.equal(JSON.parse(text).article.id, body.id);
});

test('withdrawing a grant ends its subscription, cancels what waits and adds nothing', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  await withdrawGrant(server.db, app.grantId, 'user');
  const { rows } = await sql<{ state: string }>`select state from subscriptions where id = ${id}`.execute(
    server.db,
  );
  assert.equal(rows[0]?.state, 'ended');
  const count = subscriber.received.length;
  await publish(publisher, app.account, ['after']);
  await new Promise((resolve) => setTimeout(resolve, 2_500));
  assert.equal(subscriber.received.length, count);
  // The withdrawal also ends the app's token.
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).status, 401);
});

test('deleting the account or the client ends their subscriptions', async () => {
  const [first, second] = [await createApp(server), await createApp(server)];
  const ids = [];
  for (const app of [first, second]) ids.push((await subscribe(app, { url: 'https://example.com/' })).id);
  await sql`delete from accounts where id = ${first.account.id}`.execute(server.db);
  await sql`delete from clients where id = ${second.clientId}`.execute(server.db);
  const { rows } = await sql<{
    state: string;
  }>`select state from subscriptions where id = any(${ids}::uuid[])`.execute(server.db);
  assert.deepEqual(
    rows.map(({ state }) => state),
    ['ended', 'ended'],
  );
});

test('webhooks 35, 36, 41: a retry has the same id, a new timestamp and the next attempt number', async (t) => {
  const subscriber = await startSubscriber(t, answer(503));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['again']);
  await subscriber.waitFor(2);
  subscriber.behave(answer(200));
  const received = await subscriber.waitFor(3);
  assert.equal(new Set(received.map(({ headers }) => headers['nuncio-delivery'])).size, 1);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-attempt']),
    ['1', '2', '3'],
  );
  const timestamps = received.map(
    ({ headers }) => /^t=(\d+)/.exec(headers['nuncio-signature'] as string)?.[1],
  );
  assert.equal(new Set(timestamps).size, 3);
  assert.equal(new Set(received.map(({ body }) => body)).size, 1);
  const [item] = await until(
    () => deliveries(app, id),
    ([first]) => first.state === 'succeeded',
  );
  assert.equal(item.attempt_count, 3);
  assert.equal(item.next_attempt_at, null);
});

test('webhooks 59: a delivery fails after its last attempt; webhooks 71: it can be resent by hand', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1] });
  await publish(publisher, app.account, ['fails']);
  const [failed] = await until(
    () => deliveries(app, id),
    ([first]) => first?.state === 'failed',
  );
  assert.equal(failed.attempt_count, 2);
  assert.deepEqual(await deliveries(app, id, '&status=succeeded'), []);
  assert.equal((await deliveries(app, id, '&status=failed')).length, 1);
  const resend = () => app.request('POST', `/deliveries/${failed.id}/resend`);
  assert.equal((await resend()).status, 202);
  await subscriber.waitFor(3);
  await until(
    () => deliveries(app, id),
    ([first]) => first.attempt_count === 3 && first.state === 'failed',
  );
  subscriber.behave(answer(200));
  assert.equal((await resend()).status, 202);
  await until(
    () => deliveries(app, id),
    ([first]) => first.state === 'succeeded',
  );
  // A succeeded delivery can be resent, too, and two resends send it twice.
  await Promise.all([resend(), resend()]);
  await subscriber.waitFor(6);
  const { body } = await until(
    () => app.request('GET', `/deliveries/${failed.id}`),
    (one) => one.body.attempts.length === 6,
  );
  assert.equal(body.state, 'succeeded');
  assert.deepEqual(
    body.attempts.map(({ trigger }: { trigger: string }) => trigger),
    ['schedule', 'schedule', 'manual', 'manual', 'manual', 'manual'],
  );
  assert.equal(new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery'])).size, 1);
});

test('a resend during the first attempt is that attempt', async (t) => {
  let respond = () => {};
  const subscriber = await startSubscriber(t, (_received, response) => {
    respond = () => response.writeHead(204).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['slow']);
  await subscriber.waitFor(1);
  const [slow] = await deliveries(app, id);
  const path = `/deliveries/${slow.id}`;
  assert.equal(slow.attempt_count, 0);
  assert.equal((await app.request('POST', `${path}/resend`)).status, 202);
  respond();
  const { body } = await until(
    () => app.request('GET', path),
    (one) => one.body.state === 'succeeded',
  );
  assert.equal(body.attempts.length, 1);
  assert.equal(subscriber.received.length, 1);
});

test('webhooks 45: a 410 disables the subscription, and later events are held, also after it is enabled again', async (t) => {
  const [subscriber, witness] = [await startSubscriber(t, answer(410)), await startSubscriber(t)];
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  await subscribe(app, { url: witness.url, kinds: ['subscription.disabled'] });
  await publish(publisher, app.account, ['gone']);
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}`),
    (one) => one.body.state === 'disabled',
  );
  assert.equal(body.disabled_reason, 'gone');
  const [told] = await witness.waitFor(1);
  assert.deepEqual(JSON.parse(told?.body as string), {
    subscription: { id, url: `${subscriber.url}/` },
    reason: 'gone',
  });
  await publish(publisher, app.account, ['meanwhile']);
  const held = await until(
    () => deliveries(app, id, '&status=held'),
    (list) => list.length === 2,
  );
  subscriber.behave(answer(204));
  assert.equal(
    (await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'active' } })).status,
    200,
  );
  await publish(publisher, app.account, ['fresh']);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(marksOf(received), ['gone', 'fresh']);
  assert.equal((await deliveries(app, id, '&status=held')).length, 2);
  const meanwhile = held.find(({ attempt_count }: { attempt_count: number }) => attempt_count === 0);
  assert.equal((await app.request('POST', `/deliveries/${meanwhile.id}/resend`)).status, 202);
  assert.deepEqual(marksOf(await subscriber.waitFor(3)).at(-1), 'meanwhile');
});

test('webhooks 18: an invalid body is 422 with a pointer, and nothing of its batch is accepted', async () => {
  const app = await createApp(server);
  const good = { kind: 'push', account: app.account.id, body: pushBody('whole batch') };
  const bad = { ...good, body: { ...pushBody(), commits: 'none' } };
  const { status, body } = await publisher('POST', '/events', { json: [good, bad] });
  assert.equal(status, 422);
  assert.deepEqual(
    body.errors.map(({ pointer }: { pointer: string }) => pointer),
    ['/1/body/commits'],
  );
  const unknown = await publisher('POST', '/events', { json: { ...good, kind: 'nothing' } });
  assert.equal(unknown.body.errors[0].pointer, '/kind');
  const nobody = await publisher('POST', '/events', { json: { ...good, account: app.clientId } });
  assert.equal(nobody.body.errors[0].pointer, '/account');
  for (const id of [undefined, randomUUID()]) {
    const batch = [
      { ...good, id },
      { ...good, account: randomUUID() },
    ];
    const unowned = await publisher('POST', '/events', { json: batch });
    assert.equal(unowned.status, 422);
    assert.deepEqual(unowned.body.errors, [
      { pointer: '/1/account', message: 'must be the id of an account', code: 'unknown-account' },
    ]);
  }
  const builtIn = await publisher('POST', '/events', { json: { ...good, kind: 'ping', body: {} } });
  assert.equal(builtIn.status, 422);
  const { rows } = await sql`select from events where body like '%whole batch%'`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('webhooks 19: a body over 256 KiB is 413, and a batch over 1,000 events is refused', async () => {
  const app = await createApp(server);
  const event = (bytes: number) => ({
    kind: 'push',
    account: app.account.id,
    body: {
      ...pushBody('x'),
      commits: Array.from({ length: 5 }, () => ({ id: 'a', message: 'm'.repeat(bytes / 5) })),
    },
  });
  assert.equal((await publisher('POST', '/events', { json: event(262_144) })).status, 413);
  assert.equal((await publisher('POST', '/events', { json: event(261_000) })).status, 202);
  const many = Array.from({ length: 1_001 }, () => ({
    kind: 'push',
    account: app.account.id,
    body: pushBody(),
  }));
  assert.equal((await publisher('POST', '/events', { json: many })).status, 422);
  assert.equal((await publisher('POST', '/events', { json: [] })).status, 422);
});

test('webhooks 20: a repeated event id is one event, also concurrently, and refused with other content', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const event = {
    id: `order-${app.clientId}`,
    kind: 'push',
    account: app.account.id,
    body: pushBody('once'),
  };
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => publisher('POST', '/events', { json: [event] })),
  );
  for (const { status, body } of answers) {
    assert.equal(status, 202);
    assert.deepEqual(body.ids, [event.id]);
  }
  const other = await publisher('POST', '/events', { json: { ...event, body: pushBody('changed') } });
  assert.equal(other.status, 422);
  await publish(publisher, app.account, ['last']);
  assert.deepEqual(marksOf(await subscriber.waitFor(2)).sort(), ['last', 'once']);
});

test('webhooks 20: a repeated Idempotency-Key returns the first response and one event, also concurrently', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const json = { kind: 'push', account: app.account.id, body: pushBody('keyed') };
  const send = (changed = {}) =>
    publisher('POST', '/events', {
      json: { ...json, ...changed },
      headers: { 'idempotency-key': `publish-${app.clientId}` },
    });
  const twins = await Promise.all(Array.from({ length: 8 }, () => send()));
  assert.ok(twins.every(({ status }) => status === 202 || status === 409));
  const again = await send();
  assert.equal(again.status, 202);
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  for (const { status, body } of twins) if (status === 202) assert.deepEqual(body, again.body);
  const other = await send({ body: pushBody('changed') });
  assert.equal(other.status, 422);
  assert.equal(other.body.code, 'idempotency-key-reused');
  // A refused request does not use up its idempotency key.
  const headers = { 'idempotency-key': `refused-${app.clientId}` };
  assert.equal(
    (await publisher('POST', '/events', { json: { ...json, kind: 'none' }, headers })).status,
    422,
  );
  assert.equal((await publisher('POST', '/events', { json, headers })).status, 202);
  await publish(publisher, app.account, ['last']);
  assert.deepEqual(marksOf(await subscriber.waitFor(3)).sort(), ['keyed', 'keyed', 'last']);
});

test('a resend with an Idempotency-Key is one attempt, however often it is requested', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['once']);
  const { items } = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body,
    (list) => list.items[0]?.state === 'succeeded',
  );
  const path = `/deliveries/${items[0].id}`;
  const resend = (key: string) =>
    app.request('POST', `${path}/resend`, { headers: { 'idempotency-key': key } });
  const first = await resend('resend-1');
  assert.equal(first.status, 202, first.text);
  await subscriber.waitFor(2);
  const again = await resend('resend-1');
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  assert.equal(again.headers.get('location'), path);
  assert.deepEqual(again.body, first.body);
  assert.equal((await resend('resend-2')).headers.get('idempotency-replayed'), null);
  await subscriber.waitFor(3);
  const { body } = await until(
    () => app.request('GET', path),
    (answer) => answer.body.attempts.length >= 3,
  );
  assert.deepEqual(
    body.attempts.map(({ number }: { number: number }) => number),
    [1, 2, 3],
  );
});

test('only a machine client with write:events publishes', async () => {
  const app = await createApp(server);
  const json = { kind: 'push', account: app.account.id, body: pushBody() };
  assert.equal((await app.request('POST', '/events', { json })).status, 403);
  const kinds = await app.request('GET', '/event-kinds');
  const push = kinds.body.items.find(({ name }: { name: string }) => name === 'push');
  assert.equal(push.scope, 'read:posts');
  assert.equal(push.schema.type, 'object');
});

test('webhooks 66: an ordered subscription gets one delivery at a time, the next after the previous is finished', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  let open = 0;
  let most = 0;
  const failures = new Map([
    ['1', 2],
    ['3', 1],
  ]);
  subscriber.behave(({ body }, response) => {
    open += 1;
    most = Math.max(most, open);
    const mark = JSON.parse(body).ref.slice('refs/heads/'.length);
    const left = failures.get(mark) ?? 0;
    failures.set(mark, left - 1);
    setTimeout(() => {
      open -= 1;
      response.writeHead(left > 0 ? 500 : 204).end();
    }, 20);
  });
  await subscribe(app, { url: subscriber.url, ordered: true });
  await publish(publisher, app.account, [1, 2, 3, 4, 5]);
  const received = await subscriber.waitFor(8);
  assert.equal(most, 1);
  assert.deepEqual(marksOf(received), ['1', '1', '1', '2', '3', '3', '4', '5']);
});

test('a cloudevents body has the structured form and is signed as sent', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, format: 'cloudevents' });
  const { body: published } = await publish(publisher, app.account, ['cloud']);
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['content-type'], 'application/cloudevents+json');
  const event = JSON.parse(received?.body as string);
  assert.equal(event.specversion, '1.0');
  assert.equal(event.id, published.ids[0]);
  assert.equal(event.type, 'push');
  assert.deepEqual(event.data, pushBody('cloud'));
});
