/**
 * A database whose clock was wrong. The tests write the times of such a clock, and drop the partitions that it would not find.
 * `webhooks/lanes/database_clock.test.ts` sets the clock itself.
 */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { textArray } from '../../../src/database/arrays.ts';
import type { KindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { followClock, repairTimes } from '../../../src/webhooks/lanes/clock_steps.ts';
import { sweepLanes } from '../../../src/webhooks/lanes/lane_store.ts';
import { readDueRetries } from '../../../src/webhooks/lanes/waiting_deliveries.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { disableFailing } from '../../../src/webhooks/subscriptions/failing.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

test('webhooks 65: steps of the machine’s clock neither repeat nor delay a delivery', async (t) => {
  // The engine runs in this thread, whose clock the test can set.
  const own = await startTestServer(t, {}, 'dev', undefined, undefined, 'here');
  const toPublish = await createPublisher(own);
  const subscriber = await startSubscriber(t, (_received, response) => {
    setTimeout(() => response.writeHead(204).end(), 20);
  });
  const app = await createApp(own);
  await subscribe(app, { url: subscriber.url });
  const realNow = Date.now;
  t.after(() => {
    Date.now = realNow;
  });
  let count = 0;
  for (const days of [0, 40, -40, 0]) {
    // Events published before the step are sent after it.
    await publish(
      toPublish,
      app.account,
      Array.from({ length: 100 }, (_, index) => count + index),
    );
    count += 100;
    Date.now = () => realNow() + days * 86_400_000;
    await subscriber.waitFor(count - 50);
    Date.now = realNow;
    await subscriber.waitFor(count);
  }
  const sequences = subscriber.received.map(({ headers }) => Number(headers['nuncio-sequence']));
  assert.deepEqual(
    sequences.toSorted((one, other) => one - other),
    Array.from({ length: count }, (_, index) => index + 1),
  );
});

test('webhooks 65: a write creates the missing partition of its day', async (t) => {
  const own = await startTestServer(t);
  const toPublish = await createPublisher(own);
  const subscriber = await startSubscriber(t);
  const app = await createApp(own);
  await subscribe(app, { url: subscriber.url });
  // Drops all partitions: a clock that is more than a week ahead finds none for its day.
  const { rows } = await sql<{ name: string }>`
    select c.relname as name from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent in ('events'::regclass, 'deliveries'::regclass, 'attempts'::regclass)`.execute(own.db);
  for (const { name } of rows) await sql`drop table ${sql.id(name)}`.execute(own.db);
  await publish(toPublish, app.account, ['one']);
  await subscriber.waitFor(1);
  // The article is written in a transaction: the first request may fail, and a retry succeeds at once.
  const article = { json: { title: 'two' } };
  const answers = [
    await app.request('POST', '/articles', article),
    await app.request('POST', '/articles', article),
  ];
  assert.equal(answers[1]?.status, 201);
  assert.ok([201, 503].includes(answers[0]?.status as number));
});

test('webhooks 65: an event published with a clock a month ahead is delivered and retried after the correction', async (t) => {
  let failures = 1;
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(failures > 0 ? 503 : 204).end();
    failures -= 1;
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1, 1, 1] });
  // Only the event was written while the clock was ahead, on two days: no other table has partitions for them.
  const days = [daysAgo(-35), daysAgo(-36)];
  for (const [index, day] of days.entries()) {
    await sql`select ensure_day_partition('events', ${day}::date)`.execute(db);
    await sql`
      with event as (
        insert into events (day, id, account_id, kind, body)
        values (${day}::date, ${randomUUID()}, ${app.account.id}, 'push', ${JSON.stringify(pushBody(index))})
        returning position, account_id
      )
      insert into outbox (day, positions, turn) select ${day}::date, array[position], account_id from event`.execute(
      db,
    );
  }
  await publish(publisher, app.account, ['now']);
  await subscriber.waitFor(4);
  const attempts = async () => {
    const { rows } = await sql<{ day: string; statuses: number[] }>`
      select a.day::text, array_agg(a.status order by a.number) as statuses
      from attempts a join subscriptions s on s.lane = a.lane where s.id = ${id} group by a.day`.execute(db);
    return new Map(rows.map(({ day, statuses }) => [day, statuses]));
  };
  const stored = await until(attempts, (byDay) => [...byDay.values()].flat().length === 4);
  assert.deepEqual([...stored.keys()].toSorted(), [daysAgo(0), ...days]);
  assert.equal([...stored.values()].filter((statuses) => statuses.join() === '503,204').length, 1);
});

test('webhooks 65: pauses and retries postponed by a month end when the clock is right again', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  const later = sql`now() + interval '35 days'`;
  await sql`update lane_progress set paused_until = ${later}, due_at = ${later} where lane = ${lane}`.execute(
    db,
  );
  await publish(publisher, app.account, ['waiting']);
  await until(
    async () => (await sql`select from deliveries where lane = ${lane}`.execute(db)).rows.length,
    (count) => count === 1,
  );
  await repairTimes(db);
  await subscriber.waitFor(1);
  await until(
    async () => (await sql`select from attempts where lane = ${lane}`.execute(db)).rows.length,
    (count) => count === 1,
  );
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    select lane, sequence, day, 'pending', 1, ${later} from deliveries where lane = ${lane}`.execute(db);
  await repairTimes(db);
  const { rows } = await sql<{ is_due: boolean }>`
    select due_at <= now() as is_due from retries where lane = ${lane}`.execute(db);
  assert.deepEqual(rows, [{ is_due: true }]);
});

test('webhooks 65: loading or sweeping lanes sends a retry that an unnoticed wrong clock postponed a month', async (t) => {
  let status = 503;
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(status).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [86_400] });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  await publish(publisher, app.account, ['failing']);
  await subscriber.waitFor(1);
  const retries = () => sql`select from retries where lane = ${lane}`.execute(db);
  await until(retries, ({ rows }) => rows.length === 1);
  status = 204;
  await sql`update retries set due_at = now() + interval '35 days' where lane = ${lane}`.execute(db);
  // A change of the subscription loads its lane.
  await app.request('PATCH', `/subscriptions/${id}`, { json: { description: 'loaded' } });
  await subscriber.waitFor(2);
  await until(retries, ({ rows }) => rows.length === 0);
  const {
    rows: [other],
  } = await sql<{ lane: string }>`
    update lane_progress
    set owner = null, due_at = now() + interval '35 days', paused_until = now() + interval '35 days'
    where lane = ${lane} returning lane`.execute(db);
  const after = String(BigInt(other?.lane ?? 0) - 1n);
  await sweepLanes(db, '1', Number(after), 1);
  await until(
    async () =>
      (
        await sql`select from lane_progress where lane = ${lane} and greatest(due_at, paused_until) > now()`.execute(
          db,
        )
      ).rows.length,
    (count) => count === 0,
  );
});

test('webhooks 65: what a statement in flight planned by the earlier clock is brought forward, too', async (t) => {
  const { db } = await openTestDatabase(t, 4);
  await sql`update database_clock set latest = clock_timestamp() + interval '2 hours'`.execute(db);
  const inserted = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const inFlight = db.transaction().execute(async (tx) => {
    await sql`
      insert into retries (lane, sequence, day, state, attempts, due_at)
      values (1, 1, current_date, 'pending', 1, now() + interval '2 hours 1 minute')`.execute(tx);
    inserted.resolve();
    await mayCommit.promise;
  });
  await inserted.promise;
  await assert.rejects(followClock(db), { code: '55P03' });
  mayCommit.resolve();
  await inFlight;
  await followClock(db);
  const { rows } = await sql<{ minutes: number }>`
    select round(extract(epoch from due_at - now()) / 60)::int as minutes from retries`.execute(db);
  assert.deepEqual(rows, [{ minutes: 1 }]);
});

test('webhooks 65: a step back is followed although a vacuum runs until PostgreSQL’s deadlock timeout', async (t) => {
  // The vacuum of this test may take as long as this.
  const { db } = await openTestDatabase(t, 4, { deadlock_timeout: '100s' });
  await sql`update database_clock set latest = clock_timestamp() + interval '2 hours'`.execute(db);
  const locked = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const vacuum = db.transaction().execute(async (tx) => {
    await sql`lock table retries in share update exclusive mode`.execute(tx);
    locked.resolve();
    await mayCommit.promise;
  });
  await locked.promise;
  const followed = followClock(db);
  // Longer than statements in flight are waited for.
  await sleep(600);
  mayCommit.resolve();
  await vacuum;
  await followed;
  const { rows } = await sql<{ steps: string }>`select steps from database_clock`.execute(db);
  assert.deepEqual(rows, [{ steps: '1' }]);
});

test('webhooks 65: plans from before a large step back do not count as plans of a wrong clock', async (t) => {
  const { db } = await openTestDatabase(t, 4);
  const earlier = sql`clock_timestamp() + interval '40 days'`;
  await sql`update database_clock set latest = ${earlier}`.execute(db);
  await db.transaction().execute(async (tx) => {
    // Without the subscription that the lane belongs to.
    await sql`set local session_replication_role = replica`.execute(tx);
    await sql`
      insert into lane_progress (lane, due_at, paused_until)
      values (1, ${earlier} + interval '1 hour', ${earlier} + interval '1 hour')`.execute(tx);
    await sql`
      insert into events (day, position, id, kind, body) values (current_date, 1, 'one', 'push', '{}')`.execute(
      tx,
    );
    await sql`insert into deliveries (day, lane, sequence, event) values (current_date, 1, 1, 1)`.execute(tx);
    await sql`
      insert into retries (lane, sequence, day, state, attempts, due_at)
      values (1, 1, current_date, 'pending', 1, ${earlier} + interval '1 hour')`.execute(tx);
  });
  const kinds: KindArrays = {
    names: textArray(['push']),
    objects: textArray([null]),
    patterns: textArray(['push']),
    appSubscriptions: 'all',
  };
  assert.deepEqual(await readDueRetries(db, kinds, [1], 10), []);
  await sweepLanes(db, '1', 0, 10);
  await repairTimes(db);
  const { rows } = await sql<{ waiting: boolean }>`
    select least(p.due_at, p.paused_until, r.due_at) > ${earlier} as waiting
    from lane_progress p join retries r on r.lane = p.lane`.execute(db);
  assert.deepEqual(rows, [{ waiting: true }]);
});

/** A database without a server, with two lanes: one that waits, and one that is due. */
async function openPlanned(t: TestContext) {
  const own = await startTestServer(t);
  const app = await createApp(own);
  const lanes: string[] = [];
  for (const path of ['later', 'due']) {
    const { id } = await subscribe(app, { url: `https://hooks.example/${path}` });
    const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(
      own.db,
    );
    lanes.push(rows[0]?.lane as string);
  }
  const [later, due] = lanes as [string, string];
  // Times from a clock that was two hours ahead: a pause with one minute left, and a delivery that is already due.
  await sql`
    update lane_progress set
      paused_until = case when lane = ${later} then now() + interval '2 hours 1 minute' else now() - interval '1 minute' end,
      due_at = case when lane = ${later} then now() + interval '2 hours 1 minute' end,
      failing_since = case when lane = ${later} then now() + interval '1 hour' end
    where lane in (${later}, ${due})`.execute(own.db);
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    values (${later}, 1, current_date, 'pending', 1, now() + interval '2 hours 2 minutes'),
      (${due}, 1, current_date, 'pending', 1, now() - interval '1 second')`.execute(own.db);
  await sql`
    insert into failing_warnings (lane, failing_since, warning, given_at, disables_at)
    select lane, failing_since, 'last', now() + interval '2 hours', now() + interval '26 hours'
    from lane_progress where lane = ${later}`.execute(own.db);
  // A hold whose requester died while the clock was ahead.
  await sql`
    insert into delivery_holds (id, lane, until)
    values (gen_random_uuid(), ${due}, now() + interval '2 hours 5 seconds')`.execute(own.db);
  const minutes = (column: string) => sql.raw(`round(extract(epoch from ${column} - now()) / 60)::int`);
  const read = async () => {
    const { rows } = await sql<{
      lane: string;
      paused: number;
      retry: number;
      failing: number | null;
      disables: number | null;
    }>`
      select p.lane, ${minutes('p.paused_until')} as paused, ${minutes('r.due_at')} as retry,
        ${minutes('p.failing_since')} as failing, ${minutes('w.disables_at')} as disables
      from lane_progress p join retries r on r.lane = p.lane
      left join failing_warnings w on w.lane = p.lane and w.failing_since = p.failing_since
      where p.lane in (${later}, ${due})`.execute(own.db);
    const byLane = new Map(rows.map(({ lane, ...times }) => [lane, times]));
    return { later: byLane.get(later), due: byLane.get(due) };
  };
  const holds = async () => (await sql`select from delivery_holds`.execute(own.db)).rows.length;
  return { db: own.db, read, holds };
}

const broughtForward = {
  later: { paused: 1, retry: 2, failing: -60, disables: 1_440 },
  due: { paused: -1, retry: 0, failing: null, disables: null },
};

test('webhooks 65: after a step back, waits are as long as planned, and what is due stays due', async (t) => {
  const { db, read, holds } = await openPlanned(t);
  await sql`update database_clock set latest = clock_timestamp() + interval '2 hours'`.execute(db);
  // The server's next heartbeat finds it.
  assert.deepEqual(await until(read, ({ later }) => later?.paused !== 121), broughtForward);
  // The hold expires as if the clock had never been ahead.
  await until(holds, (count) => count === 0);
});

test('webhooks 65: several nodes that find a step of the clock bring times forward once', async (t) => {
  const { db, read } = await openPlanned(t);
  await sql`update database_clock set latest = clock_timestamp() + interval '2 hours'`.execute(db);
  await Promise.all(Array.from({ length: 8 }, () => followClock(db)));
  await until(read, ({ later }) => later?.paused !== 121);
  await followClock(db);
  assert.deepEqual(await read(), broughtForward);
  const { rows } = await sql<{ steps: string }>`select steps from database_clock`.execute(db);
  assert.deepEqual(rows, [{ steps: '1' }]);
});

test('a warning that was given while the clock was ahead disables no subscription before five days of failures', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://hooks.example/failing' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  const lane = Number(rows[0]?.lane);
  const failSince = async (ago: string) => {
    await sql`
      update lane_progress set failures = 30, failing_since = now() - ${ago}::interval where lane = ${lane}`.execute(
      db,
    );
    await sql`
      insert into failing_warnings (lane, failing_since, warning, disables_at)
      select lane, failing_since, 'last', now() - interval '1 minute' from lane_progress where lane = ${lane}
      on conflict (lane) do update set failing_since = excluded.failing_since`.execute(db);
  };
  await failSince('1 day');
  assert.deepEqual(await disableFailing(db, [lane]), []);
  await failSince('5 days 1 minute');
  assert.deepEqual(await disableFailing(db, [lane]), [lane]);
});

async function makeDay(day: string): Promise<void> {
  const name = day.replaceAll('-', '');
  for (const table of ['events', 'deliveries', 'attempts']) {
    await sql
      .raw(
        `create table ${table}_${name} partition of ${table} for values from ('${day}') to (date '${day}' + 1)`,
      )
      .execute(db);
  }
}

async function isKept(day: string): Promise<boolean> {
  const { rows } = await sql<{ name: string | null }>`
    select to_regclass(${`deliveries_${day.replaceAll('-', '')}`})::text as name`.execute(db);
  return rows[0]?.name !== null;
}

const daysAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10);

test('webhooks 65, 76: a clock a month ahead drops no month: retention follows a day per run', async () => {
  await makeDay(daysAgo(50));
  await sql`
    insert into parked_events (position, day, turn, reason)
    values (1, ${daysAgo(50)}::date, ${randomUUID()}, 'test')`.execute(db);
  const parked = async () => (await sql`select from parked_events`.execute(db)).rows.length;
  // Simulates a clock that was 35 days behind until now.
  await sql`update retention_day set day = ${daysAgo(35)}::date`.execute(db);
  await applyRetention(db);
  assert.ok(await isKept(daysAgo(50)));
  assert.equal(await parked(), 1);
  const { rows } = await sql<{ day: string }>`select day::text from retention_day`.execute(db);
  assert.equal(rows[0]?.day, daysAgo(34));
  await sql`update retention_day set day = ${daysAgo(0)}::date`.execute(db);
  await applyRetention(db);
  assert.equal(await isKept(daysAgo(50)), false);
  assert.equal(await parked(), 0);
});

test('webhooks 65, 76: a day with pending deliveries is kept', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const [day, lane] = [daysAgo(45), sql`(select lane from subscriptions where id = ${id})`];
  await makeDay(day);
  await sql`
    insert into events (day, position, id, account_id, kind, body)
    values (${day}::date, 5, 'old', ${app.account.id}, 'push', '{}')`.execute(db);
  // A pause keeps the delivery pending.
  await sql`
    update lane_progress set paused_until = now() + interval '20 hours', due_at = now() + interval '20 hours'
    where lane = ${lane}`.execute(db);
  await sql`update lanes set next_sequence = 2 where id = ${lane}`.execute(db);
  await sql`insert into deliveries (day, lane, sequence, event) values (${day}::date, ${lane}, 1, 5)`.execute(
    db,
  );
  await applyRetention(db);
  assert.ok(await isKept(day));
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    values (${lane}, 1, ${day}::date, 'pending', 1, now() + interval '1 hour')`.execute(db);
  await applyRetention(db);
  assert.ok(await isKept(day));
  await sql`update retries set state = 'failed', due_at = null where lane = ${lane}`.execute(db);
  await applyRetention(db);
  assert.equal(await isKept(day), false);
});
