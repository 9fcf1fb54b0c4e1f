/**
 * Pages of the delivery log scan thousands of deliveries, and a live log reads one every second. Those of a few accounts must leave connections of
 * the log to events that are pulled.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../support/servers/server.ts';
import {
  addPaused,
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

/** Statements with this text that wait for the lock of a table. */
async function lockedStatements(text: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like ${`%${text}%`}`.execute(
    server.db,
  );
  return rows[0]?.count ?? 0;
}

const lockedPages = () => lockedStatements('as attempt_count');

/** Nothing that reads the table is read while this runs. */
async function whileLocked<Result>(table: string, work: () => Promise<Result>): Promise<Result> {
  return server.db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`lock table ${sql.table(table)} in access exclusive mode`.execute(tx);
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
  const lists = await whileLocked('attempts', async () => {
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
  const listed = await whileLocked('attempts', async () => {
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

test('attack: whoever pulls does not keep the health of others waiting for the own share of connections', async () => {
  const [hostile, stranger] = [await createPulling(), await createPulling()];
  for (const app of [hostile, stranger]) await addPaused(server.db, app, 1);
  const pulled = await whileLocked('lane_epochs', async () => {
    const sent = hostile.request('GET', hostile.events);
    await until(
      () => lockedStatements('lane_epochs'),
      (count) => count === 1,
    );
    const asked = [hostile, stranger].map(({ request }) => request('GET', '/deliveries/health'));
    for (const { status, text } of await Promise.all(asked)) assert.equal(status, 200, text);
    return [sent];
  });
  assert.deepEqual(
    (await Promise.all(pulled)).map(({ status }) => status),
    [200],
  );
});
