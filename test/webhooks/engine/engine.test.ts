/** The engine over time: circuits, rate limits, changes, recoveries, retention, several nodes. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { Node } from '../../../src/webhooks/lanes/node.ts';
import { writeOutcomes } from '../../../src/webhooks/lanes/outcome_store.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import {
  pauseAfter,
  readRetryAfter,
  retryAfterSecondsMax,
} from '../../../src/webhooks/sending/retry_schedule.ts';
import { disableFailing, warnFailing } from '../../../src/webhooks/subscriptions/failing.ts';
import { addNode } from '../../support/database/other_node.ts';
import { freePort, startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer(
  { after },
  { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s,1s', NUNCIO_RATE_LIMIT: '0' },
);
const publisher = await createPublisher(server);
const range = (count: number) => Array.from({ length: count }, (_, index) => index);
const marksOf = (received: { body: string }[]) =>
  received.map(({ body }) => JSON.parse(body).ref.slice('refs/heads/'.length));
const list = async (app: App, id: string, query = '') =>
  (await app.request('GET', `/subscriptions/${id}/deliveries?limit=200${query}`)).body.items;
const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test('webhooks 56, 57: the retry schedule only adds jitter', () => {
  const schedule = [5, 30, 120];
  assert.equal(pauseAfter(schedule, 1, null, 0), 5_000);
  assert.equal(pauseAfter(schedule, 3, null, 0), 120_000);
  assert.equal(pauseAfter(schedule, 4, null, 0), null);
  const pauses = range(1_000).map(() => pauseAfter(schedule, 2, null) as number);
  assert.ok(pauses.every((ms) => ms >= 30_000 && ms <= 36_000));
  assert.ok(new Set(pauses.map((ms) => Math.floor(ms / 600))).size >= 9, 'they do not spread');
});

test('webhooks 46: Retry-After, seconds or date, never shortens the schedule and is capped at a day', () => {
  const now = Date.parse('2026-01-01T00:00:00Z');
  assert.equal(readRetryAfter('120', now), 120);
  assert.equal(readRetryAfter('Thu, 01 Jan 2026 00:01:00 GMT', now), 60);
  assert.equal(readRetryAfter('999999', now), retryAfterSecondsMax);
  for (const value of [
    '-5',
    '0',
    'soon',
    '1.5',
    '',
    'Wed, 31 Dec 2025 23:59:00 GMT',
    undefined,
    ['1', '2'],
  ]) {
    assert.equal(readRetryAfter(value, now), null, String(value));
  }
  assert.equal(pauseAfter([5], 1, 120, 0), 120_000);
  assert.equal(pauseAfter([300], 1, 120, 0), 300_000);
  assert.equal(pauseAfter([5], 2, 120, 0), null);
});

test('webhooks 46: Retry-After of a 429 also delays the subscription’s other deliveries', async (t) => {
  const subscriber = await startSubscriber(t, answer(429, { 'retry-after': '2' }));
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['first']);
  const [first] = await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  await publish(publisher, app.account, ['second']);
  const received = await subscriber.waitFor(3);
  assert.deepEqual(marksOf(received).sort(), ['first', 'first', 'second']);
  for (const { at } of received.slice(1)) assert.ok(at - (first?.at ?? 0) >= 1_900, 'too early');
});

test('webhooks 47, 58: a 4xx is retried like any failure, counted from the end of the attempt', async (t) => {
  const ends: number[] = [];
  const subscriber = await startSubscriber(t, (_received, response) => {
    setTimeout(() => {
      ends.push(Date.now());
      response.writeHead(ends.length < 3 ? 404 : 200).end();
    }, 500);
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['again']);
  const received = await subscriber.waitFor(3);
  for (const [index, end] of ends.slice(0, 2).entries()) {
    assert.ok((received[index + 1]?.at ?? 0) - end >= 980, 'too early');
  }
  await until(
    () => list(app, id),
    ([item]) => item.state === 'succeeded',
  );
});

test('webhooks 60: deleting or disabling a subscription stops what has not started', async (t) => {
  for (const stop of ['delete', 'disable']) {
    const subscriber = await startSubscriber(t, (_received, response) => {
      setTimeout(() => response.writeHead(204).end(), 200);
    });
    const app = await createApp(server);
    const { id } = await subscribe(app, { url: subscriber.url, ordered: true });
    await publish(publisher, app.account, range(50));
    await subscriber.waitFor(2);
    if (stop === 'delete') await app.request('DELETE', `/subscriptions/${id}`);
    else await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
    await pause(1_000);
    const count = subscriber.received.length;
    await pause(1_500);
    assert.equal(subscriber.received.length, count, stop);
    assert.ok(count < 50, stop);
    // Attempts that were in flight are recorded as usual.
    const { rows } = await until(
      () =>
        sql<{ sequence: number; status: number }>`
          select a.sequence::int, a.status from attempts a join subscriptions s on s.lane = a.lane
          where s.id = ${id} order by a.sequence`.execute(server.db),
      (found) => found.rows.length >= count,
    );
    assert.deepEqual(
      rows,
      range(count).map((index) => ({ sequence: index + 1, status: 204 })),
    );
    if (stop === 'disable') {
      await until(
        () => list(app, id, '&status=held'),
        ({ length }) => length === 50 - count,
      );
    }
  }
});

test('withdrawing a grant stops its deliveries in memory within a second', async (t) => {
  const subscriber = await startSubscriber(t, (_received, response) => {
    setTimeout(() => response.writeHead(204).end(), 100);
  });
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, range(1_000));
  await subscriber.waitFor(20);
  await sql`update grants set withdrawn_at = now() where id = ${app.grantId}`.execute(server.db);
  const withdrawnAt = Date.now();
  await pause(2_500);
  assert.ok(subscriber.received.length < 1_000);
  const late = subscriber.received.filter(({ at }) => at > withdrawnAt + 1_000);
  assert.equal(late.length, 0);
});

test('webhooks 61: a changed URL applies from the next attempt, and the log names each attempt’s revision', async (t) => {
  const [old, next] = [await startSubscriber(t, answer(500)), await startSubscriber(t)];
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: old.url });
  await publish(publisher, app.account, ['moved']);
  await old.waitFor(1);
  await app.request('PATCH', `/subscriptions/${id}`, { json: { url: next.url } });
  await next.waitFor(1);
  const [item] = await until(
    () => list(app, id),
    ([first]) => first.state === 'succeeded',
  );
  const { body } = await app.request('GET', `/deliveries/${item.id}`);
  const revisions = body.attempts.map(({ revision }: { revision: number }) => revision);
  assert.equal(revisions[0], 1);
  assert.equal(revisions.at(-1), 2);
});

test('webhooks 67: a subscriber that never responds takes nothing from another', async (t) => {
  const [hanging, healthy] = [await startSubscriber(t, () => {}), await startSubscriber(t)];
  const [dead, alive] = [await createApp(server), await createApp(server)];
  await subscribe(dead, { url: hanging.url });
  await subscribe(alive, { url: healthy.url });
  for (let batch = 0; batch < 10; batch++) await publish(publisher, dead.account, range(1_000));
  await hanging.waitFor(1);
  for (let batch = 0; batch < 5; batch++) await publish(publisher, alive.account, range(100));
  await healthy.waitFor(500);
  // A silent subscriber gets at most one window of attempts, however long its backlog.
  assert.ok(hanging.received.length <= 32, String(hanging.received.length));
});

test('webhooks 68: a rate limit is kept', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, rate_limit: 20 });
  await publish(publisher, app.account, range(100));
  const received = await subscriber.waitFor(100);
  const times = received.map(({ at }) => at);
  const seconds = ((times.at(-1) ?? 0) - (times[0] ?? 0)) / 1_000;
  const rate = (received.length - 1) / seconds;
  assert.ok(rate <= 20 * 1.05, `${rate} a second`);
  assert.ok(received.every(({ headers }) => headers['nuncio-attempt'] === '1'));
});

test('webhooks 69: five failing days and twenty failures disable a subscription, a day after the last warning', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(
    server.db,
  );
  const lane = Number(rows[0]?.lane);
  const tryWith = async (failures: number, since: string) => {
    await sql`
      update lane_progress set failures = ${failures}, failing_since = now() - ${since}::interval
      where lane = ${lane}`.execute(server.db);
    return (await disableFailing(server.db, [lane])).length;
  };
  /** Gives the due warning, then moves it into the past. */
  const warned = async (ago: string) => {
    await warnFailing(server.db);
    await sql`
      update failing_warnings set disables_at = disables_at - ${ago}::interval where lane = ${lane}`.execute(
      server.db,
    );
  };
  assert.equal(await tryWith(500, '6 days'), 0, 'without a warning');
  await warned('1 hour');
  assert.equal((await disableFailing(server.db, [lane])).length, 0, 'an hour after the last warning');
  await warned('23 hours');
  assert.equal(await tryWith(500, '5 days 1 minute'), 0, 'the warning was of other failures');
  await warned('25 hours');
  await sql`update lane_progress set failures = 19 where lane = ${lane}`.execute(server.db);
  assert.equal((await disableFailing(server.db, [lane])).length, 0, 'nineteen failures');
  await sql`update lane_progress set failures = 20 where lane = ${lane}`.execute(server.db);
  assert.equal((await disableFailing(server.db, [lane])).length, 1);
  const { body } = await app.request('GET', `/subscriptions/${id}`);
  assert.equal(body.state, 'disabled');
  assert.equal(body.disabled_reason, 'failing');
});

test('webhooks 69: the owner is warned once at half-time and once a day before, by event and subscription', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const failing = await subscribe(app, { url: 'https://example.com/hooks', kinds: ['push'] });
  await subscribe(app, { url: subscriber.url, kinds: ['subscription.*'], ordered: true });
  const stranger = await createApp(server);
  const elsewhere = await startSubscriber(t);
  await subscribe(stranger, { url: elsewhere.url });
  const show = async () => (await app.request('GET', `/subscriptions/${failing.id}`)).body;
  assert.deepEqual([(await show()).failing_since, (await show()).disables_at], [null, null]);
  const set = (failures: number, since: string) =>
    sql`
      update lane_progress p set failures = ${failures}, failing_since = date_trunc('hour', now()) - ${since}::interval
      from subscriptions s where s.lane = p.lane and s.id = ${failing.id}`.execute(server.db);
  const warnings = async () => {
    // Two nodes warn at once.
    const given = (await Promise.all([warnFailing(server.db), warnFailing(server.db)])).flat();
    return given.filter(({ subscription }) => subscription === failing.id).map(({ warning }) => warning);
  };
  await set(100, '2 days');
  assert.deepEqual(await warnings(), []);
  await set(9, '3 days');
  assert.deepEqual(await warnings(), [], 'too few to say so');
  await set(10, '3 days');
  assert.deepEqual(await warnings(), ['half']);
  assert.deepEqual(await warnings(), []);
  const shown = await show();
  assert.equal(Date.parse(shown.disables_at) - Date.parse(shown.failing_since), 5 * 86_400_000);
  await sql`update lane_progress set failures = 40 where failures = 10`.execute(server.db);
  assert.deepEqual(await warnings(), []);
  await set(40, '4 days 1 hour');
  assert.deepEqual(await warnings(), ['last']);
  assert.deepEqual(await warnings(), []);
  const received = await subscriber.waitFor(2);
  for (const { headers } of received) assert.equal(headers['nuncio-event'], 'subscription.failing');
  const bodies = received.map(({ body }) => JSON.parse(body));
  assert.deepEqual(bodies[0].subscription, { id: failing.id, url: 'https://example.com/hooks' });
  assert.equal(bodies[1].disables_at, (await show()).disables_at);
  // A success ends the series of failures. Later failures are warned of again.
  await sql`
    update lane_progress p set failures = 0, failing_since = null
    from subscriptions s where s.lane = p.lane and s.id = ${failing.id}`.execute(server.db);
  assert.deepEqual(await warnings(), []);
  assert.deepEqual([(await show()).failing_since, (await show()).disables_at], [null, null]);
  await set(10, '3 days');
  assert.deepEqual(await warnings(), ['half']);
  await subscriber.waitFor(3);
  assert.equal(elsewhere.received.length, 0);
  assert.equal(await countFailing('last'), 0, 'given by this test, not by the server');
});

/** Reads the server's own metric. */
async function countFailing(what: string): Promise<number> {
  const text = await (await fetch(`${server.baseUrl}/metrics`)).text();
  const found = new RegExp(`^nuncio_subscriptions_failing_total\\{what="${what}"\\} (\\d+)$`, 'm').exec(text);
  assert.ok(found !== null, 'there is no such metric');
  return Number(found[1]);
}

test('webhooks 76: an event’s body is erased although the clock of its id was hours off', async () => {
  const app = await createApp(server);
  const { body } = await publish(publisher, app.account, ['early']);
  const hoursAgo = (Date.now() - 5 * 3_600_000).toString(16).padStart(12, '0');
  const early = `${hoursAgo.slice(0, 8)}-${hoursAgo.slice(8)}${body.ids[0].slice(13)}`;
  await sql`update events set id = ${early} where id = ${body.ids[0]}`.execute(server.db);
  assert.equal((await publisher('DELETE', `/events/${early}/body`)).status, 204);
  assert.equal((await publisher('DELETE', `/events/${early}/body`)).status, 404);
  const beyond = 'ffffffff-ffff-7fff-bfff-ffffffffffff';
  assert.equal((await publisher('DELETE', `/events/${beyond}/body`)).status, 404);
});

test('webhooks 69: a server sends due warnings when it starts', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  await sql`
    update lane_progress p set failures = 30, failing_since = now() - interval '3 days'
    from subscriptions s where s.lane = p.lane and s.id = ${id}`.execute(server.db);
  const lines: string[] = [];
  const port = await freePort();
  const second = await startServer({
    config: loadConfig({ PORT: String(port), NUNCIO_RATE_LIMIT: '0' }, 'dev'),
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'warn' }, { write: (line: string) => void lines.push(line) }),
  });
  try {
    const isWarned = () => lines.map((line) => JSON.parse(line)).some((line) => line.subscription === id);
    await until(
      async () => isWarned(),
      (warned) => warned,
    );
    const text = await (await fetch(`${second.address}/metrics`)).text();
    assert.match(text, /^nuncio_subscriptions_failing_total\{what="half"\} [1-9]/m);
  } finally {
    await second.close();
  }
});

test('webhooks 70, 72: a recovery resends what failed or was held, and reports its progress', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [1] });
  const since = new Date(Date.now() - 60_000).toISOString();
  await publish(publisher, app.account, ['failed']);
  await until(
    () => list(app, id, '&status=failed'),
    (items) => items.length === 1,
  );
  const patch = (state: string) => app.request('PATCH', `/subscriptions/${id}`, { json: { state } });
  await patch('disabled');
  await publish(publisher, app.account, ['held 1', 'held 2']);
  await until(
    () => list(app, id, '&status=held'),
    (items) => items.length === 2,
  );
  const recover = (json: unknown) => app.request('POST', `/subscriptions/${id}/recover`, { json });
  assert.equal((await recover({ since })).status, 409);
  subscriber.behave(answer(204));
  await patch('active');
  await pause(1_500);
  assert.ok(
    !marksOf(subscriber.received).some((mark) => mark.startsWith('held')),
    'sent without being asked',
  );
  const count = subscriber.received.length;
  const started = await recover({ since });
  assert.equal(started.status, 202);
  await subscriber.waitFor(count + 3);
  const path = started.headers.get('location') as string;
  const { body } = await until(
    () => app.request('GET', path),
    (job) => job.body.state === 'done',
  );
  assert.equal(body.resent, 3);
  await until(
    () => list(app, id, '&status=succeeded'),
    (items) => items.length === 3,
  );
  assert.equal(subscriber.received.length, count + 3);
  assert.equal((await recover({ since: 'yesterday' })).status, 422);
  assert.equal((await recover({ since, status: 'pending' })).status, 422);
  const stranger = await createApp(server);
  assert.equal((await stranger.request('GET', path)).status, 404);
});

test('webhooks 63: a node that lost a lane changes nothing in it', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(
    server.db,
  );
  const lane = Number(rows[0]?.lane);
  await addNode(server.db, '4');
  await addNode(server.db, '5');
  await sql`update lane_progress set owner = 5 where lane = ${lane}`.execute(server.db);
  const attempt = {
    number: 1,
    trigger: 's' as const,
    revision: 1,
    startedAt: performance.now(),
    durationMs: 1,
    firstByteMs: null,
    status: 200,
    error: null,
    connection: null,
    headers: null,
    body: null,
    truncated: false,
  };
  const day = new Date().toISOString().slice(0, 10);
  const outcome = { lane, sequence: 1, day, attempt, hadRetry: false, wasManual: false };
  const failed = { state: 'pending' as const, attempts: 1, dueMs: 1_000 };
  const write = (node: string, mayLag = false) =>
    writeOutcomes(
      server.db,
      node,
      [{ lane, cursor: 1, failures: 0, pauseMs: 0, mayLag }],
      [{ ...outcome, retry: failed }],
    );
  assert.deepEqual(await write('4'), [lane]);
  assert.deepEqual(await write('4', true), [lane]);
  // A node without a row in `nodes` writes nothing, whatever the lane's row says.
  await sql`delete from nodes where id = 5`.execute(server.db);
  assert.deepEqual(await write('5'), [lane]);
  assert.deepEqual(await write('5', true), [lane]);
  await addNode(server.db, '5');
  const counted = async () =>
    (
      await sql<{ attempts: string; retries: string; cursor: string }>`
        select (select count(*) from attempts where lane = ${lane}) as attempts,
          (select count(*) from retries where lane = ${lane}) as retries, cursor
        from lane_progress where lane = ${lane}`.execute(server.db)
    ).rows[0];
  assert.deepEqual(await counted(), { attempts: '0', retries: '0', cursor: '0' });
  assert.deepEqual(await write('5', true), []);
  assert.deepEqual(await counted(), { attempts: '1', retries: '1', cursor: '0' });
  assert.deepEqual(await write('5'), []);
  assert.deepEqual(await counted(), { attempts: '2', retries: '1', cursor: '1' });
});

test('webhooks 63, 65: a node presumed dead has lost its lanes, whatever its clock says', async (t) => {
  const db = openDatabase({ connectionString: server.databaseUrl, connectionsMax: 2 });
  const fail = (error?: Error) => assert.fail(error);
  let lost = 0;
  const node = new Node(db, {
    pulse: db,
    name: null,
    onError: fail,
    onLost: () => lost++,
    onEpoch: () => {},
  });
  t.after(async () => {
    await node.leave();
    await db.destroy();
  });
  await node.join();
  const realNow = Date.now;
  t.after(() => {
    Date.now = realNow;
  });
  const before = node.now();
  Date.now = () => realNow() - 86_400_000;
  assert.ok(Math.abs(node.now() - before) < 5_000);
  Date.now = () => realNow() + 86_400_000;
  assert.ok(Math.abs(node.now() - before) < 5_000);
  Date.now = realNow;
  await sql`delete from nodes where id = ${node.id}`.execute(db);
  await node.heartbeat();
  assert.equal(lost, 1);
});

test('two nodes share the lanes, each delivery is sent once, and sequences have no gap', async (t) => {
  const port = await freePort();
  const config = loadConfig({ PORT: String(port), LOG_LEVEL: 'silent', NUNCIO_RATE_LIMIT: '0' }, 'dev');
  const second = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: server.databaseUrl,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
  });
  t.after(() => second.close());
  const subscriber = await startSubscriber(t);
  const apps = [];
  for (let count = 0; count < 5; count++) {
    const app = await createApp(server);
    await subscribe(app, { url: `${subscriber.url}/${count}` });
    apps.push(app);
  }
  await Promise.all(apps.map((app) => publish(publisher, app.account, range(100))));
  await subscriber.waitFor(500);
  await pause(300);
  assert.equal(subscriber.received.length, 500);
  for (const index of range(5)) {
    const own = subscriber.received.filter(({ path }) => path === `/${index}`);
    const sequences = own.map(({ headers }) => Number(headers['nuncio-sequence'])).sort((a, b) => a - b);
    assert.deepEqual(
      sequences,
      range(100).map((number) => number + 1),
    );
  }
});

test('webhooks 76: an event’s body is erased at once without its ids; expired days are dropped', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { body } = await publish(publisher, app.account, ['private']);
  await subscriber.waitFor(1);
  const [item] = await until(
    () => list(app, id),
    ([first]) => first?.state === 'succeeded',
  );
  assert.equal((await publisher('DELETE', `/events/${body.ids[0]}/body`)).status, 204);
  const { body: erased } = await app.request('GET', `/deliveries/${item.id}`);
  assert.equal(erased.body, null);
  assert.equal(erased.event, body.ids[0]);
  assert.equal(erased.attempts.length, 1);
  for (const unknown of [body.ids[0], '%00', '%ff', 'none']) {
    const { status } = await publisher('DELETE', `/events/${unknown}/body`);
    assert.equal(status, unknown === '%ff' ? 400 : 404, unknown);
  }

  await sql`create table events_20200101 partition of events for values from ('2020-01-01') to ('2020-01-02')`.execute(
    server.db,
  );
  await sql`create table attempts_20200101 partition of attempts for values from ('2020-01-01') to ('2020-01-02')`.execute(
    server.db,
  );
  await sql`insert into events (day, id, kind, body) values ('2020-01-01', 'old', 'push', '{}')`.execute(
    server.db,
  );
  await applyRetention(server.db);
  const { rows } = await sql<{ old: string | null; other: string | null; today: string }>`
    select to_regclass('events_20200101')::text as old, to_regclass('attempts_20200101')::text as other,
      (select count(*) from events) as today`.execute(server.db);
  assert.equal(rows[0]?.old, null);
  assert.equal(rows[0]?.other, null);
  assert.ok(Number(rows[0]?.today) > 0);
});

test('webhooks 80: metrics show backlog, lag, attempts, attempts in flight, and lanes lost and taken', async () => {
  const text = await (await fetch(`${server.baseUrl}/metrics`)).text();
  for (const name of [
    'nuncio_delivery_backlog_age_seconds{of="outbox"}',
    'nuncio_delivery_lag_seconds_bucket',
    'nuncio_delivery_attempts_total{result="accepted"}',
    'nuncio_delivery_attempts_total{result="unexpected_status"}',
    'nuncio_worker{of="in_flight"}',
    '# TYPE nuncio_subscription_in_flight gauge',
    'nuncio_lanes_lost_total',
    'nuncio_lane_claim_size_bucket',
  ]) {
    assert.ok(text.includes(name), name);
  }
});

test('webhooks 80: metrics follow attempts, their lag, and what is in flight for whom', async (t) => {
  const read = async () => {
    const text = await (await fetch(`${server.baseUrl}/metrics`)).text();
    return (name: string) => {
      const line = text.split('\n').find((one) => one.startsWith(`${name} `));
      return Number(line?.slice(name.length + 1) ?? 0);
    };
  };
  const held: ServerResponse[] = [];
  const subscriber = await startSubscriber(t, (_received, response) => void held.push(response));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const before = await read();
  await publish(publisher, app.account, ['one', 'two']);
  await subscriber.waitFor(2);
  const underWay = `nuncio_subscription_in_flight{subscription="${id}"}`;
  const during = await until(read, (value) => value(underWay) === 2);
  assert.ok(during('nuncio_worker{of="in_flight"}') >= 2);
  assert.ok(during('nuncio_worker{of="lanes"}') >= 1);
  assert.ok(during('nuncio_delivery_lag_seconds_count') - before('nuncio_delivery_lag_seconds_count') >= 2);
  for (const response of held) response.writeHead(204).end();
  const accepted = 'nuncio_delivery_attempts_total{result="accepted"}';
  await until(read, (value) => value(accepted) - before(accepted) >= 2 && value(underWay) === 0);
  await until(read, (value) => value('nuncio_delivery_backlog_age_seconds{of="outbox"}') === 0);
});

test('webhooks 21: an event reaches earlier subscriptions, not later ones, and is held for a disabled one', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const early = await subscribe(app, { url: `${subscriber.url}/early` });
  const disabled = await subscribe(app, { url: `${subscriber.url}/disabled` });
  await app.request('PATCH', `/subscriptions/${disabled.id}`, { json: { state: 'disabled' } });
  await publish(publisher, app.account, ['one']);
  await subscriber.waitFor(1);
  const late = await subscribe(app, { url: `${subscriber.url}/late` });
  await publish(publisher, app.account, ['two']);
  const received = await subscriber.waitFor(3);
  const at = (path: string) => marksOf(received.filter((one) => one.path === path)).sort();
  assert.deepEqual(at('/early'), ['one', 'two']);
  assert.deepEqual(at('/late'), ['two']);
  assert.equal((await list(app, late.id)).length, 1);
  assert.equal((await list(app, early.id)).length, 2);
  assert.equal((await list(app, disabled.id, '&status=held')).length, 2);
});

test('webhooks 22: each attempt sends and signs the stored bytes', async (t) => {
  const { default: Stripe } = await import('stripe');
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { secret } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['Zoë 🚀 \u2028']);
  await subscriber.waitFor(3);
  const { rows } = await sql<{ body: string }>`
    select body from events where account_id = ${app.account.id}`.execute(server.db);
  for (const { body, headers } of subscriber.received) {
    assert.equal(body, rows[0]?.body);
    new Stripe('sk_test_nothing').webhooks.constructEvent(
      body,
      headers['nuncio-signature'] as string,
      secret,
    );
  }
});

test('webhooks 72: a recovery with an Idempotency-Key is one job', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  const recover = (since: Date) =>
    app.request('POST', `/subscriptions/${id}/recover`, {
      json: { since: since.toISOString() },
      headers: { 'idempotency-key': 'recover-1' },
    });
  const since = new Date(Date.now() - 60_000);
  const first = await recover(since);
  assert.equal(first.status, 202, first.text);
  const again = await recover(since);
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  assert.equal(again.headers.get('location'), first.headers.get('location'));
  assert.deepEqual(again.body, first.body);
  assert.equal((await recover(new Date(since.getTime() - 1))).status, 422);
  const { rows } = await sql`
    select r.id from recoveries r join subscriptions s on s.lane = r.lane where s.id = ${id}`.execute(
    server.db,
  );
  assert.equal(rows.length, 1);
});

test('webhooks 72: a recovery can be cancelled', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  const since = new Date(Date.now() - 60_000).toISOString();
  const started = await app.request('POST', `/subscriptions/${id}/recover`, { json: { since } });
  const path = started.headers.get('location') as string;
  // The recovery may have finished by now, so the test sets it to running again.
  await sql`update recoveries set state = 'running' where id = ${started.body.id}`.execute(server.db);
  assert.equal((await app.request('DELETE', path)).status, 204);
  assert.notEqual((await app.request('GET', path)).body.state, 'running');
});

test('webhooks 72: a subscription has a limited number of concurrent recoveries', async () => {
  const app = await createApp(server);
  const { id, _links: links } = (await subscribe(app, { url: 'https://example.com/' })) as {
    id: string;
    _links?: Record<string, unknown>;
  };
  const shown = links ?? (await app.request('GET', `/subscriptions/${id}`)).body._links;
  assert.deepEqual(shown.recover, { href: `/subscriptions/${id}/recover`, method: 'POST' });
  const { rows } = await sql<{ id: string }>`
    insert into recoveries (id, lane, since, until, states, state)
    select gen_random_uuid(), lane, now(), now(), '{failed}', 'done' from subscriptions, generate_series(1, 3)
    where id = ${id} returning id`.execute(server.db);
  const recover = () =>
    app.request('POST', shown.recover.href, { json: { since: new Date().toISOString() } });
  const jobs = sql`any(${rows.map((row) => row.id)})`;
  // Steps skip locked recoveries, so these three run until the lock ends. It allows the update by another session.
  const refused = await server.db.transaction().execute(async (tx) => {
    await sql`select from recoveries where id = ${jobs} for key share`.execute(tx);
    await sql`update recoveries set state = 'running' where id = ${jobs}`.execute(server.db);
    return recover();
  });
  assert.equal(refused.status, 409);
  assert.equal(refused.body.code, 'too-many-recoveries');
  for (const { id: job } of rows) await app.request('DELETE', `/subscriptions/${id}/recoveries/${job}`);
  assert.equal((await recover()).status, 202);
});
