/** Subscriptions that respond with 410, or fail for days: the nodes that send warn their owners, and disable them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { warnFailing } from '../../../src/webhooks/subscriptions/failing.ts';
import { disableByWorker } from '../../../src/webhooks/subscriptions/subscription_state.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

test('attack: nobody waits for the locked row of a subscription that is gone', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://subscriber.example/hooks' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  const lane = Number(rows[0]?.lane);
  await db.transaction().execute(async (tx) => {
    await sql`select from subscriptions where id = ${id} for update`.execute(tx);
    assert.deepEqual(await disableByWorker(db, [lane], 'gone'), []);
  });
  assert.deepEqual(await disableByWorker(db, [lane], 'gone'), [lane]);
  assert.deepEqual(await disableByWorker(db, [lane], 'gone'), []);
  const { body } = await app.request('GET', `/subscriptions/${id}`);
  assert.deepEqual([body.state, body.disabled_reason], ['disabled', 'gone']);
});

test('attack: many subscriptions that are gone at once take one connection, and others get their deliveries', async (t) => {
  const publisher = await createPublisher(server);
  const [gone, healthy] = [await startSubscriber(t, answer(410)), await startSubscriber(t)];
  const [app, other] = [await createApp(server), await createApp(server)];
  const count = 10;
  for (let index = 0; index < count; index += 1) await subscribe(app, { url: gone.url });
  await subscribe(other, { url: healthy.url });
  const countWaiting = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock' and query like '%update subscriptions%'`.execute(
      db,
    );
    return rows[0]?.count ?? 0;
  };
  await db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    // As while an index is built. Each subscription that is disabled has an entry in it.
    await sql`lock table audit_entries in share mode`.execute(tx);
    await publish(publisher, app.account, ['gone']);
    await gone.waitFor(count);
    await until(countWaiting, (waiting) => waiting > 0);
    await publish(publisher, other.account, ['healthy']);
    await healthy.waitFor(1);
    assert.equal(await countWaiting(), 1);
  });
  await until(
    async () => (await app.request('GET', '/subscriptions')).body.items,
    (items: { state: string }[]) => items.every(({ state }) => state === 'disabled'),
  );
});

test('attack: warnings of very many failing subscriptions are given in several transactions, each once', async () => {
  const app = await createApp(server);
  const count = 120;
  const ids: string[] = [];
  for (let index = 0; index < count; index += 1) {
    ids.push((await subscribe(app, { url: `https://subscriber.example/${index}` })).id);
  }
  await sql`
    update lane_progress set failures = 10, failing_since = now() - interval '3 days'
    where lane in (select lane from subscriptions where id = any(${ids}::uuid[]))`.execute(db);
  const given = await Promise.all([warnFailing(db), warnFailing(db)]);
  const warned = given.flat().map(({ subscription }) => subscription);
  assert.deepEqual(warned.sort(), ids.sort());
  const { rows } = await sql<{ count: number }>`
    select count(distinct w.xmin::text)::int as count from failing_warnings w join subscriptions s on s.lane = w.lane
    where s.id = any(${ids}::uuid[])`.execute(db);
  assert.ok((rows[0]?.count ?? 0) > 1, 'one transaction');
});
