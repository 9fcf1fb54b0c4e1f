/** What stays of a subscription that has ended, and for how long. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { endClient, withdrawGrant } from '../../../src/grants/grant.ts';
import { sweepLanes } from '../../../src/webhooks/lanes/lane_sweep.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { type App, createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const url = 'https://example.com/hooks';

/** Each way to end the subscription of an app. */
const ends: Record<string, (app: App, id: string) => Promise<unknown>> = {
  'it is deleted': (app, id) => app.request('DELETE', `/subscriptions/${id}`),
  'its grant is withdrawn': (app) => withdrawGrant(db, app.grantId, 'user'),
  'its app is deleted': (app) => endClient(db, app.clientId),
  'its account is deleted': (app) => sql`delete from accounts where id = ${app.account.id}`.execute(db),
};

for (const [how, end] of Object.entries(ends)) {
  test(`the secrets of a subscription are erased when ${how}`, async () => {
    const app = await createApp(server);
    const { id } = await subscribe(app, { url, headers: { Authorization: 'Basic dXNlcjpwYXNz' } });
    await app.request('POST', `/subscriptions/${id}/rotate-secret`);
    await sql`update subscriptions set previous_secret = secret where id = ${id}`.execute(db);
    await end(app, id);
    const { rows } = await sql<Record<string, unknown>>`
      select state, length(secret) as secret, previous_secret, headers, header_names from subscriptions where id = ${id}`.execute(
      db,
    );
    assert.deepEqual(rows, [
      { state: 'ended', secret: 0, previous_secret: null, headers: null, header_names: ['Authorization'] },
    ]);
  });
}

async function laneOf(id: string): Promise<number> {
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  return Number(rows[0]?.lane);
}

/** The tables with rows of these lanes. */
async function tablesWith(lanes: readonly number[]): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select name from (
      select 'subscriptions' as name, lane from subscriptions
      union all select 'lanes', id from lanes
      union all select 'lane_progress', lane from lane_progress
      union all select 'subscription_revisions', lane from subscription_revisions
      union all select 'recoveries', lane from recoveries
      union all select 'retries', lane from retries
      union all select 'deliveries', lane from deliveries
    ) as each where lane = any(${[...lanes]}::bigint[]) group by name order by name`.execute(db);
  return rows.map(({ name }) => name);
}

async function endedDaysAgo(lane: number, days: number): Promise<void> {
  await sql`
    update subscriptions set state = 'ended', ended_at = now() - ${days}::int * interval '1 day' where lane = ${lane}`.execute(
    db,
  );
}

test('the rows of an ended subscription are deleted when the log has none of its deliveries', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const [live, recent, old] = await Promise.all(
    [1, 2, 3].map(async () => laneOf((await subscribe(app, { url: subscriber.url })).id)),
  );
  assert.ok(live !== undefined && recent !== undefined && old !== undefined);
  await publish(publisher, app.account, ['one']);
  await subscriber.waitFor(3);
  await sql`
    insert into recoveries (id, lane, since, until, states, state)
    values (${newId()}, ${old}, now(), now(), '{failed}', 'done')`.execute(db);
  await endedDaysAgo(recent, 29);
  await endedDaysAgo(old, 40);
  await sql`delete from deliveries where lane = ${recent}`.execute(db);
  const withLog = ['deliveries', 'lane_progress', 'lanes', 'subscription_revisions', 'subscriptions'];
  await applyRetention(db);
  assert.deepEqual(await tablesWith([old]), [...withLog, 'recoveries'].sort());
  await sql`delete from deliveries where lane = ${old}`.execute(db);
  await applyRetention(db);
  assert.deepEqual(await tablesWith([old]), []);
  assert.deepEqual(await tablesWith([recent]), withLog.slice(1));
  assert.deepEqual(await tablesWith([live]), withLog);
});

test('any number of ended subscriptions is deleted, and sweeps of lanes do not read them', async () => {
  const count = 450;
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret, state, ended_at)
    select gen_random_uuid(), number, 'user', gen_random_uuid(), 'http://127.0.0.1/', '{*}', 'timestamp', '', 'ended',
      now() - interval '40 days'
    from generate_series(1, ${count}::int) as number`.execute(db);
  await sql`insert into lanes (id) select generate_series(1, ${count}::int)`.execute(db);
  await sql`insert into lane_progress (lane) select generate_series(1, ${count}::int)`.execute(db);
  const lanes = Array.from({ length: count }, (_, index) => index + 1);
  const live = await sql`select from subscriptions where state <> 'ended'`.execute(db);
  const { last } = await sweepLanes(db, '1', 0, live.rows.length + 1);
  assert.equal(last, null, 'one slice has all live lanes');
  await applyRetention(db);
  assert.deepEqual(await tablesWith(lanes), []);
});
