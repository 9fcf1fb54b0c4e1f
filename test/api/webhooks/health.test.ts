/** Subscription health from stored counts, log filters by time and id, and the log as server-sent events. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { latencyBoundsMs, percentile } from '../../../src/webhooks/log/delivery_stats.ts';
import { type ConsoleUser, createConsoleUser } from '../../support/console/console_user.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  addPaused,
  createApp,
  createPublisher,
  publish,
  type Request,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const { db } = server;
const publisher = await createPublisher(server);

test('a percentile is interpolated within its histogram bucket when most latencies share one', () => {
  const counts = (at: Record<number, number>) => latencyBoundsMs.map((bound) => at[bound] ?? 0);
  assert.equal(percentile(counts({}), 0.5), null);
  assert.equal(percentile(counts({ 10: 1 }), 0.5), 5);
  // 100 latencies of more than 25 and up to 50 ms.
  assert.equal(percentile(counts({ 50: 100 }), 0.5), 37.5);
  assert.equal(percentile(counts({ 50: 100 }), 0.99), 49.8);
  // The 50th of 100 is the last of its bucket; the 99th is the 24th of 25 beyond the two buckets below.
  const mixed = counts({ 25: 50, 100: 25, 1000: 25 });
  assert.equal(percentile(mixed, 0.5), 25);
  assert.equal(percentile(mixed, 0.75), 100);
  assert.equal(percentile(mixed, 0.99), 980);
  // Longer latencies count in the last bucket.
  assert.equal(percentile(counts({ 15000: 4 }), 1), 15_000);
});

test('health reports outcomes, durations and reasons of failure', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['1', '2', '3']);
  await subscriber.waitFor(3);
  subscriber.behave(answer(503));
  await publish(publisher, app.account, ['4']);
  await subscriber.waitFor(5);
  const path = `/subscriptions/${id}/health`;
  const { body } = await until(
    () => app.request('GET', path),
    ({ body }) => body.totals.attempts === 5,
  );
  const { attempts, succeeded, failed, retried, cancelled, errors, latency_ms: latency } = body.totals;
  assert.deepEqual([attempts, succeeded, failed, retried, cancelled], [5, 3, 1, 1, 0]);
  assert.deepEqual(errors, { server_error: 2 });
  assert.ok(latency.p50 > 0 && latency.p99 >= latency.p50);
  assert.equal(body.bucket_seconds, 300);
  assert.equal(
    body.buckets.reduce((all: number, bucket: { attempts: number }) => all + bucket.attempts, 0),
    5,
  );
  assert.deepEqual(body.backlog, { pending: 0, is_capped: false, oldest_at: null });
  const day = 86_400_000;
  const since = new Date(Date.now() - 10 * day).toISOString();
  const coarse = await app.request('GET', `${path}?since=${since}`);
  assert.deepEqual([coarse.body.bucket_seconds, coarse.body.totals.attempts], [3_600, 5]);
  const before = await app.request('GET', `${path}?until=${new Date(Date.now() - day).toISOString()}`);
  assert.equal(before.body.totals.attempts, 0);
  for (const query of ['since=x', 'until=2026-02-30T00:00:00Z', 'since=2026-01-01T00:00:00Z', 'x=1']) {
    const { status } = await app.request('GET', `${path}?${query}`);
    assert.equal(status, 400, query);
  }
  const other = await createApp(server);
  assert.equal((await other.request('GET', path)).status, 404);
  // Several of one kind when attempts of this test were on both sides of the start of a bucket.
  const { rows } = await sql<{ seconds: number }>`
    select distinct seconds from delivery_stats where lane = 0 order by seconds`.execute(db);
  assert.deepEqual(
    rows.map(({ seconds }) => seconds),
    [300, 3_600],
    'of all subscriptions together, in both kinds of buckets',
  );
});

test('the backlog reports how much waits and since when', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [3_600] });
  await publish(publisher, app.account, ['1']);
  await subscriber.waitFor(1);
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}/health`),
    ({ body }) => body.backlog.pending === 1 && body.totals.attempts === 1,
  );
  assert.ok(Date.parse(body.backlog.oldest_at) <= Date.now());
});

test('health of all subscriptions sums those the token lists, and no others', async (t) => {
  const [subscriber, refusing] = [await startSubscriber(t), await startSubscriber(t, answer(500))];
  const app = await createApp(server);
  const stranger = await createApp(server);
  for (const each of [app, app, stranger]) await subscribe(each, { url: subscriber.url, kinds: ['push'] });
  await subscribe(app, { url: refusing.url, kinds: ['push'] });
  await publish(publisher, app.account, ['one', 'two']);
  await publish(publisher, stranger.account, ['other']);
  const { totals } = await until(
    async () => (await app.request('GET', '/deliveries/health')).body,
    ({ totals: { failed, succeeded } }) => failed + succeeded === 6,
  );
  assert.deepEqual([totals.attempts, totals.succeeded, totals.retried, totals.failed], [8, 4, 2, 2]);
  const bad = await app.request('GET', '/deliveries/health?since=yesterday');
  assert.equal(bad.status, 400);
});

test('attack: the health of many users’ subscriptions leaves connections for the log of others', async (t) => {
  const subscriber = await startSubscriber(t);
  const apps = await Promise.all(Array.from({ length: 6 }, () => createApp(server)));
  // For one subscription and for several.
  for (const [index, app] of apps.entries()) await addPaused(db, app, 1 + (index % 2));
  const other = await createApp(server);
  const { id } = await subscribe(other, { url: subscriber.url });
  const countWaiting = async () => {
    const { rows } = await sql`
      select from pg_locks
      where relation = 'delivery_stats'::regclass and mode = 'AccessShareLock' and not granted`.execute(db);
    return rows.length;
  };
  const asked = await db.transaction().execute(async (tx) => {
    await sql`lock table delivery_stats in access exclusive mode`.execute(tx);
    const asked = apps.map((app) => app.request('GET', '/deliveries/health'));
    await until(countWaiting, (waiting) => waiting > 1);
    // Time for the others to take connections, too.
    await sleep(500);
    assert.equal(await countWaiting(), 2);
    assert.equal((await other.request('GET', `/subscriptions/${id}/deliveries`)).status, 200);
    return asked;
  });
  assert.deepEqual(
    (await Promise.all(asked)).map(({ status }) => status),
    apps.map(() => 200),
  );
});

test('an app’s health covers its own subscriptions and is shown to its members', async (t) => {
  const subscriber = await startSubscriber(t);
  const owner = await createConsoleUser(server);
  const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/'] };
  const { body: app } = await owner.request('POST', '/apps', { json });
  for (let count = 0; count < 2; count += 1) {
    const made = await owner.request('POST', `/apps/${app.client_id}/subscriptions`, {
      json: { url: subscriber.url, kinds: ['push'] },
    });
    await owner.request('POST', `/subscriptions/${made.body.id}/test`, { json: { kind: 'push' } });
  }
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-event']),
    ['push', 'push'],
  );
  const path = `/apps/${app.client_id}/health`;
  await until(
    async () => (await owner.request('GET', path)).body.totals.succeeded,
    (count) => count === 2,
  );
  const other = await createConsoleUser(server);
  assert.equal((await other.request('GET', path)).status, 404);
});

test('a test event is its kind’s example, and another kind’s is refused', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  const sent = await app.request('POST', `/subscriptions/${id}/test`, { json: { kind: 'invoice.paid' } });
  assert.equal(sent.status, 202, sent.text);
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['nuncio-event'], 'invoice.paid');
  for (const kind of ['no.such', 'subscription.disabled', 7, null]) {
    const { status } = await app.request('POST', `/subscriptions/${id}/test`, { json: { kind } });
    assert.equal(status, 422, String(kind));
  }
});

test('the log filters by time and id, and refuses an impossible filter', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['1', '2', '3']);
  await subscriber.waitFor(3);
  const path = `/subscriptions/${id}/deliveries`;
  const { body: all } = await app.request('GET', path);
  // Shortly after midnight, both are of the day before.
  await sql`
    update events e set day = (now() at time zone 'utc' - interval '2 hours')::date
    from deliveries d join subscriptions s on s.lane = d.lane
    where s.id = ${id} and d.sequence = 1 and e.day = d.day and e.position = d.event`.execute(db);
  await sql`
    update deliveries
    set created_at = now() - interval '2 hours', day = (now() at time zone 'utc' - interval '2 hours')::date
    where (lane, sequence) in (select lane, 1 from subscriptions where id = ${id})`.execute(db);
  const sequences = async (query: string) => {
    const { body, status, text } = await app.request('GET', `${path}?${query}`);
    assert.equal(status, 200, text);
    return body.items.map(({ sequence }: { sequence: number }) => sequence);
  };
  const hourAgo = new Date(Date.now() - 3_600_000).toISOString();
  assert.deepEqual(await sequences(`since=${hourAgo}`), [3, 2]);
  assert.deepEqual(await sequences(`until=${hourAgo}`), [1]);
  assert.deepEqual(await sequences('until=2026-01-01T00:00:00Z'), []);
  assert.deepEqual(await sequences('since=2999-01-01T00:00:00Z'), []);
  assert.deepEqual(await sequences(`id=${all.items[1].id}`), [2]);
  assert.deepEqual(await sequences(`id=${all.items[1].id}&status=failed`), []);
  const other = await createApp(server);
  const others = await subscribe(other, { url: subscriber.url });
  assert.deepEqual(
    (await other.request('GET', `/subscriptions/${others.id}/deliveries?id=${all.items[0].id}`)).body.items,
    [],
  );
  for (const query of ['since=yesterday', 'until=1', 'since=2026-13-01T00:00:00Z', 'id=', 'id=x']) {
    assert.equal((await app.request('GET', `${path}?${query}`)).status, 400, query);
  }
  assert.deepEqual(await sequences('id=01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88'), []);
});

/** Opens a stream of server-sent events and collects them in the background. */
async function openStream(path: string, accessToken: string) {
  const abort = new AbortController();
  const response = await fetch(server.baseUrl + path, {
    headers: { accept: 'text/event-stream', authorization: `Bearer ${accessToken}` },
    signal: abort.signal,
  });
  let text = '';
  const reading = (async () => {
    const decoder = new TextDecoder();
    for await (const chunk of response.body ?? [])
      text += decoder.decode(chunk as Uint8Array, { stream: true });
  })().catch(() => {});
  const events = () =>
    [...text.matchAll(/^event: (\w+)\n(?:id: (\d+)\n)?data: (.*)\n\n/gm)].map(([, event, id, data = '']) => ({
      event,
      id,
      data: JSON.parse(data),
    }));
  return { response, events, reading, close: () => abort.abort() };
}

test('the live log streams existing, new and changed deliveries until the token expires', async (t) => {
  const subscriber = await startSubscriber(t, answer(503));
  const user = await createConsoleUser(server);
  const request: Request = user.request;
  const { body: made } = await request('POST', '/subscriptions', {
    json: { url: subscriber.url, kinds: ['push'] },
  });
  await publish(publisher, user.account, ['1']);
  await subscriber.waitFor(2);
  const path = `/subscriptions/${made.id}/deliveries`;
  const stream = await openStream(path, user.accessToken);
  t.after(() => stream.close());
  assert.equal(stream.response.status, 200);
  assert.equal(stream.response.headers.get('content-type'), 'text/event-stream; charset=utf-8');
  assert.equal(stream.response.headers.get('access-control-allow-origin'), '*');
  await until(
    async () => stream.events().map(({ data }) => data.state),
    (states) => states.at(-1) === 'failed',
  );
  subscriber.behave(answer(204));
  await publish(publisher, user.account, ['2']);
  await until(
    async () => stream.events().filter(({ id, data }) => id === '2' && data.state === 'succeeded'),
    (events) => events.length > 0,
  );
  const [first] = stream.events();
  const { body } = await request('GET', `/deliveries/${first?.data.id}`);
  assert.deepEqual(
    Object.keys(first?.data),
    Object.keys(body).filter((name) => !['body', 'attempts'].includes(name)),
  );
  await request('POST', `/deliveries/${first?.data.id}/resend`);
  await until(
    async () => stream.events().filter(({ id, data }) => id === '1' && data.state === 'succeeded'),
    (events) => events.length > 0,
  );

  const filtered = await openStream(`${path}?status=failed`, user.accessToken);
  t.after(() => filtered.close());
  await sql`update grants set withdrawn_at = now() where account_id = ${user.account.id}`.execute(db);
  await stream.reading;
  assert.deepEqual(stream.events().at(-1), { event: 'end', id: undefined, data: { reason: 'token' } });
  await filtered.reading;
  assert.deepEqual(
    filtered.events().map(({ event }) => event),
    ['end'],
  );
});

test('a stream requires the right to read the log, ends with the subscription and is limited in number', async (t) => {
  const user = await createConsoleUser(server);
  const other = await createConsoleUser(server);
  const { body: made } = await user.request('POST', '/subscriptions', {
    json: { url: 'https://example.com/', kinds: ['push'] },
  });
  const path = `/subscriptions/${made.id}/deliveries`;
  assert.equal((await openStream(path, other.accessToken)).response.status, 404);
  assert.equal((await openStream(path, 'x')).response.status, 401);
  assert.equal((await openStream(`${path}?status=x`, user.accessToken)).response.status, 400);
  const elsewhere = await openStream('/subscriptions', user.accessToken);
  assert.equal(elsewhere.response.status, 406);
  const streams: Awaited<ReturnType<typeof openStream>>[] = [];
  for (let count = 0; count < 5; count += 1) streams.push(await openStream(path, user.accessToken));
  t.after(() => {
    for (const stream of streams) stream.close();
  });
  const sixth = await openStream(path, user.accessToken);
  assert.equal(sixth.response.status, 429);
  await user.request('DELETE', `/subscriptions/${made.id}`);
  for (const stream of streams) {
    await stream.reading;
    assert.deepEqual(stream.events().at(-1)?.data, { reason: 'gone' });
  }
});

test('an account can have 20 streams with many tokens, and others have their own', async (t) => {
  const streams: Awaited<ReturnType<typeof openStream>>[] = [];
  t.after(() => {
    for (const stream of streams) stream.close();
  });
  const [greedy, other] = [await createConsoleUser(server), await createConsoleUser(server)];
  const open = async ({ account, request }: ConsoleUser) => {
    const { body: made } = await request('POST', '/subscriptions', {
      json: { url: 'https://example.com/', kinds: ['push'] },
    });
    const { accessToken } = await createConsoleUser(server, { account });
    const path = `/subscriptions/${made.id}/deliveries`;
    const opened = await Promise.all(Array.from({ length: 5 }, () => openStream(path, accessToken)));
    streams.push(...opened);
    return opened.map(({ response }) => response.status);
  };
  for (let token = 0; token < 4; token += 1) assert.deepEqual(await open(greedy), Array(5).fill(200));
  assert.deepEqual(await open(greedy), Array(5).fill(429));
  assert.deepEqual(await open(other), Array(5).fill(200));
});

test('a stopping server ends its streams', async (t) => {
  const own = await startTestServer(t);
  const user = await createConsoleUser(own);
  const { body: made } = await user.request('POST', '/subscriptions', {
    json: { url: 'https://example.com/', kinds: ['push'] },
  });
  const response = await fetch(`${own.baseUrl}/subscriptions/${made.id}/deliveries`, {
    headers: { accept: 'text/event-stream', authorization: `Bearer ${user.accessToken}` },
  });
  const reading = response.text();
  const closing = own.running.close();
  assert.match(await reading, /event: end\ndata: \{"reason":"shutdown"\}\n\n$/);
  await closing;
});
