/**
 * The clock of the database is set ahead and back, and so is this machine's. A step may delay deliveries, up to the longest wait of
 * their settings. It loses nothing, and nothing is deleted.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../../src/config/config.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { sweepIdempotencyKeys } from '../../../src/http/idempotency.ts';
import { deleteSupersededGrants, runHousekeeping } from '../../../src/oauth/housekeeping.ts';
import { endLongWaits } from '../../../src/webhooks/lanes/long_waits.ts';
import { settleLanes } from '../../../src/webhooks/log/numbering.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { disableFailing } from '../../../src/webhooks/subscriptions/failing.ts';
import { newDataDir, start } from '../../support/database/embedded_process.ts';
import { createSteppedClock } from '../../support/database/stepped_clock.ts';
import { startProcess } from '../../support/servers/process.ts';
import { freePort, startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const day = 86_400;
const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const daysAgo = (days: number) => new Date(Date.now() - days * day * 1_000).toISOString().slice(0, 10);

/** Counts rows that are to survive every step of the clock. */
async function countKept(from: Database): Promise<number[]> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from events union all select count(*)::int from deliveries
    union all select count(*)::int from attempts union all select count(*)::int from refresh_tokens
    union all select count(*)::int from withdrawals union all select count(*)::int from grants
    union all select count(*)::int from idempotency_keys union all select count(*)::int from event_ids`.execute(
    from,
  );
  return rows.map(({ count }) => count);
}

test('steps of the database’s clock lose no event and delete nothing', async (t) => {
  const clock = createSteppedClock(t);
  if (clock === undefined) return t.skip('needs Linux and a C compiler');
  const postgres = await clock.under(() => start(newDataDir(t), 'server'));
  const port = String(await freePort());
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${port}`,
    DATABASE_URL: postgres.connectionString,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: '1h,1h',
    LOG_LEVEL: 'error',
    PORT: port,
  };
  const process = startProcess(t, ['start'], settings);
  await process.ready();
  const own = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 2 });
  t.after(() => own.destroy());
  const config = loadConfig(settings, 'start');
  const here = { db: own, config, baseUrl: config.baseUrl };
  const failed = new Set<string>();
  const succeeded = new Set<string>();
  const subscriber = await startSubscriber(t, ({ headers, body }, response) => {
    const delivery = String(headers['nuncio-delivery']);
    const fails = JSON.parse(body).ref?.endsWith('fails') && !failed.has(delivery);
    (fails ? failed : succeeded).add(delivery);
    response.writeHead(fails ? 503 : 204).end();
  });
  const app = await createApp(here);
  await subscribe(app, { url: subscriber.url });
  const toPublish = await createPublisher(here);
  await sql`
    insert into refresh_tokens (digest, grant_id, payload, expires_at)
    values ('token', ${app.grantId}, '{}', now() + interval '1 day')`.execute(own);
  await sql`insert into withdrawals (kind, subject, until) values ('token', 'one', now() + interval '1 hour')`.execute(
    own,
  );
  const steps = [0, 9 * day, 35 * day, 0, 35 * day, -2 * day, -40 * day, 0];
  for (const [index, secondsAhead] of steps.entries()) {
    clock.set(secondsAhead);
    const { rows } = await sql<{ seconds: number }>`
      select extract(epoch from now())::float8 - ${Date.now() / 1_000} as seconds`.execute(own);
    assert.ok(Math.abs((rows[0]?.seconds ?? 0) - secondsAhead) < 60, 'the clock of the database is not set');
    const events = ['succeeds', 'fails'].map((mark) => ({
      id: `${index}-${mark}`,
      ...{ kind: 'push', account: app.account.id, body: pushBody(`${index}-${mark}`) },
    }));
    const { status, text } = await toPublish('POST', '/events', {
      json: events,
      headers: { 'idempotency-key': `${index}` },
    });
    assert.equal(status, 202, text);
    assert.equal((await app.request('POST', '/articles', { json: { title: 'two' } })).status, 201);
    await until(
      async () => failed.size,
      (count) => count === index + 1,
    );
    await until(
      async () => (await sql`select from retries`.execute(own)).rows.length,
      (count) => count === index + 1,
    );
    const before = await countKept(own);
    await applyRetention(own);
    await runHousekeeping(own);
    await deleteSupersededGrants(own);
    await sweepIdempotencyKeys(own);
    const kept = await countKept(own);
    // Keys and ids that were stored by a clock that is behind expire earlier.
    const tables = Math.min(...steps.slice(0, index + 1)) < 0 ? kept.length - 2 : kept.length;
    for (const [which, count] of kept.slice(0, tables).entries())
      assert.ok(count >= (before[which] as number), `${secondsAhead} s: ${before} rows, then ${kept}`);
  }
  // The retries of the last step are due within two hours, and those of clocks that were ahead, not later.
  await endLongWaits(own, config.retryScheduleSeconds);
  const late = await sql`select from retries where due_at > now() + interval '1 day'`.execute(own);
  assert.equal(late.rows.length, 0);
  // In an hour or two.
  await until(
    async () => {
      await sql`update retries set due_at = now() where due_at > now()`.execute(own);
      await sql`update lane_progress set due_at = now() where due_at > now()`.execute(own);
      return succeeded.size;
    },
    (count) => count === 3 * steps.length,
  );
});

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

test('webhooks 65: an event is stored and delivered when today has no partition', async (t) => {
  const own = await startTestServer(t);
  const subscriber = await startSubscriber(t);
  const app = await createApp(own);
  await subscribe(app, { url: subscriber.url });
  const toPublish = await createPublisher(own);
  const nextDays = [0, -1, -2, -3, -4, -5, -6, -7].map((ago) => daysAgo(ago).replaceAll('-', ''));
  const dropDays = async (names: string[]) => {
    for (const name of names) {
      for (const table of ['attempts', 'deliveries', 'events'])
        await sql`drop table ${sql.id(`${table}_${name}`)}`.execute(own.db);
    }
  };
  // As when the clock is a month ahead: the latest partition is of an earlier day.
  await dropDays(nextDays);
  await publish(toPublish, app.account, ['one']);
  await subscriber.waitFor(1);
  assert.equal((await app.request('POST', '/articles', { json: { title: 'two' } })).status, 201);
  await subscriber.waitFor(2);
  // As when it is a month behind: the first partition is of a later day.
  await settleLanes(own.db, daysAgo(0));
  await dropDays([daysAgo(1).replaceAll('-', '')]);
  await sql`
    select ensure_day_partition(parent, ${daysAgo(-30)}::date)
    from unnest(array['attempts', 'deliveries', 'events']) as parent`.execute(own.db);
  await publish(toPublish, app.account, ['three']);
  await subscriber.waitFor(3);
});

test('webhooks 65: waits that a wrong clock planned end, and those of the settings do not', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [2 * day] });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  const hours = async (wait: number) => {
    await sql`
      insert into retries (lane, sequence, day, state, attempts, due_at)
      select lane, 1, current_date, 'pending', 1, now() + make_interval(hours => ${wait}) from subscriptions where id = ${id}
      on conflict (lane, sequence) do update set due_at = excluded.due_at`.execute(db);
    await endLongWaits(db, [3_600]);
    const { rows } = await sql<{ hours: number }>`
      select (extract(epoch from due_at - now()) / 3600)::float8 as hours from retries where lane = ${lane}`.execute(
      db,
    );
    return Math.abs(Math.round(rows[0]?.hours ?? 0));
  };
  assert.equal(await hours(57), 57);
  assert.equal(await hours(58), 0);
  await sql`delete from retries where lane = ${lane}`.execute(db);
  // The schedule of the deployment, or a Retry-After, for a subscription without its own.
  await sql`update subscriptions set retry_schedule = null where id = ${id}`.execute(db);
  assert.equal(await hours(24), 24);
  assert.equal(await hours(25), 0);
  await sql`delete from retries where lane = ${lane}`.execute(db);
  await sql`
    update lane_progress set paused_until = now() + interval '35 days', due_at = now() + interval '35 days'
    where lane = ${lane}`.execute(db);
  await publish(publisher, app.account, ['waiting']);
  await endLongWaits(db, [3_600]);
  await subscriber.waitFor(1);
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
