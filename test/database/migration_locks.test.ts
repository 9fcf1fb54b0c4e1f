/** Migrations beside running servers: how long they wait for locks, and what the linter says of their statements. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import pg from 'pg';
import { migrateCollections } from '../../src/collections/migrate.ts';
import { migrate } from '../../src/database/migrate.ts';
import { withSchema } from '../../src/database/schema.ts';
import { loadPlatform } from '../../src/platform.ts';
import { createDatabase } from '../support/database/database.ts';
import { prepareNodePackage } from '../support/programs/node_package.ts';
import { missingHistory, previousMigrations, readPrevious } from '../support/servers/previous_version.ts';
import { until } from '../support/webhooks/apps.ts';

const run = promisify(execFile);
const migrations = join(import.meta.dirname, '../../migrations');

/** Rules of squawk that do not apply, each with its reason. */
const exceptions: Readonly<Record<string, string>> = {
  'require-lock-timeout': 'migrate.ts sets it for the whole transaction',
  'require-statement-timeout':
    'a migration of a large table may take as long as it takes; what others wait for is the lock',
  'prefer-bigint-over-int': 'counts, revisions and seconds; ids and positions are bigint or uuid',
  'prefer-bigint-over-smallint': 'statuses of HTTP and numbers of attempts',
  'ban-char-field': 'the type "char" with quotes is one byte, not character(1)',
};

async function connect(t: TestContext, url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  client.on('error', () => {});
  await client.connect();
  t.after(() => client.end());
  await client.query('set search_path to nuncio');
  return client;
}

async function newDatabase(t: TestContext): Promise<string> {
  const database = await createDatabase();
  t.after(() => database.drop());
  return withSchema(database.url, 'nuncio');
}

test('a migration gives up a lock that it waits for, lets others continue, and tries again', async (t) => {
  const url = await newDatabase(t);
  const [holder, watcher] = [await connect(t, url), await connect(t, url)];
  await holder.query('begin');
  await holder.query('lock table migrations in row exclusive mode');
  const migrated = migrate(url);
  const waiters = async () => {
    const { rows } = await watcher.query<{ pid: number }>(
      `select pid from pg_locks where relation = 'migrations'::regclass and not granted`,
    );
    return rows.map(({ pid }) => pid);
  };
  const first = await until(waiters, (pids) => pids.length === 1);
  // Nobody waits now: who comes in this moment gets the lock at once.
  await until(waiters, (pids) => pids.length === 0);
  const second = await until(waiters, (pids) => pids.length === 1);
  assert.notDeepEqual(second, first, 'another attempt, on another connection');
  await holder.query('commit');
  assert.deepEqual(await migrated, []);
});

test('when its patience ends, a migration names what to look for', async (t) => {
  const url = await newDatabase(t);
  const holder = await connect(t, url);
  await holder.query('begin');
  await holder.query('lock table migrations in row exclusive mode');
  await assert.rejects(migrate(url, 0), {
    name: 'SchemaError',
    message: /^the schema cannot be migrated, because other sessions have held locks .+ migrate again$/,
  });
});

test('tables of collections are changed with the same patience', async (t) => {
  const url = await newDatabase(t);
  const { collections } = await loadPlatform(null);
  const holder = await connect(t, url);
  await holder.query('alter table articles drop column title');
  await holder.query('begin');
  await holder.query('select count(*) from articles');
  const watcher = await connect(t, url);
  const migrated = migrateCollections(url, collections);
  const isWaiting = async () => {
    const { rows } = await watcher.query(
      `select pid from pg_locks where relation = 'articles'::regclass and not granted`,
    );
    return rows.length;
  };
  await until(isWaiting, (count) => count === 1);
  await until(isWaiting, (count) => count === 0);
  await holder.query('commit');
  assert.match((await migrated).join('\n'), /articles\.title/);
});

test('squawk finds no statement that is unsafe beside running servers', async (t) => {
  const platform = `${process.platform}-${process.arch}`;
  const tool = await prepareNodePackage(`@squawk-cli/${platform}`, '2.66.0');
  if ('missing' in tool) return t.skip(tool.missing);
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-squawk-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  const [name = ''] = (await readdir(join(tool.folder, 'bin'))).filter((each) => each.startsWith('squawk'));
  const lint = async (files: string[]) => {
    const words = ['--assume-in-transaction', '--pg-version=15', '--reporter=json'];
    const exclude = Object.keys(exceptions).map((rule) => `--exclude=${rule}`);
    const { stdout } = await run(join(tool.folder, 'bin', name), [...words, ...exclude, ...files]).catch(
      (error) => error,
    );
    return (JSON.parse(stdout) as { file: string; line: number; rule_name: string }[]).map(
      ({ file, line, rule_name: rule }) => `${file}:${line} ${rule}`,
    );
  };
  const files = (await readdir(migrations)).filter((each) => each.endsWith('.sql'));
  assert.deepEqual(await lint(files.map((each) => join(migrations, each))), []);
  const unsafe = join(folder, 'unsafe.sql');
  await writeFile(
    unsafe,
    'create index grants_x on grants (x);\nalter table grants alter column x set not null;\nalter table grants drop column y;\n',
  );
  const found = (await lint([unsafe])).join('\n');
  for (const rule of ['require-concurrent-index-creation', 'adding-not-nullable-field', 'ban-drop-column'])
    assert.ok(found.includes(rule), found);
});

test('the migrations of the previous version are unchanged, and new ones come after them', async (t) => {
  const missing = missingHistory();
  if (missing !== null) return t.skip(missing);
  const before = previousMigrations();
  const now = (await readdir(migrations)).filter((name) => name.endsWith('.sql')).sort();
  assert.deepEqual(now.slice(0, before.length), before);
  for (const name of before) {
    const text = await readFile(join(migrations, name), 'utf8');
    assert.equal(text, readPrevious(`migrations/${name}`), `${name} has been changed: write a new migration`);
  }
});

test('a migration gives up before a transaction that waits for it is cancelled', async (t) => {
  const url = await newDatabase(t);
  await migrate(url);
  const [traffic, watcher] = [await connect(t, url), await connect(t, url)];
  await watcher.query("delete from migrations where name >= '0023'");
  // The last of the tables in the order of their locks.
  await traffic.query('begin');
  await traffic.query('select count(*) from subscriptions');
  const migrated = migrate(url);
  migrated.catch(() => {});
  const isWaiting = async () => {
    const { rows } = await watcher.query(
      `select from pg_locks where relation = 'subscriptions'::regclass and not granted`,
    );
    return rows.length;
  };
  await until(isWaiting, (count) => count === 1);
  // The migration has locked the events already: each waits for the other.
  await traffic.query('select count(*) from events');
  await traffic.query('commit');
  await assert.rejects(migrated, /column "version" of relation "events" already exists/);
});
