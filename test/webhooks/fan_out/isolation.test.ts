/** What goes wrong with one account’s events or lanes does not stop the others. No test compares times. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  addPaused,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const numbers = (count: number) => Array.from({ length: count }, (_, index) => index);
const markOf = ({ body }: { body: string }) => JSON.parse(body).ref?.slice('refs/heads/'.length);

interface LaneLog {
  lane: string;
  sequences: number[];
  events: number[];
}

/** The deliveries of each lane, in order of the sequence. */
async function logOf(db: Database): Promise<LaneLog[]> {
  const { rows } = await sql<LaneLog>`
    select lane, array_agg(sequence::int order by sequence) as sequences, array_agg(event::int order by sequence) as events
    from deliveries group by lane`.execute(db);
  return rows;
}

function assertComplete(log: LaneLog[], count: number): void {
  for (const { sequences, events } of log) {
    assert.deepEqual(
      sequences,
      numbers(count).map((index) => index + 1),
    );
    assert.deepEqual(
      events,
      events.toSorted((a, b) => a - b),
    );
    assert.equal(new Set(events).size, count);
  }
}

/** Locks a subscription's lane in another session until the returned function is called. */
async function lockLane(
  t: TestContext,
  db: Database,
  subscription: string,
  table = 'lanes',
): Promise<() => Promise<void>> {
  const [isLocked, mayEnd] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const column = table === 'lanes' ? 'id' : 'lane';
  const session = db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`
      select from ${sql.table(table)}
      where ${sql.ref(column)} = (select lane from subscriptions where id = ${subscription}) for update`.execute(
      tx,
    );
    isLocked.resolve();
    await mayEnd.promise;
  });
  t.after(() => mayEnd.resolve());
  await isLocked.promise;
  return async () => {
    mayEnd.resolve();
    await session;
  };
}

for (const table of ['lanes', 'lane_progress']) {
  test(`a locked row of ${table} delays only its own lane, which gets its deliveries later and in order`, async (t) => {
    const server = await startTestServer(t);
    const { db } = server;
    const publisher = await createPublisher(server);
    const app = await createApp(server);
    const subscribers = { locked: await startSubscriber(t), free: await startSubscriber(t) };
    const { id } = await subscribe(app, { url: subscribers.locked.url });
    await subscribe(app, { url: subscribers.free.url });
    const unlock = await lockLane(t, db, id, table);
    for (const mark of numbers(20)) await publish(publisher, app.account, [mark]);
    await subscribers.free.waitFor(20);
    assert.equal(subscribers.locked.received.length, 0);
    await unlock();
    await publish(publisher, app.account, ['last']);
    const received = await subscribers.locked.waitFor(21);
    assert.equal(new Set(received.map(markOf)).size, 21);
    await subscribers.free.waitFor(21);
    await fannedOut(server);
    assertComplete(await logOf(db), 21);
    const { rows } = await sql`select from deferred_deliveries`.execute(db);
    assert.equal(rows.length, 0);
  });
}

/** Makes the database refuse deliveries in the lanes of an app, with an SQLSTATE. Counts the refusals. */
async function refuseLanes(db: Database, { account }: Pick<App, 'account'>, code: string): Promise<void> {
  await sql
    .raw(`
    create sequence if not exists refusals;
    create or replace function refuse() returns trigger language plpgsql as $$
    begin
      if new.lane in (select lane from subscriptions where account_id = '${account.id}') then
        perform nextval('refusals');
        raise exception 'refused' using errcode = '${code}';
      end if;
      return new;
    end $$;
    create or replace trigger refuse before insert on deliveries for each row execute function refuse()`)
    .execute(db);
}

async function fenceAndRefusals(db: Database): Promise<{ fence: string; refusals: number }> {
  const { rows } = await sql<{ fence: string; refusals: number }>`
    select fence, (select last_value::int from refusals) as refusals from leases where name = 'fan-out'`.execute(
    db,
  );
  return rows[0] as { fence: string; refusals: number };
}

test('whatever the database reports about one account’s events, they are parked, and the others continue', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const publisher = await createPublisher(server);
  const [refused, healthy] = [await createApp(server), await createApp(server)];
  const subscriber = await startSubscriber(t);
  await subscribe(refused, { url: subscriber.url });
  const other = await startSubscriber(t);
  await subscribe(healthy, { url: other.url });
  const codes = ['23505', 'P0001', 'XX000', 'XX001', '22P02', '54000', '58030', '0A000', '42704', '42501'];
  for (const [index, code] of codes.entries()) {
    await refuseLanes(db, refused, code);
    await publish(publisher, refused.account, [code]);
    await publish(publisher, healthy.account, [code]);
    await other.waitFor(index + 1);
    await until(
      async () => (await sql`select from parked_events`.execute(db)).rows.length,
      (count) => count === index + 1,
    );
    assert.equal((await fetch(`${server.baseUrl}/readyz`)).status, 200, code);
  }
  assert.equal(subscriber.received.length, 0);
  const { rows } = await sql<{ reason: string }>`select distinct reason from parked_events`.execute(db);
  assert.deepEqual(rows, [{ reason: 'refused' }]);
});

test('events for a damaged filter are parked, and the others continue', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const publisher = await createPublisher(server);
  const [damaged, healthy] = [await createApp(server), await createApp(server)];
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe(damaged, { url: subscriber.url });
  await subscribe(healthy, { url: subscriber.url });
  await sql`update subscriptions set filter_digest = '\\x01', filter_path = '$.ref == $unknown' where id = ${id}`.execute(
    db,
  );
  await publish(publisher, damaged.account, ['damaged']);
  await publish(publisher, healthy.account, ['healthy']);
  const [received] = await subscriber.waitFor(1);
  assert.equal(markOf(received as { body: string }), 'healthy');
  const parked = () => sql<{ reason: string }>`select reason from parked_events`.execute(db);
  const { rows } = await until(parked, ({ rows }) => rows.length > 0);
  assert.match(rows.map(({ reason }) => reason).join(), /unknown/);
});

test('while the statement itself cannot run, no event is parked, and all arrive afterwards', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const publisher = await createPublisher(server);
  const app = await createApp(server);
  const subscriber = await startSubscriber(t);
  await subscribe(app, { url: subscriber.url });
  await sql`alter table lanes rename to elsewhere`.execute(db);
  await publish(publisher, app.account, ['first']);
  // Each node that tries gives the lease up.
  const readFence = async () => {
    const { rows } = await sql<{ fence: string }>`select fence from leases where name = 'fan-out'`.execute(
      db,
    );
    return Number(rows[0]?.fence);
  };
  const fence = await readFence();
  await until(readFence, (current) => current > fence + 2);
  await sql`alter table elsewhere rename to lanes`.execute(db);
  await subscriber.waitFor(1);
  assert.equal((await sql`select from parked_events`.execute(db)).rows.length, 0);
});

test('a lane that the database refuses, with deliveries that were set aside, does not stop the others', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const publisher = await createPublisher(server);
  const [refused, healthy] = [await createApp(server), await createApp(server)];
  const subscribers = [await startSubscriber(t), await startSubscriber(t), await startSubscriber(t)] as const;
  const [first, second] = [
    await subscribe(refused, { url: subscribers[0].url }),
    await subscribe(healthy, { url: subscribers[1].url }),
  ];
  await subscribe(healthy, { url: subscribers[2].url });
  const unlock = [await lockLane(t, db, first.id), await lockLane(t, db, second.id)];
  await publish(publisher, refused.account, ['set aside']);
  await publish(publisher, healthy.account, ['set aside']);
  await subscribers[2].waitFor(1);
  await until(
    async () => (await sql`select from deferred_deliveries`.execute(db)).rows.length,
    (count) => count === 2,
  );
  await refuseLanes(db, refused, '23514');
  for (const end of unlock) await end();
  await subscribers[1].waitFor(1);
  for (const mark of numbers(20)) {
    await publish(publisher, healthy.account, [mark]);
    await subscribers[1].waitFor(mark + 2);
  }
  assert.equal((await fetch(`${server.baseUrl}/readyz`)).status, 200);
  // A refusal does not end the leader's lease. On a slow machine the lease may expire, but not between any two refusals.
  await until(
    async () => {
      const before = await fenceAndRefusals(db);
      const later = await until(
        () => fenceAndRefusals(db),
        ({ refusals }) => refusals >= before.refusals + 2,
      );
      return later.fence === before.fence;
    },
    (isHeld) => isHeld,
  );
  await sql`drop trigger refuse on deliveries`.execute(db);
  await subscribers[0].waitFor(1);
});

test('an event for 15,000 subscriptions is fanned out in slices, with another account’s event between them', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const publisher = await createPublisher(server);
  const [large, healthy] = [await createApp(server), await createApp(server)];
  const subscriber = await startSubscriber(t);
  await addPaused(db, large, 15_000);
  await subscribe(healthy, { url: subscriber.url });
  await publish(publisher, large.account, ['first', 'second']);
  await publish(publisher, healthy.account, ['healthy']);
  await subscriber.waitFor(1);
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from deliveries`.execute(db);
  assert.ok((rows[0]?.count ?? 0) < 30_000, 'the other account did not wait for all deliveries');
  await fannedOut(server);
  const log = (await logOf(db)).filter(({ sequences }) => sequences.length > 1);
  assert.equal(log.length, 15_000);
  assertComplete(log, 2);
});
