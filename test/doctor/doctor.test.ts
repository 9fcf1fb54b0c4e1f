/** The doctor with real faults: each is made, found with its advice, and mended. */

import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { IncomingMessage } from 'node:http';
import { tmpdir } from 'node:os';
import { after, test } from 'node:test';
import { type RawBuilder, sql } from 'kysely';
import pg from 'pg';
import { openDatabase } from '../../src/database/database.ts';
import { databaseLimits, databaseStateProbes } from '../../src/doctor/database_state.ts';
import { type Check, examine, type Report } from '../../src/doctor/report.ts';
import { type diskLimits, storageProbes } from '../../src/doctor/storage.ts';
import { workProbes } from '../../src/doctor/work.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { eventually, newDataDir, query, start } from '../support/database/embedded_process.ts';
import { startReplicated } from '../support/database/standby.ts';
import { startTestServer } from '../support/servers/server.ts';
import { addPaused, createApp, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const administrator = requester(server, await adminToken());

async function adminToken(): Promise<string> {
  const account = await createTestAccount(server, { isAdmin: true });
  const client = await createTestClient(server, { scopes: ['admin'] });
  return (await mintAccessToken(server, { account, client, scopes: ['admin'] })).accessToken;
}

async function ask(): Promise<Report> {
  const { status, body, text } = await administrator('GET', '/admin/doctor');
  assert.equal(status, 200, text);
  return body;
}

function find({ checks }: Report, name: string): Check {
  const found = checks.find((each) => each.name === name);
  assert.ok(found, `${name} is not among ${checks.map((each) => each.name).join(' ')}`);
  return found;
}

/** Makes a fault by a statement, expects the doctor to find it, and mends it. */
async function expectFault(
  name: string,
  state: Check['state'],
  texts: [summary: RegExp, advice: RegExp],
  make: RawBuilder<unknown>,
  mend: RawBuilder<unknown>,
): Promise<void> {
  assert.notEqual(find(await ask(), name).state, state, 'the fault is not there yet');
  await make.execute(server.db);
  try {
    // The statistics of PostgreSQL are written with a delay.
    const found = await until(
      async () => find(await ask(), name),
      (each) => each.state !== 'ok',
    );
    assert.equal(found.state, state, found.summary);
    assert.match(found.summary, texts[0]);
    assert.match(found.advice ?? '', texts[1]);
  } finally {
    await mend.execute(server.db);
  }
  assert.notEqual(find(await ask(), name).state, state, 'it is mended');
}

test('only administrators read the report, and it contains no secrets', async () => {
  const user = await createApiUser(server);
  assert.equal((await user.request('GET', '/admin/doctor')).status, 403);
  assert.equal((await requester(server)('GET', '/admin/doctor')).status, 401);
  assert.equal((await administrator('GET', '/admin/doctor?x=1')).status, 400);
  const text = JSON.stringify(await ask());
  const { password } = new URL(server.databaseUrl);
  if (password !== '') assert.ok(!text.includes(password));
  assert.doesNotMatch(text, /a secret for tests/);
});

test('the report of a server names each subject once, and the settings that lose data', async () => {
  const report = await ask();
  const names = report.checks.map(({ name }) => name);
  assert.deepEqual(names, [...new Set(names)]);
  for (const name of [
    'base_url',
    'base_url.dns',
    'proxies',
    'proxies.headers',
    'database.version',
    'clock',
    'database.transaction_ids',
    'database.replication',
    'database.slots',
    'database.archive',
    'partitions',
    'dead_rows',
    'disk',
    'nodes',
    'leader',
    'backlog.events',
    'backlog.lanes',
    'backlog.accounts',
    'backlog.days',
    'backlog.inbox',
    'events.parked',
    'events.rejected',
    'subscriptions',
    'node.open_files',
  ]) {
    const { state, summary } = find(report, name);
    assert.ok(['ok', 'unknown'].includes(state), `${name}: ${summary}`);
  }
  // The PostgreSQL of the tests gives up durability for speed, which is a real fault.
  assert.equal(find(report, 'database.fsync').state, 'error');
  assert.match(find(report, 'database.fsync').advice ?? '', /fsync = on/);
  assert.equal(report.state, 'error');
});

test('requests at the same time share one examination', async (t) => {
  let arrived = 0;
  // Other tests of this process have servers, too.
  const count = (message: unknown) => {
    const { request } = message as { request: IncomingMessage };
    if (request.url === '/admin/doctor' && request.headers.host === new URL(server.baseUrl).host)
      arrived += 1;
  };
  subscribe('http.server.request.start', count);
  t.after(() => unsubscribe('http.server.request.start', count));
  // The examination waits for the lock until all requests are there.
  const { reports } = await server.db.transaction().execute(async (tx) => {
    await sql`lock table parked_events in access exclusive mode`.execute(tx);
    const asked = Promise.all([ask(), ask(), ask()]);
    await until(
      async () => arrived,
      (requests) => requests >= 3,
    );
    // A later request has passed the checks of its token, so these have as well.
    await administrator('GET', '/admin/apps');
    return { reports: asked };
  });
  assert.equal(new Set((await reports).map((report) => report.created_at)).size, 1);
});

test('events that were set aside are found, and become an error before they are deleted', async () => {
  const clear = sql`delete from parked_events`;
  await expectFault(
    'events.parked',
    'warning',
    [/^1 event could not be fanned out \(a bad day\)$/, /nuncio parked retry/],
    sql`insert into parked_events (position, day, turn, reason) values (1, current_date, gen_random_uuid(), 'a bad day')`,
    clear,
  );
  await expectFault(
    'events.parked',
    'error',
    [/could not be fanned out/, /1 will be deleted within three days/],
    sql`insert into parked_events (position, day, turn, reason) values (1, current_date - 29, gen_random_uuid(), 'a bad day')`,
    clear,
  );
  await expectFault(
    'events.rejected',
    'warning',
    [/^1 event published by SQL failed validation$/, /nuncio rejected list/],
    sql`insert into rejected_events (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
      values (gen_random_uuid(), 'a', 'b', false, 'push', '{}', 2, 'r', '[]', now())`,
    sql`delete from rejected_events`,
  );
  await expectFault(
    'backlog.inbox',
    'error',
    [/publishing by SQL fails/, /nuncio rejected list/],
    sql`update intake set is_blocked = true`,
    sql`update intake set is_blocked = false`,
  );
});

test('retries that wait are counted for each account', async () => {
  const app = await createApp(server);
  await addPaused(server.db, app, 1);
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    select lane, 1, current_date, 'pending', 1, now() + interval '1 hour' from subscriptions
    where account_id = ${app.account.id}`.execute(server.db);
  const accounts = find(await ask(), 'backlog.accounts');
  assert.equal(accounts.values[app.account.id], 1);
  assert.ok(accounts.summary.includes(app.account.id));
  await sql`delete from retries`.execute(server.db);
});

test('a day that is kept for longer than configured is found, with the subscription that waits', async () => {
  const app = await createApp(server);
  await addPaused(server.db, app, 1);
  const { rows } = await sql<{ id: string; lane: string }>`
    select id, lane from subscriptions where account_id = ${app.account.id}`.execute(server.db);
  const [{ id, lane }] = rows as [(typeof rows)[number]];
  await sql`update lanes set next_sequence = 2 where id = ${lane}`.execute(server.db);
  await expectFault(
    'backlog.days',
    'warning',
    [new RegExp(`^1 day since 2020-01-04 .*: deliveries of subscription ${id} wait$`), /disable them/],
    sql`
      do $$ begin
        create table deliveries_20200104 partition of deliveries for values from ('2020-01-04') to ('2020-01-05');
        insert into deliveries (day, lane, sequence, event) values ('2020-01-04', ${sql.lit(lane)}, 1, 1);
      end $$`,
    sql`drop table deliveries_20200104`,
  );
});

test('stopped and silent nodes are found, with the age of what waits for them', async () => {
  await expectFault(
    'nodes',
    'warning',
    [/^1 node has no heartbeat \(elsewhere\)$/, /restart it/],
    sql`insert into nodes (id, host, process, alive_until, silent_heartbeats, silent_epoch, generation)
      values (1, 'elsewhere 1 2', '1 2', now() + interval '1 minute', 0, current_epoch(), 2)`,
    sql`delete from nodes where id = 1`,
  );
  const quiet = await startTestServer({ after: (hook) => after(hook) });
  await quiet.running.close();
  const db = openDatabase({ connectionString: quiet.databaseUrl, connectionsMax: 1 });
  after(() => db.destroy());
  const stopped = await examine(workProbes(db));
  assert.match(find(stopped, 'nodes').summary, /no server runs on this database/);
  await sql`insert into nodes (id, host, process, alive_until, generation) values (1, 'a', 'b', now() + interval '1 minute', 2)`.execute(
    db,
  );
  await sql`update leases set expires_at = now() - interval '3 minutes' where name = 'fan-out'`.execute(db);
  const leaderless = find(await examine(workProbes(db)), 'leader');
  assert.equal(leaderless.state, 'error');
  assert.match(leaderless.summary, /none has fanned out events for 3 minutes/);
  await sql`
    with event as (
      insert into events (id, kind, body, created_at) values ('e', 'push', '{}', now() - interval '1 hour') returning day, position)
    insert into outbox (day, positions) select day, array[position] from event`.execute(db);
  const waiting = find(await examine(workProbes(db)), 'backlog.events');
  assert.equal(waiting.state, 'error');
  const app = await createApp({ ...quiet, db });
  await addPaused(db, app, 1);
  await sql`update lane_progress set due_at = now() - interval '20 minutes'`.execute(db);
  const lanes = find(await examine(workProbes(db)), 'backlog.lanes');
  assert.equal(lanes.state, 'error');
  assert.match(
    lanes.summary,
    /^1 subscription with due deliveries; the first waits for a node for 20 minutes$/,
  );
  assert.match(waiting.summary, /^1 event without deliveries; the oldest waits for 60 minutes$/);
});

test('missing partitions, dead rows and the growth of a day are found', async () => {
  await expectFault(
    'partitions',
    'warning',
    [/^the partitions of events end today$/, /locks on the table/],
    sql`do $$ declare name text; begin
      for name in select relname from pg_class join pg_inherits on inhrelid = pg_class.oid
        where inhparent = 'events'::regclass and right(relname, 8) > to_char(now() at time zone 'utc', 'YYYYMMDD') loop
        execute format('drop table %I', name);
      end loop; end $$`,
    sql`select ensure_day_partitions(7)`,
  );
  await expectFault(
    'dead_rows',
    'warning',
    [/^littered has 60000 dead rows and 0 live ones; its last vacuum was never$/, /run vacuum/],
    sql`do $$ begin
      create table littered (id int) with (autovacuum_enabled = off);
      insert into littered select generate_series(1, 60000);
      delete from littered; end $$`,
    sql`drop table littered`,
  );
  assert.equal(find(await ask(), 'disk').values.bytes_per_day, null, 'there was no yesterday');
  await sql`
    insert into events (day, id, kind, body)
    select (now() at time zone 'utc')::date - 1, n::text, 'push', repeat(md5(n::text), 30) from generate_series(1, 5000) n`.execute(
    server.db,
  );
  const { values, summary } = find(await ask(), 'disk');
  assert.ok(Number(values.bytes_per_day) > 4_000_000, summary);
  assert.match(summary, /grows by [\d.]+ MiB a day/);
});

test('the days that the disk lasts at the rate of yesterday decide, and its free share', async () => {
  const { db } = server;
  await sql`
    insert into events (day, id, kind, body)
    select (now() at time zone 'utc')::date - 1, 'd' || n, 'push', repeat(md5(n::text), 30) from generate_series(1, 5000) n`.execute(
    db,
  );
  const examined = async (warning: [share: number, days: number], error: [share: number, days: number]) => {
    const [limit, worse] = [warning, error].map(([share, days]) => ({ share, days }));
    const limits = { warning: limit, error: worse } as typeof diskLimits;
    return find(await examine(storageProbes(db, tmpdir(), limits)), 'disk');
  };
  const { state, summary, values } = await examined([0, 0], [0, 0]);
  assert.equal(state, 'ok', summary);
  const days = Math.floor(Number(values.free_bytes) / Number(values.bytes_per_day));
  assert.equal(values.days_left, days);
  assert.ok(summary.endsWith(` free (${days} days at the rate of yesterday)`), summary);
  const more = days * 2;
  const soon = await examined([0, more], [0, 0]);
  assert.equal(soon.state, 'warning');
  assert.match(soon.advice ?? '', /^Enlarge the disk/);
  assert.equal((await examined([0, more], [0, more])).state, 'error');
  assert.equal((await examined([1.1, 0], [0, 0])).state, 'warning');
  assert.equal((await examined([1.1, 0], [1.1, 0])).state, 'error');
});

test('a transaction that stays open is found with the name of its application', async (t) => {
  const client = new pg.Client({ connectionString: server.databaseUrl, application_name: 'forgotten' });
  client.on('error', () => {});
  await client.connect();
  t.after(() => client.end());
  const db = openDatabase({ connectionString: server.databaseUrl, connectionsMax: 1 });
  t.after(() => db.destroy());
  const examined = async (seconds: number) => {
    const limits = { ...databaseLimits, transaction: { warning: seconds, error: 3_600 } };
    return find(await examine(databaseStateProbes(db, limits)), 'database.transactions');
  };
  await client.query('begin');
  await client.query('select 1');
  assert.equal((await examined(300)).state, 'ok');
  // Others are shorter than this one by now.
  const found = await until(
    () => examined(1),
    ({ state, summary }) => state === 'warning' && summary.includes('forgotten'),
  );
  assert.match(found.advice ?? '', /pg_terminate_backend/);
});

test('a table without a partition for today is found', async () => {
  const stopped = await startTestServer({ after: (hook) => after(hook) });
  await stopped.running.close();
  const db = openDatabase({ connectionString: stopped.databaseUrl, connectionsMax: 1 });
  after(() => db.destroy());
  const examined = async () => find(await examine(storageProbes(db, null)), 'partitions');
  assert.equal((await examined()).state, 'ok');
  await sql`do $$ declare name text; begin
    for name in select inhrelid::regclass from pg_inherits where inhparent = 'attempts'::regclass loop
      execute format('drop table %s', name);
    end loop; end $$`.execute(db);
  const found = await examined();
  assert.deepEqual([found.state, found.summary], ['error', 'attempts has no partition for today']);
  assert.match(found.advice ?? '', /"partitions" in its log/);
  await sql`select ensure_day_partitions(7)`.execute(db);
  assert.equal((await examined()).state, 'ok');
});

test('used up transaction ids are found', async () => {
  const examined = async (warning: number, error: number) => {
    const limits = { ...databaseLimits, transactionIds: { warning, error } };
    return find(await examine(databaseStateProbes(server.db, limits)), 'database.transaction_ids');
  };
  const { state, values } = await examined(1_000_000_000, 1_800_000_000);
  assert.equal(state, 'ok');
  const age = Number(values.age);
  assert.ok(age > 100, `${age}`);
  const warned = await examined(age, 1_800_000_000);
  assert.equal(warned.state, 'warning');
  assert.match(warned.summary, /^\d+ of 2,147 million transaction ids are used up$/);
  assert.match(warned.advice ?? '', /vacuum freeze/);
  assert.equal((await examined(age, age)).state, 'error');
});

test('a standby that lags, a slot that keeps WAL and a failing archive are found', async (t) => {
  const { primary, standby } = await startReplicated(t);
  const db = openDatabase({ connectionString: primary.connectionString, connectionsMax: 1 });
  t.after(() => db.destroy());
  const limits = { ...databaseLimits, lag: { seconds: 3_600, bytes: 100_000 }, retainedWalBytes: 100_000 };
  const examined = () => examine(databaseStateProbes(db, limits));
  await eventually(async () => {
    assert.match(find(await examined(), 'database.replication').summary, /^1 standby, up to date$/);
  });
  await query(standby.connectionString, 'select pg_wal_replay_pause()');
  await query(
    primary.connectionString,
    `create table grown as select repeat('x', 1000) from generate_series(1, 2000)`,
  );
  const lagging = await until(
    async () => find(await examined(), 'database.replication'),
    ({ state }) => state === 'warning',
  );
  assert.match(lagging.summary, /is [\d.]+ MiB behind$/);
  assert.equal(find(await examined(), 'database.slots').state, 'ok');
  await query(primary.connectionString, `select pg_create_physical_replication_slot('unused', true)`);
  await query(primary.connectionString, `create table more as select * from grown`);
  const slot = find(await examined(), 'database.slots');
  assert.equal(slot.state, 'error');
  assert.match(slot.summary, /^the unused replication slot unused keeps [\d.]+ MiB of WAL$/);
  const other = openDatabase({ connectionString: standby.connectionString, connectionsMax: 1 });
  t.after(() => other.destroy());
  assert.match(
    find(await examine(databaseStateProbes(other)), 'database.version').summary,
    /^the database is a standby$/,
  );
});

test('a server whose commits wait for a standby that it does not have is found', async (t) => {
  const server = await start(newDataDir(t), 'server');
  await query(server.connectionString, `alter system set synchronous_standby_names = '*'`);
  await query(server.connectionString, 'select pg_reload_conf()');
  const db = openDatabase({ connectionString: server.connectionString, connectionsMax: 1 });
  t.after(() => db.destroy());
  const waiting = await until(
    async () => find(await examine(databaseStateProbes(db)), 'database.replication'),
    ({ state }) => state === 'error',
  );
  assert.match(waiting.summary, /no standby is connected: every commit waits$/);
  assert.match(waiting.advice ?? '', /alter system reset synchronous_standby_names/);
  await query(server.connectionString, 'alter system reset synchronous_standby_names');
  await query(server.connectionString, 'select pg_reload_conf()');
  await until(
    async () => find(await examine(databaseStateProbes(db)), 'database.replication'),
    ({ state }) => state === 'ok',
  );
});

test('an archive command that fails is found', async (t) => {
  const dataDir = newDataDir(t);
  const first = await start(dataDir, 'server');
  await query(first.connectionString, 'alter system set archive_mode = on');
  await query(first.connectionString, `alter system set archive_command = 'false'`);
  await first.stop();
  const second = await start(dataDir, 'server');
  const db = openDatabase({ connectionString: second.connectionString, connectionsMax: 1 });
  t.after(() => db.destroy());
  assert.equal(find(await examine(databaseStateProbes(db)), 'database.archive').state, 'ok');
  await query(second.connectionString, 'create table written as select 1');
  await query(second.connectionString, 'select pg_switch_wal()');
  const found = await until(
    async () => find(await examine(databaseStateProbes(db)), 'database.archive'),
    ({ state }) => state !== 'ok',
  );
  assert.equal(found.state, 'error');
  assert.match(found.advice ?? '', /archive_command/);
  await db.destroy();
});
