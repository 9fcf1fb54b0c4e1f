/** Deliveries that are retried: the log finds them and shows what the last attempt got. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

// biome-ignore lint/suspicious/noExplicitAny: a response
async function list(app: App, id: string, query: string): Promise<any[]> {
  const { status, body, text } = await app.request('GET', `/subscriptions/${id}/deliveries?${query}`);
  assert.equal(status, 200, text);
  return body.items;
}

test('a delivery is listed by status=failing, with its last response, when it waits for a retry', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [3_600] });
  await publish(publisher, app.account, ['accepted']);
  const [accepted] = await until(
    () => list(app, id, 'status=succeeded'),
    ({ length }) => length === 1,
  );
  assert.deepEqual([accepted.last_status, accepted.last_error], [204, null]);
  subscriber.behave(answer(500));
  await publish(publisher, app.account, ['refused']);
  const [failing] = await until(
    () => list(app, id, 'status=failing'),
    ({ length }) => length === 1,
  );
  const { state, attempt_count: attempts, last_status: status, last_error: error } = failing;
  assert.deepEqual([state, attempts, status, error], ['pending', 1, 500, 'unexpected_status']);
  assert.ok(Date.parse(failing.next_attempt_at) > Date.now());
  const read = (await app.request('GET', `/deliveries/${failing.id}`)).body;
  assert.deepEqual([read.last_status, read.last_error], [500, 'unexpected_status']);
  for (const [query, count] of [
    ['status=failed', 0],
    ['status=pending', 1],
    ['status=failing&kind=push', 1],
    ['status=failing&kind=ping', 0],
    [`status=failing&until=${new Date(Date.now() - 60_000).toISOString()}`, 0],
    [`status=failing&id=${failing.id}`, 1],
    [`status=failing&id=${accepted.id}`, 0],
  ] as const) {
    assert.equal((await list(app, id, query)).length, count, query);
  }
  const stranger = await createApp(server);
  const path = `/subscriptions/${id}/deliveries?status=failing`;
  assert.equal((await stranger.request('GET', path)).status, 404);

  await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
  assert.deepEqual(await list(app, id, 'status=failing'), [], 'it is held');
  await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'active' } });
  subscriber.behave(accept);
  await app.request('POST', `/deliveries/${failing.id}/resend`);
  const [resent] = await until(
    () => list(app, id, `id=${failing.id}`),
    ([only]) => only.state === 'succeeded',
  );
  assert.deepEqual([resent.attempt_count, resent.last_status, resent.last_error], [2, 204, null]);
  assert.deepEqual(await list(app, id, 'status=failing'), []);
});

test('the next attempt of a resent delivery is not before the end of the pause of its subscription', async (t) => {
  const subscriber = await startSubscriber(t, answer(503, { 'retry-after': '1800' }));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['refused']);
  const [failing] = await until(
    () => list(app, id, 'status=failing'),
    ({ length }) => length === 1,
  );
  assert.equal((await app.request('POST', `/deliveries/${failing.id}/resend`)).status, 202);
  const [resent] = await list(app, id, `id=${failing.id}`);
  assert.equal(resent.attempt_count, 1);
  assert.ok(Date.parse(resent.next_attempt_at) > Date.now() + 600_000, resent.next_attempt_at);
});

test('a delivery has an error and no status when its last attempt got no response', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1, 3_600] });
  await publish(publisher, app.account, ['refused, then cut']);
  await subscriber.waitFor(1);
  subscriber.behave((_received, response) => response.destroy());
  const [failing] = await until(
    () => list(app, id, 'status=failing'),
    ([first]) => first?.attempt_count === 2,
  );
  assert.deepEqual([failing.last_status, failing.last_error], [null, 'connection_error']);
});

test('deliveries that wait for their first attempt are not failing', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  await sql`
    update lane_progress set paused_until = now() + interval '1 hour'
    where lane = (select lane from subscriptions where id = ${id})`.execute(server.db);
  await publish(publisher, app.account, ['waits']);
  const [waiting] = await until(
    () => list(app, id, 'status=pending'),
    ({ length }) => length === 1,
  );
  assert.deepEqual([waiting.attempt_count, waiting.last_status, waiting.last_error], [0, null, null]);
  // As after an attempt that was put back before its first byte.
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    select lane, sequence, day, 'pending', 0, now() + interval '1 hour' from deliveries
    where lane = (select lane from subscriptions where id = ${id})`.execute(server.db);
  assert.deepEqual(await list(app, id, 'status=failing'), []);
});
