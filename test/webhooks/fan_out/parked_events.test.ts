/** A failing fan-out pass is split until one event remains, which is parked. Restarts within an outbox row. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../../src/config/config.ts';
import type { Database } from '../../../src/database/database.ts';
import { appendEvent } from '../../../src/events/event.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { prepareProcess, runCommand, startProcess } from '../../support/servers/process.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const numbers = (count: number) => Array.from({ length: count }, (_, index) => index);
const markOf = ({ body }: { body: string }) => JSON.parse(body).ref?.slice('refs/heads/'.length);

/** Makes the database refuse every statement that writes a delivery of a refused event. */
async function refuseEvents(db: Database): Promise<void> {
  await sql`create table refused (position bigint primary key)`.execute(db);
  await sql
    .raw(`
    create function refuse() returns trigger language plpgsql as $$
    begin
      if exists (select from refused where position = new.event) then
        raise exception 'invalid page in block 7' using errcode = 'XX001';
      end if;
      return new;
    end $$;
    create trigger refuse before insert on deliveries for each row execute function refuse()`)
    .execute(db);
}

test('an event that fan-out cannot process is parked with the reason, others continue, and it can be retried', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const settings = { DATABASE_URL: server.databaseUrl, NUNCIO_SECRET: testSecret.toString() };
  const subscribers = { refused: await startSubscriber(t), healthy: await startSubscriber(t) };
  const publisher = await createPublisher(server);
  const [refused, healthy] = [await createApp(server), await createApp(server)];
  await subscribe(refused, { url: subscribers.refused.url });
  await subscribe(healthy, { url: subscribers.healthy.url });
  await refuseEvents(db);
  // The event is refused before fan-out can see it.
  await db.transaction().execute(async (tx) => {
    await appendEvent(tx, { accountId: refused.account.id, kind: 'push', body: pushBody('refused') });
    await sql`insert into refused select max(position) from events`.execute(tx);
  });
  await publish(publisher, refused.account, numbers(50));
  await publish(publisher, healthy.account, numbers(50));
  await subscribers.healthy.waitFor(50);
  await subscribers.refused.waitFor(50);
  await fannedOut(server);
  assert.deepEqual(subscribers.refused.received.map(markOf).toSorted(), numbers(50).map(String).toSorted());

  const listed = await runCommand(['parked', 'list', '--json'], settings);
  const [one, ...more] = JSON.parse(listed.stdout);
  assert.equal(more.length, 0);
  assert.equal(one.account, refused.account.id);
  assert.equal(one.kind, 'push');
  assert.match(one.reason, /invalid page in block 7/);
  assert.match((await runCommand(['parked', 'list'], settings)).stdout, /push .* invalid page in block 7/);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_events_parked 1$/m);

  const missing = await runCommand(['parked', 'retry', '--position', '1234567'], settings);
  assert.equal(missing.code, 1);
  assert.match(missing.stderr, /parked event at position 1234567 not found/);
  await sql`delete from refused`.execute(db);
  const retried = await runCommand(['parked', 'retry', '--position', one.position], settings);
  assert.equal(retried.code, 0, retried.stderr);
  const received = await subscribers.refused.waitFor(51);
  assert.equal(markOf(received[50] as { body: string }), 'refused');
  assert.deepEqual(
    received.map(({ headers }) => Number(headers['nuncio-sequence'])).toSorted((a, b) => a - b),
    numbers(51).map((index) => index + 1),
  );
  assert.deepEqual(JSON.parse((await runCommand(['parked', 'list', '--json'], settings)).stdout), []);
});

test('only the failing event of a batch is parked, and it is parked again when its retry fails', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const subscriber = await startSubscriber(t);
  const publisher = await createPublisher(server);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await refuseEvents(db);
  // Refuses positions that the next batch gets: the batch is stored at once.
  await sql`
    insert into refused select next + number
    from (select nextval('event_positions') as next) as at, (values (31), (67)) as number (number)`.execute(
    db,
  );
  await publish(publisher, app.account, numbers(100));
  const received = await subscriber.waitFor(98);
  const expected = numbers(100).filter((mark) => mark !== 30 && mark !== 66);
  assert.deepEqual(
    received
      .map(markOf)
      .map(Number)
      .toSorted((a, b) => a - b),
    expected,
  );
  const parked = async () =>
    (await sql<{ parked_at: Date }>`select parked_at from parked_events order by position`.execute(db)).rows;
  const before = await until(parked, ({ length }) => length === 2);
  const settings = { DATABASE_URL: server.databaseUrl, NUNCIO_SECRET: testSecret.toString() };
  assert.match(
    (await runCommand(['parked', 'retry'], settings)).stdout,
    /^2 events were returned to the outbox$/m,
  );
  await until(
    parked,
    (rows) =>
      rows.length === 2 && rows.every(({ parked_at: at }, index) => at > (before[index]?.parked_at ?? at)),
  );
  await publish(publisher, app.account, ['after']);
  assert.equal(markOf((await subscriber.waitFor(99))[98] as { body: string }), 'after');
});

test('an event is not parked when its lane is locked, and another account’s event arrives', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const subscribers = { locked: await startSubscriber(t), healthy: await startSubscriber(t) };
  const publisher = await createPublisher(server);
  const [locked, healthy] = [await createApp(server), await createApp(server)];
  const { id } = await subscribe(locked, { url: subscribers.locked.url });
  await subscribe(healthy, { url: subscribers.healthy.url });
  const [isLocked, isThrough] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const transaction = db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`
      select from lanes where id = (select lane from subscriptions where id = ${id}) for update`.execute(tx);
    isLocked.resolve();
    await isThrough.promise;
  });
  try {
    await isLocked.promise;
    await publish(publisher, locked.account, numbers(3));
    await publish(publisher, healthy.account, numbers(3));
    await subscribers.healthy.waitFor(3);
    assert.equal(subscribers.locked.received.length, 0);
  } finally {
    isThrough.resolve();
    await transaction;
  }
  const received = await subscribers.locked.waitFor(3);
  assert.deepEqual(received.map(markOf).toSorted(), ['0', '1', '2']);
  const { rows } = await sql`select from parked_events`.execute(db);
  assert.equal(rows.length, 0);
});

interface Host {
  db: Database;
  settings: Record<string, string>;
  /** Checks that each lane has all of these events once, in order and without a gap. */
  check: (events: number) => Promise<void>;
  left: () => Promise<number>;
  prepare: (events: number, subscriptions: number) => Promise<void>;
}

/** A database for server processes that the test starts and ends. */
async function openHost(t: TestContext): Promise<Host> {
  const server = await prepareProcess(t, { NUNCIO_RATE_LIMIT: '0' });
  const { settings, db } = server;
  const left = async () => {
    const { rows } = await sql<{ size: number }>`
      select coalesce(sum(size), 0)::int as size from outbox`.execute(db);
    return rows[0]?.size ?? 0;
  };
  return {
    db,
    settings,
    left,
    async check(events) {
      const { rows } = await sql<{ lane: string; sequences: number[]; events: number[]; next: number }>`
        with of_lane as (
          select lane, array_agg(sequence::int order by sequence) as sequences,
            array_agg(event::int order by sequence) as events
          from deliveries group by lane
        )
        select o.*, newest_sequence(l)::int + 1 as next from of_lane o join lanes l on l.id = o.lane`.execute(
        db,
      );
      assert.ok(rows.length > 0);
      for (const row of rows) {
        assert.deepEqual(
          row.sequences,
          numbers(events).map((index) => index + 1),
        );
        assert.equal(row.next, events + 1);
        assert.equal(new Set(row.events).size, events);
        assert.deepEqual(
          row.events,
          row.events.toSorted((a, b) => a - b),
        );
      }
    },
    async prepare(events, subscriptions) {
      const config = loadConfig(settings, 'start');
      const server = { db, config, baseUrl: config.baseUrl };
      const client = await createTestClient(server, { scopes: [...appScopes, 'write:events'] });
      const account = await createTestAccount(server);
      const forUser = await mintAccessToken(server, { account, client, scopes: appScopes });
      const forMachine = await mintAccessToken(server, { client, scopes: ['write:events'] });
      await sql`
        with given as (
          select gen_random_uuid() as id, 1000000 + number as lane from generate_series(1, ${subscriptions}::int) as number
        ),
        subscription as (
          insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
          select id, lane, 'grant', ${forUser.grantId}, ${account.id}, ${client.id}, 'http://127.0.0.1:9/', '{*}',
            'timestamp', ''
          from given returning lane
        ),
        head as (insert into lanes (id) select lane from subscription)
        insert into lane_progress (lane, paused_until) select lane, now() + interval '1 day' from subscription`.execute(
        db,
      );
      await publish(requester(server, forMachine.accessToken), account, numbers(events));
    },
  };
}

for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
  test(`each lane has every event once, gapless, in order, when ${signal} ends the leader within an outbox row`, async (t) => {
    const host = await openHost(t);
    const events = 200;
    const first = startProcess(t, ['start'], host.settings);
    await first.ready();
    await host.prepare(events, 500);
    await until(host.left, (left) => left > 0 && left < events);
    await first.end(signal);
    const left = await host.left();
    assert.ok(left > 0 && left < events, `${left} events were left`);
    const second = startProcess(t, ['start'], host.settings);
    await second.ready();
    await until(host.left, (count) => count === 0);
    await host.check(events);
  });
}

test('each lane has every event once and in order when SIGKILL ends the leader between two slices', async (t) => {
  const host = await openHost(t);
  const first = startProcess(t, ['start'], host.settings);
  await first.ready();
  await host.prepare(3, 30_000);
  await until(
    async () => (await sql`select from outbox where through_lane > 0`.execute(host.db)).rows.length,
    (count) => count > 0,
  );
  await first.end('SIGKILL');
  const { rows } = await sql`select from outbox where through_lane > 0`.execute(host.db);
  assert.equal(rows.length, 1);
  const second = startProcess(t, ['start'], host.settings);
  await second.ready();
  await until(host.left, (count) => count === 0);
  await host.check(3);
});
