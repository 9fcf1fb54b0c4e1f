/** Publishing by SQL: commits are delivered once and in order, rollbacks are not, and rejected events are kept. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createTestAccount } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { connectApplication, createPublisherRole } from '../support/publishing/sql_publisher.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const hooks: (() => Promise<void>)[] = [];
// Runs before the server's own hook, which drops the database.
after(async () => {
  for (const hook of hooks) await hook();
});
const server = await startTestServer({ after });
const { db } = server;
const publisherUrl = await createPublisherRole(
  { after: (hook) => void hooks.push(hook) },
  server.databaseUrl,
);
const application = await connectApplication({ after: (hook) => void hooks.unshift(hook) }, publisherUrl);

const publish = 'select nuncio.publish($1, $2, $3) as id';
const publishAs = 'select nuncio.publish($1, $2, $3, $4) as id';

async function drained(): Promise<void> {
  await until(
    async () => (await sql`select from inbox limit 1`.execute(db)).rows.length,
    (count) => count === 0,
  );
}

const marksOf = (received: { body: string }[]) =>
  received.map(({ body }) => JSON.parse(body).ref.slice('refs/heads/'.length));

test('an event commits with the application’s change, and only with it', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, ordered: true });
  await application.query('begin');
  await application.query(publish, ['push', app.account.id, pushBody('rolled back')]);
  await application.query('rollback');
  await application.query('begin');
  const { rows } = await application.query(publish, ['push', app.account.id, pushBody('first')]);
  await application.query('savepoint half');
  await application.query(publish, ['push', app.account.id, pushBody('to the savepoint')]);
  await application.query('rollback to savepoint half');
  await application.query(publish, ['push', app.account.id, pushBody('second')]);
  assert.equal(
    (await sql`select from events where account_id = ${app.account.id}`.execute(db)).rows.length,
    0,
  );
  await application.query('commit');
  const received = await subscriber.waitFor(2);
  assert.deepEqual(marksOf(received), ['first', 'second']);
  const stored = await sql<{ id: string }>`
    select id from events where account_id = ${app.account.id} order by position`.execute(db);
  assert.equal(stored.rows.length, 2);
  assert.equal(stored.rows[0]?.id, rows[0].id);
  assert.match(rows[0].id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
});

test('thousands of events of one statement reach an ordered subscription in order', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, ordered: true, kinds: ['push'] });
  await application.query(
    `select nuncio.publish('push', $1, jsonb_build_object('ref', 'refs/heads/' || n, 'commits', '[]'::jsonb,
       'repository', '{"name":"example"}'::jsonb)) from generate_series(1, 2500) as n`,
    [app.account.id],
  );
  const received = await subscriber.waitFor(2_500);
  assert.deepEqual(
    marksOf(received),
    Array.from({ length: 2_500 }, (_, index) => String(index + 1)),
  );
});

test('the same id with the same body is one event, and with another body it is rejected', async () => {
  const app = await createApp(server);
  const id = `order-${app.account.id}`;
  for (const mark of ['a', 'a', 'b']) {
    assert.equal(
      (await application.query(publishAs, ['push', app.account.id, pushBody(mark), id])).rows[0].id,
      id,
    );
    await drained();
  }
  const events = await sql<{ body: string }>`select body from events where id = ${id}`.execute(db);
  assert.equal(events.rows.length, 1);
  // By HTTP the same id is the same event, too.
  const publisher = await createPublisher(server);
  const again = { kind: 'push', account: app.account.id, body: JSON.parse(events.rows[0]?.body ?? ''), id };
  assert.equal((await publisher('POST', '/events', { json: again })).status, 202);
  assert.equal((await sql`select from events where id = ${id}`.execute(db)).rows.length, 1);
  const rejected = await sql<{ errors: unknown }>`
    select errors from rejected_events where event_id = ${id}`.execute(db);
  assert.deepEqual(rejected.rows, [
    { errors: [{ pointer: '/id', message: 'is already the id of another event', code: 'id-reused' }] },
  ]);
});

test('a refused event is kept with the reason, and the events beside it continue', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const { id } = app.account;
  const nested = JSON.parse(`${'['.repeat(100)}${']'.repeat(100)}`);
  await application.query('begin');
  const bad: [string, string, unknown, RegExp][] = [
    ['push', id, { ref: 7 }, /\/body/],
    ['push', id, null, /\/body/],
    ['push', id, { ...pushBody(), deep: nested }, /nested/],
    ['no.such.kind', id, {}, /\/kind must be a declared kind/],
    ['ping', id, { subscription: 'x', at: 'y' }, /\/kind must be a declared kind/],
    ['__proto__', id, {}, /\/kind must be a declared kind/],
  ];
  for (const [kind, account, body] of bad) {
    await application.query('select nuncio.publish($1, $2, $3::jsonb)', [
      kind,
      account,
      JSON.stringify(body),
    ]);
    await application.query(publish, ['push', id, pushBody(kind)]);
  }
  // JavaScript would turn this number into another one.
  await application.query(
    `select nuncio.publish('push', $1, '{"ref":"r","commits":[],"repository":{},"n":12345678901234567890}')`,
    [id],
  );
  await application.query('commit');
  await subscriber.waitFor(bad.length);
  await drained();
  const { rows } = await sql<{ reason: string }>`
    select reason from rejected_events where account = ${id} order by id`.execute(db);
  assert.equal(rows.length, bad.length + 1);
  const reasons = rows.map(({ reason }) => reason).join('\n');
  for (const [, , , reason] of bad) assert.match(reasons, reason);
  assert.match(reasons, /12345678901234567890/);
  assert.equal(subscriber.received.length, bad.length);
});

test('an event that the database refuses is rejected alone', async () => {
  const app = await createApp(server);
  await sql`
    create function refuse_poison() returns trigger language plpgsql as $$
    begin
      if new.id like 'poison%' then raise exception 'poisoned' using errcode = 'data_exception'; end if;
      return new;
    end $$`.execute(db);
  await sql`create trigger refuse_poison before insert on events for each row execute function refuse_poison()`.execute(
    db,
  );
  try {
    await application.query('begin');
    for (let number = 0; number < 20; number += 1) {
      const id = number === 7 ? `poison-${app.account.id}` : `good-${number}-${app.account.id}`;
      await application.query(publishAs, ['push', app.account.id, pushBody(number), id]);
    }
    await application.query('commit');
    await drained();
    const kept = await sql<{ event_id: string; reason: string }>`
      select event_id, reason from rejected_events where account = ${app.account.id}`.execute(db);
    assert.deepEqual(kept.rows, [{ event_id: `poison-${app.account.id}`, reason: 'poisoned' }]);
    const events = await sql`select from events where account_id = ${app.account.id}`.execute(db);
    assert.equal(events.rows.length, 19);
  } finally {
    await sql`drop function refuse_poison() cascade`.execute(db);
  }
});

test('an impossible value is refused at once with a SQLSTATE', async () => {
  const { id } = await createTestAccount(server);
  const body = pushBody();
  for (const [values, code] of [
    [[null, id, body, null], '22004'],
    [['push', null, body, null], '22004'],
    [['push', id, null, null], '22004'],
    [['', id, body, null], '22023'],
    [['x'.repeat(256), id, body, null], '22023'],
    [['push', '', body, null], '22023'],
    [['push', 'x'.repeat(256), body, null], '22023'],
    [['push', id, body, ''], '22023'],
    [['push', id, body, 'with space'], '22023'],
    [['push', id, body, 'é'], '22023'],
    [['push', id, body, 'line\n'], '22023'],
    [['push', id, body, 'x'.repeat(256)], '22023'],
    [['push', id, { text: 'x'.repeat(262_144) }, null], '54000'],
    [['push', id, '{"text":"\\u0000"}', null], '22P05'],
    [['push', id, `${'['.repeat(200_000)}${']'.repeat(200_000)}`, null], '54001'],
  ] as const) {
    await assert.rejects(
      // The driver's types require a mutable array.
      application.query(publishAs, values as unknown as unknown[]),
      (error) => (error as { code: string }).code === code,
      `${code}: ${JSON.stringify(values).slice(0, 80)}`,
    );
  }
  assert.equal((await sql`select from inbox where account = ${id}`.execute(db)).rows.length, 0);
});

test('neither response nor error reveals whether an account exists', async () => {
  const { id } = await createTestAccount(server);
  for (const account of [id, id.replace(/^./, 'f'), 'nobody', `' or true --`, '../../etc/passwd']) {
    const { rows } = await application.query(publish, ['push', account, pushBody()]);
    assert.deepEqual(Object.keys(rows[0]), ['id']);
  }
});

test('an account is named by its id or external id, and created when new', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const uuid = '5f0c6f2e-0000-4000-8000-00000000abcd';
  const names = [`user ${app.account.id}`, `User ${app.account.id}`, uuid, 'ü'.repeat(255), '"{}[]\'];--'];
  for (const name of [...names, ...names]) await application.query(publish, ['push', name, pushBody()]);
  await application.query(publish, ['push', app.account.id.toUpperCase(), pushBody('another')]);
  await application.query(publish, ['push', app.account.id, pushBody('mine')]);
  await application.query(publish, ['push', 'control\u0007', pushBody()]);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['mine']);
  await drained();
  const { rows } = await sql<{ external_id: string; events: number }>`
    select external_id, (select count(*)::int from events where account_id = accounts.id) as events
    from accounts where external_id = any(${names}::text[])`.execute(db);
  assert.deepEqual(new Set(rows.map((row) => row.external_id)), new Set(names));
  for (const row of rows) assert.equal(row.events, 2, row.external_id);
  const rejected = await sql`select from rejected_events where account = ${'control\u0007'}`.execute(db);
  assert.equal(rejected.rows.length, 1);
  assert.equal(subscriber.received.length, 1);
});

test('an event whose account is ambiguous is rejected', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const { id } = app.account;
  await sql`insert into accounts (id, external_id, name) values (gen_random_uuid(), ${id}, '')`.execute(db);
  await application.query(publish, ['push', id, pushBody()]);
  const { rows } = await until(
    () => sql<{ reason: string }>`select reason from rejected_events where account = ${id}`.execute(db),
    (found) => found.rows.length > 0,
  );
  assert.match(rows[0]?.reason ?? '', /the id of one account and the external id of another/);
  assert.equal((await sql`select from events where account_id = ${id}`.execute(db)).rows.length, 0);
});

test('an event for the id of a deleted account is rejected and creates no account', async () => {
  const { id } = await createTestAccount(server);
  await sql`delete from accounts where id = ${id}`.execute(db);
  await application.query(publish, ['push', id, pushBody()]);
  await drained();
  const { rows } = await sql<{
    errors: unknown;
  }>`select errors from rejected_events where account = ${id}`.execute(db);
  assert.deepEqual(rows, [
    { errors: [{ pointer: '/account', message: 'is the id of a deleted account', code: 'account-deleted' }] },
  ]);
  assert.equal((await sql`select from accounts where external_id = ${id}`.execute(db)).rows.length, 0);
});

test('the publisher role may execute one function and nothing else', async () => {
  const denied = async (statement: string) =>
    assert.rejects(
      application.query(statement),
      (error) => (error as { code: string }).code === '42501',
      statement,
    );
  const { rows } = await sql<{ table: string; kind: string }>`
    select relname as "table", relkind as kind from pg_class
    where relnamespace = current_schema()::regnamespace and relkind in ('r', 'p', 'S', 'v')`.execute(db);
  assert.ok(rows.length > 40);
  for (const { table, kind } of rows) {
    await denied(`select * from nuncio.${table}`);
    if (kind === 'S') await denied(`select nextval('nuncio.${table}')`);
    else {
      await denied(`delete from nuncio.${table}`);
      await denied(`insert into nuncio.${table} default values`);
    }
  }
  const functions = await sql<{ name: string }>`
    select p.oid::regprocedure::text as name from pg_proc p
    where p.pronamespace = current_schema()::regnamespace and has_function_privilege('nuncio_publisher', p.oid, 'execute')`.execute(
    db,
  );
  assert.deepEqual(functions.rows, [{ name: 'publish(text,text,jsonb,text)' }]);
  await denied('create table nuncio.mine (x int)');
  await denied('create function nuncio.publish(text) returns text language sql as $$ select 1::text $$');
  await denied('set role nuncio_owner_of_nothing').catch(() => {});
  await denied('select nuncio.begin_epoch(0, null)');
  await denied('set session_replication_role = replica');
});

test('the caller’s search path and temporary objects are not used', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const hostile = await connectApplication(t, publisherUrl);
  for (const statement of [
    'create temp table inbox (like pg_class)',
    'create temp table intake (is_only boolean, first_id bigint, polls_until timestamptz, is_blocked boolean)',
    `insert into pg_temp.intake values (true, 0, 'infinity', true)`,
    `create function pg_temp.publish(text, text, jsonb, text) returns text language sql as $$ select 'caught'::text $$`,
    `create function pg_temp.octet_length(text) returns integer language plpgsql as $$ begin raise 'caught'; end $$`,
    `create function pg_temp.gen_random_uuid() returns uuid language plpgsql as $$ begin raise 'caught'; end $$`,
    `create function pg_temp.differs(text, text) returns boolean language plpgsql as $$ begin raise 'caught'; end $$`,
    'create operator pg_temp.!~ (leftarg = text, rightarg = text, function = pg_temp.differs)',
    'set search_path to pg_temp, pg_catalog, nuncio',
  ]) {
    await hostile.query(statement);
  }
  await hostile.query('begin');
  await hostile.query('set constraints all immediate');
  const { rows } = await hostile.query(publishAs, [
    'push',
    app.account.id,
    pushBody('kept'),
    'chosen-by-the-app',
  ]);
  assert.equal(rows[0].id, 'chosen-by-the-app');
  await hostile.query('commit');
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['kept']);
  assert.equal((await hostile.query('select count(*)::int as count from pg_temp.inbox')).rows[0].count, 0);
});

test('accounts take turns, so one that publishes thousands does not delay another', async () => {
  const [many, few] = [await createTestAccount(server), await createTestAccount(server)];
  await application.query('begin');
  await application.query(
    `select nuncio.publish('push', $1, '{"ref":"refs/heads/x","commits":[],"repository":{"name":"example"}}') from generate_series(1, 5000)`,
    [many.id],
  );
  await application.query(publish, ['push', few.id, pushBody('few')]);
  await application.query('commit');
  await drained();
  const { rows } = await sql<{ before: number }>`
    select count(*)::int as before from events
    where account_id = ${many.id} and position < (select position from events where account_id = ${few.id})`.execute(
    db,
  );
  assert.ok((rows[0]?.before ?? 5_000) <= 1_000, `${rows[0]?.before} events came first`);
  // Under load, publishers learn that they need not notify the server.
  await until(
    async () => (await sql`select from intake where polls_until > '-infinity'`.execute(db)).rows.length,
    (count) => count === 1,
  );
});

test('a rollback does not block publishing for long', async () => {
  // As after a transaction of a million events that rolled back. In one statement, because servers soon notice the new ids.
  await assert.rejects(
    sql`
      select publish('push', 'a', '{}') from inbox_ids where setval('inbox_ids', last_value + 1048580) > 0`.execute(
      db,
    ),
    /too many events wait/,
  );
  await until(
    async () =>
      (await application.query(publish, ['push', 'a', pushBody()]).catch(() => undefined))?.rows.length,
    (length) => length === 1,
  );
});

test('publishing fails when too much waits or is rejected, and resumes afterwards', async (t) => {
  const database = await createDatabase();
  const own = await connectApplication(t, database.url);
  t.after(() => database.drop());
  const {
    rows: [first],
  } = await own.query(publish, ['push', 'a', pushBody()]);
  assert.ok(first.id);
  await own.query(`select setval('nuncio.inbox_ids', 1048580)`);
  const full = (error: unknown) =>
    (error as { code: string }).code === '53400' && /too many events wait/.test(String(error));
  await assert.rejects(own.query(publish, ['push', 'a', pushBody()]), full);
  // A refused event consumes no id.
  assert.equal(
    (await own.query('select last_value::int as value from nuncio.inbox_ids')).rows[0].value,
    1_048_580,
  );
  await own.query('update nuncio.intake set first_id = 100');
  await own.query(publish, ['push', 'a', pushBody()]);
  await own.query('update nuncio.intake set is_full = true');
  await assert.rejects(own.query(publish, ['push', 'a', pushBody()]), /too many rejected events wait/);
  // A large body counts by its size.
  await own.query('update nuncio.intake set is_full = false');
  const before = (await own.query('select last_value::int as value from nuncio.inbox_ids')).rows[0].value;
  await own.query(publish, ['push', 'a', { text: 'x'.repeat(200_000) }]);
  const {
    rows: [last],
  } = await own.query('select last_value::int as value from nuncio.inbox_ids');
  assert.equal(last.value - before, 196);
});

test('bodies of the largest size arrive in many small batches without a pause', async () => {
  const { id } = await createTestAccount(server);
  await application.query(
    `select nuncio.publish('push', $1, jsonb_build_object('ref', repeat('x', 262000), 'commits', '[]'::jsonb,
       'repository', '{"name":"example"}'::jsonb)) from generate_series(1, 40)`,
    [id],
  );
  await drained();
  // The kind's schema rejects them after the intake.
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from rejected_events where account = ${id}`.execute(db);
  assert.equal(rows[0]?.count, 40);
});

test('serializable and repeatable-read transactions can publish', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  for (const level of ['serializable', 'repeatable read']) {
    await application.query(`begin isolation level ${level}`);
    await application.query(publish, ['push', app.account.id, pushBody(level.split(' ')[0])]);
    await application.query('commit');
  }
  assert.deepEqual(marksOf(await subscriber.waitFor(2)).sort(), ['repeatable', 'serializable']);
});
