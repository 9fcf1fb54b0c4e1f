/**
 * Pages of the delivery log scan thousands of deliveries, and a live log reads one every second. Those of a few accounts must leave connections of
 * the log to events that are pulled.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';

// With places, requests have users.
const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });

/** Creates an app with a subscription that nothing is sent to. */
async function createPulling() {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: null });
  return { ...app, id, log: `/subscriptions/${id}/deliveries`, events: `/subscriptions/${id}/events` };
}

/** Pages of the log that wait for the lock of a table. */
async function lockedPages(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%as attempt_count%'`.execute(
    server.db,
  );
  return rows[0]?.count ?? 0;
}

/** No page of the log can be read while this runs. */
async function whilePagesWait<Result>(work: () => Promise<Result>): Promise<Result> {
  return server.db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`lock table attempts in access exclusive mode`.execute(tx);
    return work();
  });
}

test('attack: lists and live logs of four accounts leave connections of the log to pulled events', async () => {
  const stranger = await createPulling();
  await publish(await createPublisher(server), stranger.account, ['for the stranger']);
  await fannedOut(server);
  const hostile = await Promise.all(Array.from({ length: 4 }, createPulling));
  const ended = new AbortController();
  const streams = await Promise.all(
    hostile.map(({ accessToken, log }) =>
      fetch(server.baseUrl + log, {
        headers: { accept: 'text/event-stream', authorization: `Bearer ${accessToken}` },
        signal: ended.signal,
      }),
    ),
  );
  assert.deepEqual(
    streams.map(({ status }) => status),
    [200, 200, 200, 200],
  );
  const lists = await whilePagesWait(async () => {
    const sent = hostile.flatMap(({ request, log }) => [request('GET', log), request('GET', log)]);
    await until(lockedPages, (count) => count > 0);
    for (let pull = 0; pull < 5; pull += 1) {
      const { status, body } = await stranger.request('GET', stranger.events);
      assert.deepEqual([status, body.items?.length], [200, 1], JSON.stringify(body));
      assert.equal(await lockedPages(), 1, 'one page is read after the other');
    }
    return sent;
  });
  for (const { status } of await Promise.all(lists)) assert.equal(status, 200);
  ended.abort();
});

test('a page that waited is not shown to whoever lost the right to it meanwhile', async () => {
  const app = await createPulling();
  const listed = await whilePagesWait(async () => {
    const sent = app.request('GET', app.log);
    await until(lockedPages, (count) => count === 1);
    const { status } = await app.request('DELETE', `/subscriptions/${app.id}`);
    assert.equal(status, 204);
    return [sent];
  });
  assert.deepEqual(
    (await Promise.all(listed)).map(({ status }) => status),
    [404],
  );
});
