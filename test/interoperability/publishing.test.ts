/** examples/publish: Python, Go and psql publish in their own transactions. Skipped if a language is missing. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { sql } from 'kysely';
import { preparePython } from '../support/programs/python.ts';
import { createPublisherRole } from '../support/publishing/sql_publisher.ts';
import { startTestServer } from '../support/servers/server.ts';
import { asApplication } from '../support/servers/shared_database.ts';
import { until } from '../support/webhooks/apps.ts';

const run = promisify(execFile);
const examples = fileURLToPath(new URL('../../examples/publish/', import.meta.url));
const goProgram = fileURLToPath(new URL('../../node_modules/.cache/nuncio-go-publish', import.meta.url));
/** Timeout for downloading modules and building. */
const buildMs = 300_000;

const hooks: (() => Promise<void>)[] = [];
// Registered before the server's cleanup, which drops the database.
after(async () => {
  for (const hook of hooks) await hook();
});
const server = await startTestServer({ after });
const url = await createPublisherRole({ after: (hook) => void hooks.push(hook) }, server.databaseUrl);
await asApplication(
  server.databaseUrl,
  'create table public.invoices (id text primary key, customer text not null, cents integer not null)',
  `grant select, insert on public.invoices to ${new URL(url).username}`,
);
const env = { ...process.env, DATABASE_URL: url };

/** @returns the invoices of an application user and the bodies of the user's events, once their numbers are equal */
async function paid(customer: string): Promise<{ invoices: string[]; events: string[] }> {
  const read = async () => {
    const { rows } = await sql<{ invoices: string[]; events: string[] }>`
      select array(select id from public.invoices where customer = ${customer} order by id) as invoices,
        array(
          select e.body::json->'invoice'->>'id' from events e join accounts a on a.id = e.account_id
          where a.external_id = ${customer} and e.kind = 'invoice.paid' order by 1
        ) as events`.execute(server.db);
    return rows[0] as { invoices: string[]; events: string[] };
  };
  return until(
    read,
    ({ invoices, events }) => events.length > 0 && events.length >= Math.min(invoices.length, 100),
  );
}

test('psql publishes with its change, and nothing that is rolled back', async (t: TestContext) => {
  const words = [url, '-X', '-v', 'customer=user-sql', '-f', `${examples}sql/publish.sql`];
  try {
    await run('psql', words, { env });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    return t.skip('psql is not installed');
  }
  const { invoices, events } = await paid('user-sql');
  assert.equal(invoices.length, 101);
  assert.deepEqual(events, invoices);
  assert.ok(!events.includes('sql-2'));
});

test('psycopg publishes with its change, and nothing that is rolled back', async (t: TestContext) => {
  const python = await preparePython(`${examples}python/requirements.txt`);
  if ('missing' in python) return t.skip(python.missing);
  const { stdout } = await run(python.bin('python'), [`${examples}python/publish.py`, 'user-python'], {
    env,
  });
  assert.match(stdout, /^published [0-9a-f-]{36}\nrolled back\npublished 100\n$/);
  const { invoices, events } = await paid('user-python');
  assert.deepEqual(invoices, ['python-1']);
  assert.equal(events.length, 101);
  assert.equal(new Set(events).size, 101);
});

test('pgx publishes with its change, and nothing that is rolled back', async (t: TestContext) => {
  try {
    await run('go', ['build', '-o', goProgram, '.'], { cwd: `${examples}go`, timeout: buildMs });
  } catch (error) {
    const { stderr = '', message } = error as { stderr?: string; message: string };
    // Errors in our own program must fail the test.
    assert.doesNotMatch(stderr, /^\.\/main\.go:/m);
    return t.skip(`no Go, or its modules cannot be had: ${(stderr || message).slice(0, 300)}`);
  }
  const { stdout } = await run(goProgram, ['user-go'], { env });
  assert.match(stdout, /^published [0-9a-f-]{36}\nrolled back\n$/);
  assert.deepEqual(await paid('user-go'), { invoices: ['go-1'], events: ['go-1'] });
});
