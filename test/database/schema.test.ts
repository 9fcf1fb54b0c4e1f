/**
 * Nuncio stays in its own schema: beside another application, beside another Nuncio, and for a database user
 * with minimal rights.
 */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { migrateCollections } from '../../src/collections/migrate.ts';
import { ConfigError, loadConfig } from '../../src/config/config.ts';
import { migrate, requireMigrated, SchemaError } from '../../src/database/migrate.ts';
import { schemaOf, withSchema } from '../../src/database/schema.ts';
import { loadPlatform } from '../../src/platform.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createDatabase, createForeignDatabase, type TestDatabase } from '../support/database/database.ts';
import { runCommand, startProcess } from '../support/servers/process.ts';
import { freePort, type TestServer, testSecret } from '../support/servers/server.ts';
import { asApplication, startServerOn } from '../support/servers/shared_database.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const migrations = new URL('../../migrations/', import.meta.url);

const undo: (() => Promise<unknown>)[] = [];
// Runs after the servers of each test have stopped.
after(async () => {
  for (const step of undo) await step();
});

async function foreignDatabase(): Promise<TestDatabase> {
  const database = await createForeignDatabase();
  undo.push(() => database.drop());
  return database;
}

test('migrations have unique numbers, and none names a schema', () => {
  const names = readdirSync(migrations);
  for (const name of names) assert.match(name, /^\d{4}_[a-z][a-z0-9_]*\.sql$/);
  const numbers = names.map((name) => name.slice(0, 4));
  assert.equal(new Set(numbers).size, numbers.length, 'a number is used twice');
  for (const name of names) {
    const text = readFileSync(new URL(name, migrations), 'utf8').replaceAll(/--.*$/gm, '');
    assert.doesNotMatch(text, /\b(?:public|nuncio)\.\w+\b(?!')/, `${name} names a schema`);
  }
});

test('each function sets its search path, and nobody else may execute it', async () => {
  const database = await createDatabase();
  try {
    const rows = await asApplication<{ name: string; path: string | null; open: boolean }>(
      database.url,
      `select p.proname as name, c.setting as path,
         exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as acl where acl.grantee = 0) as open
       from pg_proc p
       left join lateral unnest(p.proconfig) as c (setting) on c.setting like 'search_path=%'
       where p.pronamespace = 'nuncio'::regnamespace`,
    );
    assert.ok(rows.length > 20);
    for (const { name, path, open } of rows) {
      assert.equal(path, 'search_path=nuncio, pg_temp', name);
      assert.equal(open, false, `everybody may execute ${name}`);
    }
  } finally {
    await database.drop();
  }
});

/** Tables of another application, and functions and an operator that Nuncio must never call. */
const application = [
  'create table accounts (number serial primary key, owner text)',
  `insert into accounts (owner) values ('somebody else')`,
  'create table events (at date, what text)',
  'create table clients (name text)',
  'create table subscriptions (newsletter text, address text)',
  'create table migrations (id int)',
  'create table calls (what text)',
  ...[
    ['now()', 'timestamptz'],
    ['digest(bytea, text)', 'bytea'],
    ['take_lock(text)', 'void'],
    ['announce(text, text)', 'void'],
    ['pg_notification_queue_usage()', 'double precision'],
    ['pg_notify(text, text)', 'void'],
    ['current_schema()', 'name'],
    ['hashtextextended(text, bigint)', 'bigint'],
    ['enter_epoch()', 'uuid'],
    ['event_day()', 'date'],
    ['ensure_day_partitions(integer)', 'void'],
    ['ensure_day_partition(text, date)', 'void'],
    ['notify_lane_changed(bigint)', 'void'],
    ['text_differs(text, text)', 'boolean'],
  ].map(
    ([signature, result]) => `
      create function public.${signature} returns ${result} language plpgsql as $$
      begin
        raise exception 'the function of another application was called';
      end $$`,
  ),
  'create operator public.= (leftarg = text, rightarg = text, function = public.text_differs)',
  // By default, a session finds the objects of the other application first, even before those of PostgreSQL.
  `do $$ begin execute format('alter database %I set search_path to public, pg_catalog', current_database()); end $$`,
];

const inPublic = `
  select format('%s %s', c.relkind, c.relname) as thing from pg_catalog.pg_class c
  where c.relnamespace operator(pg_catalog.=) 'public'::regnamespace
  union all select format('%s(%s)', p.proname, pg_catalog.pg_get_function_identity_arguments(p.oid)) from pg_catalog.pg_proc p
  where p.pronamespace operator(pg_catalog.=) 'public'::regnamespace
  union all select t.typname::pg_catalog.text from pg_catalog.pg_type t
  where t.typnamespace operator(pg_catalog.=) 'public'::regnamespace
  order by 1`;

/** Delivers an event of `POST /events`, and one of a collection, whose table is created at run time. */
async function deliverOne(t: TestContext, server: TestServer): Promise<void> {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(server), app.account, ['one']);
  const created = await app.request('POST', '/articles', { json: { title: 'Two' } });
  assert.equal(created.status, 201, created.text);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(received.map(({ headers }) => headers['nuncio-event']).sort(), [
    'article.created',
    'push',
  ]);
}

test('Nuncio works beside another application’s tables, functions and operators, and adds nothing to them', async (t) => {
  const database = await foreignDatabase();
  await asApplication(database.url, ...application);
  const before = await asApplication(database.url, inPublic);
  const server = await startServerOn(t, database.url);
  await deliverOne(t, server);
  // A withdrawal fires triggers that notify every node.
  const app = await createApp(server);
  await sql`update grants set withdrawn_at = now(), withdrawn_reason = 'test' where id = ${app.grantId}`.execute(
    server.db,
  );
  await until(
    async () => (await app.request('GET', '/api')).status,
    (status) => status === 401,
  );
  assert.deepEqual(await asApplication(database.url, inPublic), before);
  const others = await asApplication(
    database.url,
    `select distinct n.nspname as schema from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
     where n.nspname operator(pg_catalog.!~) '^(pg_|information_schema)' order by 1`,
  );
  assert.deepEqual(
    others.map(({ schema }) => schema),
    ['nuncio', 'public'],
  );
});

test('Nuncio’s objects work when another application changes its tables by hand', async () => {
  const database = await foreignDatabase();
  await asApplication(database.url, ...application);
  await migrate(database.url);
  const id = '0197c0de-0000-7000-8000-000000000001';
  const rows = await asApplication<{ audited: number }>(
    database.url,
    `insert into nuncio.accounts (id, email, name) values ('${id}', 'ann@example.com', 'Ann')`,
    `insert into nuncio.clients (id, name) values ('app', 'App')`,
    `insert into nuncio.grants (id, account_id, client_id) values ('${id}', '${id}', 'app')`,
    `update nuncio.accounts set disabled_at = pg_catalog.now()`,
    `select pg_catalog.count(*)::int as audited from nuncio.audit_entries`,
  );
  assert.equal(rows[0]?.audited, 5);
});

test('two installations in one database deliver only their own events', async (t) => {
  const database = await foreignDatabase();
  const first = await startServerOn(t, database.url);
  const second = await startServerOn(t, withSchema(database.url, 'second_nuncio'));
  assert.equal(schemaOf(second.databaseUrl), 'second_nuncio');
  // Both installations have the same account id. Only the schema distinguishes them.
  const account = await createTestAccount(first);
  await sql`
    insert into accounts (id, email, name) values (${account.id}, 'same@example.com', 'Same')`.execute(
    second.db,
  );
  const [mine, theirs] = [await startSubscriber(t), await startSubscriber(t)];
  const [app, other] = [await createApp(first, { account }), await createApp(second, { account })];
  await subscribe(app, { url: mine.url, kinds: ['push'] });
  await subscribe(other, { url: theirs.url, kinds: ['push'] });
  await publish(await createPublisher(first), account, ['first', 'first', 'first']);
  await publish(await createPublisher(second), account, ['second', 'second']);
  await Promise.all([mine.waitFor(3), theirs.waitFor(2)]);
  await Promise.all([fannedOut(first), fannedOut(second)]);
  for (const { body } of mine.received) assert.match(body, /heads\/first/);
  for (const { body } of theirs.received) assert.match(body, /heads\/second/);
  assert.deepEqual([mine.received.length, theirs.received.length], [3, 2]);
  // A withdrawal in one installation does not affect the other, even with the same grant id.
  const { client } = { client: await createTestClient(second, { scopes: ['read:posts'] }) };
  const { accessToken } = await mintAccessToken(second, { account, client, scopes: ['read:posts'] });
  await sql`
    insert into withdrawals (kind, subject, until)
    select 'grant', id::text, now() + interval '1 hour' from grants where client_id = ${app.clientId}`.execute(
    first.db,
  );
  await until(
    async () => (await app.request('GET', '/api')).status,
    (status) => status === 401,
  );
  assert.equal((await requester(second, accessToken)('GET', '/api')).status, 200);
});

test('a database user without rights on the database works in a schema prepared for it', async (t) => {
  const database = await foreignDatabase();
  const role = `nuncio_${new URL(database.url).pathname.slice(-12)}`;
  const name = new URL(database.url).pathname.slice(1);
  await asApplication(
    database.url,
    `create role ${role} login password 'secret'`,
    `revoke all on database ${name} from public`,
    `grant connect, temporary on database ${name} to ${role}`,
    'revoke all on schema public from public',
  );
  const url = new URL(database.url);
  url.username = role;
  url.password = 'secret';
  await assert.rejects(migrate(url.href), (error) => {
    assert.ok(error instanceof SchemaError);
    assert.match(error.message, /needs the privilege CREATE on the database, or on a schema "nuncio"/);
    return true;
  });
  await asApplication(database.url, `create schema nuncio authorization ${role}`);
  const server = await startServerOn(t, url.href);
  await deliverOne(t, server);
  undo.push(() => asApplication(process.env.TEST_DATABASE_URL as string, `drop role ${role}`));
});

test('migrate and start name the administrator’s statements when the database user cannot create the publisher role', async (t) => {
  const database = await foreignDatabase();
  const suffix = new URL(database.url).pathname.slice(-12);
  const [role, schema] = [`operator_${suffix}`, `nuncio_${suffix}`];
  await asApplication(
    database.url,
    `create role ${role} login password 'secret'`,
    `create schema ${schema} authorization ${role}`,
  );
  undo.push(() =>
    asApplication(
      process.env.TEST_DATABASE_URL as string,
      `drop role ${role}`,
      `drop role if exists ${schema}_publisher`,
    ),
  );
  const url = new URL(database.url);
  url.username = role;
  url.password = 'secret';
  const settings = {
    DATABASE_URL: url.href,
    NUNCIO_DATABASE_SCHEMA: schema,
    NUNCIO_SECRET: testSecret.toString(),
    PORT: String(await freePort()),
    NUNCIO_CONFIG: new URL('../../nuncio.config.ts', import.meta.url).pathname,
  };
  const { code, stdout } = await runCommand(['migrate'], settings);
  assert.equal(code, 0);
  const [, list = ''] = stdout.split(
    /applications cannot publish by SQL yet: .* A database administrator runs:\n/,
  );
  const statements = list.trim().split('\n');
  assert.equal(statements.length, 3, stdout);
  const warned = startProcess(t, ['start'], settings);
  await warned.ready();
  for (const statement of statements) assert.ok(warned.output().includes(statement.trim()), statement);
  await warned.end('SIGTERM');
  const application = url.href.replace(role, `${schema}_publisher`);
  await asApplication(database.url, ...statements, `alter role ${schema}_publisher login password 'secret'`);
  const publish = `select ${schema}.publish('push', 'user-1', '{}')`;
  assert.equal((await asApplication(application, publish)).length, 1);
  assert.doesNotMatch((await runCommand(['migrate'], settings)).stdout, /cannot publish/);
});

test('the setting names the schema for the server and every command', async (t) => {
  const database = await foreignDatabase();
  const port = String(await freePort());
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${port}`,
    DATABASE_URL: database.url,
    NUNCIO_DATABASE_SCHEMA: 'webhooks_of_ours',
    NUNCIO_SECRET: testSecret.toString(),
    LOG_LEVEL: 'error',
    PORT: port,
  };
  const server = startProcess(t, ['start'], settings);
  await server.ready();
  const created = await runCommand(
    ['user', 'create', '--email', 'ann@example.com', '--password', 'a long password'],
    settings,
  );
  assert.equal(created.code, 0, created.stderr);
  const rows = await asApplication(database.url, 'select email from webhooks_of_ours.accounts');
  assert.deepEqual(rows, [{ email: 'ann@example.com' }]);
  const schemas = await asApplication(
    database.url,
    `select nspname from pg_namespace where nspname = 'nuncio'`,
  );
  assert.deepEqual(schemas, []);
});

test('a name that cannot be an own schema is a wrong setting', () => {
  for (const name of [
    'public',
    'pg_nuncio',
    'information_schema',
    'Nuncio',
    'a-b',
    '1a',
    'a"b',
    'a.b',
    'x'.repeat(41),
    'é',
  ]) {
    assert.throws(
      () => loadConfig({ NUNCIO_DATABASE_SCHEMA: name }, 'dev'),
      (error) => error instanceof ConfigError && /^NUNCIO_DATABASE_SCHEMA is /.test(error.message),
      name,
    );
  }
  assert.equal(loadConfig({ NUNCIO_DATABASE_SCHEMA: 'x'.repeat(40) }, 'dev').databaseSchema, 'x'.repeat(40));
  assert.throws(() => schemaOf('postgres://h/d?nuncio_schema=public'), /not a valid schema name/);
});

test('concurrently starting nodes migrate once', async () => {
  const database = await foreignDatabase();
  await assert.rejects(requireMigrated(database.url), /run nuncio migrate/);
  const applied = await Promise.all([migrate(database.url), migrate(database.url), migrate(database.url)]);
  assert.deepEqual(applied.map((names) => names.length).sort(), [0, 0, readdirSync(migrations).length]);
  await requireMigrated(database.url);
  const { collections } = await loadPlatform(null);
  assert.notDeepEqual(await migrateCollections(database.url, collections), []);
});

test('a foreign schema and a database from before the first release are refused', async () => {
  const database = await foreignDatabase();
  await asApplication(database.url, 'create schema nuncio', 'create table nuncio.orders (id int)');
  await assert.rejects(migrate(database.url), /the schema "nuncio" holds tables of another application/);
  await asApplication(
    database.url,
    'drop schema nuncio cascade',
    'create schema nuncio',
    'create table nuncio.migrations (name text primary key)',
    // The migrations began with this file.
    `insert into nuncio.migrations values ('0001_database.sql')`,
  );
  const settings = {
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    PORT: String(await freePort()),
  };
  for (const command of [['migrate'], ['start'], ['start', '--no-migrate']]) {
    const { code, stderr } = await runCommand(command, settings);
    assert.equal(code, 1, stderr);
    assert.match(stderr, /this database was made by a version of Nuncio before its first release/);
  }
  const tables = await asApplication(
    database.url,
    `select relname as name from pg_class where relnamespace = 'nuncio'::regnamespace and relkind = 'r'`,
  );
  assert.deepEqual(tables, [{ name: 'migrations' }]);
});
