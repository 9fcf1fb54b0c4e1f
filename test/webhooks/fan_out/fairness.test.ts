/**
 * Fairness of the fan-out: one account's backlog does not delay another's events. No test compares times. Each compares
 * which events have become deliveries when another account's event arrives.
 */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';
import { passLimits } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import {
  type App,
  addPaused,
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const numbers = (count: number) => Array.from({ length: count }, (_, index) => index);

/** Counts an account's events that have not become deliveries. */
async function waitingOf(db: Database, { account }: Pick<App, 'account'>): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select coalesce(sum(size), 0)::int as count from outbox where turn = ${account.id}`.execute(db);
  return rows[0]?.count ?? 0;
}

interface Scene {
  server: TestServer;
  publisher: Awaited<ReturnType<typeof createPublisher>>;
  attacker: App;
  healthy: App;
  subscriber: Awaited<ReturnType<typeof startSubscriber>>;
}

/** Creates an attacker with many subscriptions, and another account with one. */
async function setScene(t: TestContext, attackers: number): Promise<Scene> {
  const server = await startTestServer(t);
  const subscriber = await startSubscriber(t);
  const publisher = await createPublisher(server);
  const [attacker, healthy] = [await createApp(server), await createApp(server)];
  await addPaused(server.db, attacker, attackers);
  await subscribe(healthy, { url: subscriber.url });
  return { server, publisher, attacker, healthy, subscriber };
}

test('another account’s event arrives before a backlog of 1,000 subscriptions and 1,000 events is processed', async (t) => {
  const { server, publisher, attacker, healthy, subscriber } = await setScene(t, 1_000);
  await publish(publisher, attacker.account, numbers(1_000));
  await publish(publisher, healthy.account, ['healthy']);
  await subscriber.waitFor(1);
  const left = await waitingOf(server.db, attacker);
  assert.ok(left > 500, `${left} of 1,000 events were left`);
});

test('another account’s event arrives before a backlog of 20,000 subscriptions of one account is processed', async (t) => {
  const { server, publisher, attacker, healthy, subscriber } = await setScene(t, 20_000);
  await publish(publisher, attacker.account, numbers(60));
  await publish(publisher, healthy.account, ['healthy']);
  await subscriber.waitFor(1);
  const left = await waitingOf(server.db, attacker);
  assert.ok(left > 30, `${left} of 60 events were left`);
});

test('another account’s event arrives before 150 large bodies that a filter parses', async (t) => {
  const { server, publisher, attacker, healthy, subscriber } = await setScene(t, 1);
  await sql`
    update subscriptions set filter = '{}', filter_path = '$.ref == "none"', filter_digest = '\\x01'
    where account_id = ${attacker.account.id}`.execute(server.db);
  await sql`
    with event as (
      insert into events (id, account_id, kind, body)
      select gen_random_uuid()::text, ${attacker.account.id}::uuid, 'push', '{"ref":"","n":[1' || repeat(',1', 131000) || ']}'
      from generate_series(1, 150)
      returning day, position
    )
    insert into outbox (day, turn, positions)
    select day, ${attacker.account.id}::uuid, array_agg(position order by position) from event group by day`.execute(
    server.db,
  );
  await publish(publisher, healthy.account, ['healthy']);
  await subscriber.waitFor(1);
  const left = await waitingOf(server.db, attacker);
  assert.ok(left > 75, `${left} of 150 events were left`);
});

test('another account’s event arrives before the articles of an account with 5,000 subscriptions are processed', async (t) => {
  const { server, attacker, healthy, subscriber } = await setScene(t, 5_000);
  for (const number of numbers(150)) {
    const { status } = await attacker.request('POST', '/articles', { json: { title: `Article ${number}` } });
    assert.equal(status, 201);
  }
  const before = await waitingOf(server.db, attacker);
  const { status } = await healthy.request('POST', '/articles', { json: { title: 'healthy' } });
  assert.equal(status, 201);
  const [received] = await subscriber.waitFor(1);
  assert.match(received?.body ?? '', /healthy/);
  const left = await waitingOf(server.db, attacker);
  assert.ok(left > before / 2, `${left} of ${before} events were left`);
});

test('a notice to a subscription’s owner arrives before another account’s backlog is processed', async (t) => {
  const { server, publisher, attacker, healthy, subscriber } = await setScene(t, 1_000);
  const gone = await startSubscriber(t, (_received, response) => response.writeHead(410).end());
  await subscribe(healthy, { url: gone.url, kinds: ['push'] });
  const client = await createSubscribingClient(server);
  const ofClient = await startSubscriber(t);
  const { id } = await subscribe(client, { url: ofClient.url });
  const goneOfClient = await subscribe(client, { url: gone.url });
  await publish(publisher, attacker.account, numbers(1_000));
  await publish(publisher, healthy.account, ['healthy']);
  const test = await client.request('POST', `/subscriptions/${goneOfClient.id}/test`);
  assert.equal(test.status, 202, test.text);
  await subscriber.waitFor(2);
  await ofClient.waitFor(1);
  assert.match(subscriber.received.map(({ body }) => body).join(), /"reason":"gone"/);
  assert.match(ofClient.received.map(({ body }) => body).join(), /"reason":"gone"/, id);
  const left = await waitingOf(server.db, attacker);
  assert.ok(left > 500, `${left} of 1,000 events were left`);
});

test('another account’s event waits for two passes at most, whoever else has large fan-outs', async (t) => {
  const server = await startTestServer(t);
  const subscriber = await startSubscriber(t);
  const publisher = await createPublisher(server);
  const healthy = await createApp(server);
  await subscribe(healthy, { url: subscriber.url });
  const busy = await Promise.all(numbers(12).map(() => createApp(server)));
  for (const app of busy) await addPaused(server.db, app, 1_000);
  const eventsOf = ({ account }: App, mark: unknown) => ({
    kind: 'push',
    account: account.id,
    body: pushBody(mark),
  });
  const together = [...numbers(4).flatMap((mark) => busy.map((app) => eventsOf(app, mark)))];
  const { status, text } = await publisher('POST', '/events', {
    json: [...together, eventsOf(healthy, 'first')],
  });
  assert.equal(status, 202, text);
  for (const [index, mark] of ['second', 'third'].entries()) {
    await subscriber.waitFor(index + 1);
    await publish(publisher, healthy.account, [mark]);
  }
  await subscriber.waitFor(3);
  // All deliveries of a pass have the time of its statement.
  const { rows } = await sql<{ between: number }>`
    select count(other.lane)::int as between
    from deliveries d
    join events e on e.day = d.day and e.position = d.event
    join subscriptions s on s.lane = d.lane
    left join deliveries other on other.created_at between e.created_at and d.created_at and other.lane <> d.lane
    where s.account_id = ${healthy.account.id} group by e.position`.execute(server.db);
  assert.equal(rows.length, 3);
  // Accounts like the busy ones have at most half of each pass.
  for (const { between } of rows) assert.ok(between <= passLimits.deliveries * 2, `${between} deliveries`);
});

test('three busy accounts take turns, each with its events in order', async (t) => {
  const server = await startTestServer(t);
  const publisher = await createPublisher(server);
  const apps = await Promise.all(numbers(3).map(() => createApp(server)));
  const events = 120;
  for (const app of apps) await addPaused(server.db, app, 400);
  for (const app of apps) await publish(publisher, app.account, numbers(events));
  await until(
    async () => (await sql`select from outbox limit 1`.execute(server.db)).rows.length,
    (count) => count === 0,
  );
  // What each pass added to one lane of each account.
  const { rows } = await sql<{ account: number; at: string; count: number; first: string; last: string }>`
    select array_position(${apps.map(({ account }) => account.id)}::uuid[], s.account_id) as account,
      d.created_at::text as at, count(*)::int as count, min(d.event) as first, max(d.event) as last
    from (select account_id, min(lane) as lane from subscriptions group by account_id) as s
    join deliveries d on d.lane = s.lane
    group by 1, 2 order by d.created_at::text`.execute(server.db);
  const passes = Map.groupBy(rows, ({ at }) => at);
  const taken = [0, 0, 0];
  let counted = [0, 0, 0];
  for (const pass of passes.values()) {
    const before = [...taken];
    for (const { account, count } of pass) (taken[account - 1] as number) += count;
    // Counts from the pass in which the last account begins to the pass in which the first one finishes.
    if (before.some((count) => count === events)) break;
    if (taken.every((count) => count > 0)) {
      counted = counted.map((count, index) => count + (taken[index] as number) - (before[index] as number));
    }
  }
  const [least = 0, , most = 0] = counted.toSorted((a, b) => a - b);
  assert.ok(least > 0 && most <= least * 2, `while all three were busy: ${counted.join(', ')}`);
  for (const own of Map.groupBy(rows, ({ account }) => account).values()) {
    for (const [index, { first }] of own.entries()) {
      assert.ok(index === 0 || Number(first) > Number(own[index - 1]?.last));
    }
  }
});

test('an app’s subscription gets each account’s events in order without a gap while accounts take turns', async (t) => {
  const server = await startTestServer(t);
  const publisher = await createPublisher(server);
  const subscriber = await startSubscriber(t);
  const client = await createSubscribingClient(server);
  const apps = await Promise.all(numbers(3).map(() => createApp(server)));
  for (const app of apps) {
    await addPaused(server.db, app, 100);
    await sql`
      insert into grants (id, account_id, client_id, scopes)
      values (gen_random_uuid(), ${app.account.id}, ${client.client.id}, '{read:posts}')`.execute(server.db);
  }
  await subscribe(client, { url: subscriber.url, kinds: ['push'], ordered: true });
  const events = numbers(300).flatMap((mark) =>
    apps.map(({ account }) => ({ kind: 'push', account: account.id, body: pushBody(mark) })),
  );
  const { status, text } = await publisher('POST', '/events', { json: events });
  assert.equal(status, 202, text);
  const received = await subscriber.waitFor(900);
  assert.deepEqual(
    received.map(({ headers }) => Number(headers['nuncio-sequence'])),
    numbers(900).map((index) => index + 1),
  );
  const { rows } = await sql<{ account: string; events: number[] }>`
    select e.account_id as account, array_agg(d.event::int order by d.sequence) as events
    from deliveries d join events e on e.day = d.day and e.position = d.event
    join subscriptions s on s.lane = d.lane and s.owner = 'client'
    group by 1`.execute(server.db);
  assert.equal(rows.length, 3);
  for (const { events: own } of rows) {
    assert.equal(own.length, 300);
    assert.deepEqual(
      own,
      own.toSorted((a, b) => a - b),
    );
  }
});

test('a user’s recovery finishes while another account’s thousands of recoveries have barely begun', async (t) => {
  const { server, publisher, attacker, healthy, subscriber } = await setScene(t, 2_000);
  const { id } = await subscribe(healthy, { url: `${subscriber.url}/other`, kinds: ['push'] });
  await publish(publisher, healthy.account, ['healthy']);
  await subscriber.waitFor(2);
  // Each recovery has a long range ahead.
  await sql`
    update lanes set next_sequence = 1000000
    where id in (select lane from subscriptions where account_id = ${attacker.account.id})`.execute(
    server.db,
  );
  await sql`
    insert into recoveries (id, lane, turn, since, until, states)
    select gen_random_uuid(), lane, account_id::text, now() - interval '1 day', now(), '{failed}'
    from subscriptions where account_id = ${attacker.account.id}`.execute(server.db);
  const begun = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from recoveries where turn = ${attacker.account.id} and position > 0`.execute(
      server.db,
    );
    return rows[0]?.count ?? 0;
  };
  await until(begun, (count) => count > 0);
  const before = await begun();
  const since = new Date(Date.now() - 3_600_000).toISOString();
  const { headers } = await healthy.request('POST', `/subscriptions/${id}/recover`, { json: { since } });
  const path = headers.get('location') as string;
  await until(
    () => healthy.request('GET', path),
    ({ body }) => body.state === 'done',
  );
  const steps = (await begun()) - before;
  assert.ok(steps < 1_000, `the other account’s recoveries had ${steps} steps meanwhile`);
});
