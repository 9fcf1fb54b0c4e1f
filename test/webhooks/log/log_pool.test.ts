/** The connections of a node: reads of the log block nothing else, and a node stays within its limit. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { waitingMax } from '../../../src/collections/list_turns.ts';
import { connectionsDefault, connectionsMin } from '../../../src/config/connections.ts';
import { divideConnections, findConnectionShortage } from '../../../src/database/connections.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_DATABASE_CONNECTIONS: String(connectionsMin) });
const { db } = server;
const range = (count: number) => Array.from({ length: count }, (_, index) => index);

test('readers of an unresponsive log block no article from being written', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/hooks' });
  const codes: (string | undefined)[] = [];
  const read = async () => {
    const { status, body } = await app.request('GET', `/subscriptions/${id}/deliveries?status=failed`);
    codes.push(status === 200 ? undefined : body.code);
  };
  const reading = await db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`lock table deliveries in access exclusive mode`.execute(tx);
    const sent = range(24).map(read);
    for (const index of range(10)) {
      const written = await app.request('POST', '/articles', { json: { title: `Article ${index}` } });
      assert.equal(written.status, 201, written.text);
    }
    // One is read, and is cancelled after a while. Few wait.
    await until(
      async () => codes,
      (found) => found.includes('log-busy'),
    );
    return sent;
  });
  await Promise.all(reading);
  assert.equal(codes.filter((code) => code === 'overloaded').length, 24 - 1 - waitingMax);
  assert.ok(codes.includes(undefined), 'those that waited are read when the log responds');
  assert.equal((await app.request('GET', `/subscriptions/${id}/deliveries`)).status, 200);
});

test('a node opens no more connections than its limit', async (t) => {
  const app = await createApp(server);
  const publisher = await createPublisher(server);
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe(app, { url: subscriber.url });
  const requests = range(60).map(() => [
    app.request('GET', `/subscriptions/${id}/deliveries`),
    app.request('POST', '/articles', { json: { title: 'Title' } }),
    publish(publisher, app.account, [1, 2, 3]),
  ]);
  await Promise.all(requests.flat());
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from pg_stat_activity where datname = current_database()`.execute(db);
  // The test's own pool has at most four.
  assert.ok((rows[0]?.count ?? 0) <= connectionsMin + 4, `${rows[0]?.count} connections`);
});

test('a node’s connection shares add up to its limit, whatever it is', () => {
  for (const total of [connectionsMin, 15, connectionsDefault, 50, 1_000]) {
    const { requests, log, engine } = divideConnections(total);
    assert.equal(requests + log + engine + 2, total);
    assert.ok(Math.min(requests, log) >= 2 && engine >= 4, JSON.stringify({ requests, log, engine }));
  }
});

test('a node reports a database without free connections', async () => {
  assert.equal(await findConnectionShortage(db, 2), undefined);
  assert.match((await findConnectionShortage(db, 100_000)) ?? '', /up to 100000 connections/);
});
