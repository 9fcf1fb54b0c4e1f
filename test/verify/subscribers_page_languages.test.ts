/**
 * The programs of docs/subscribers.md in Python, Go and Java, run as they are, with deliveries of a real server. Each is skipped, with
 * the reason, if its language or registry is missing.
 */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { promisify } from 'node:util';
import pg from 'pg';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import {
  buildFolder,
  buildJar,
  clients,
  type Failure,
  installWheel,
  missingTool,
} from '../support/programs/subscriber_libraries.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import {
  assertHandled,
  blocks,
  deliverTo,
  handledMarks,
  type Program,
  runProgram,
} from '../support/webhooks/subscribers_page.ts';

const run = promisify(execFile);
const server = await startTestServer({ after });

/** Delivers two events in each format, and refuses what is not signed or too large. */
async function assertReceives({ url, output }: Program, secret: string): Promise<void> {
  for (const signature of ['timestamp', 'sha256', 'standard'])
    await deliverTo(server, url, { secret, signature });
  await until(
    async () => output(),
    (text) => handledMarks(text).length >= 6,
  );
  assertHandled(output(), ['one', 'one', 'one', 'two', 'two', 'two']);
  const forged = await fetch(url, { method: 'POST', body: '{"ref":"refs/heads/forged"}' });
  assert.equal(forged.status, 401);
  assert.match(await forged.text(), /"missing-header"/);
  const large = await fetch(url, { method: 'POST', body: 'x'.repeat(1_048_577) });
  assert.equal(large.status, 413);
  assert.match(await large.text(), /"body-too-large"/);
  assert.doesNotMatch(output(), /forged/);
}

const uvicorn = (name: string) => (port: string) => ['-m', 'uvicorn', `${name}:app`, '--port', port];
const flask = (name: string) => (port: string) => ['-m', 'flask', '--app', name, 'run', '--port', port];
const django = () => (port: string) => ['manage.py', 'runserver', '--noreload', port];
const commands = { with_fastapi: uvicorn, with_flask: flask, with_django: django, once: flask };

/** What `django-admin startproject` writes, as far as the program needs it. */
const manage = `
import sys
from django.conf import settings
from django.core.management import execute_from_command_line
settings.configure(
    SECRET_KEY="test", ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF="with_django",
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
)
execute_from_command_line(sys.argv)
`;

async function foreignDatabase(t: TestContext): Promise<string> {
  const database = await createForeignDatabase();
  t.after(() => database.drop());
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query(blocks.get('postgres.sql') as string);
  await client.query('create table pushes (ref text)');
  await client.end();
  return database.url;
}

for (const [name, words] of Object.entries(commands)) {
  test(`${name}.py of the page handles deliveries`, async (t) => {
    const installed = await installWheel(t);
    if ('missing' in installed) return t.skip(installed.missing);
    const folder = await buildFolder(t, 'page');
    await writeFile(join(folder, `${name}.py`), blocks.get(`${name}.py`) as string);
    await writeFile(join(folder, 'manage.py'), manage);
    const secret = makeSecret();
    const env = { ...installed.env, WEBHOOK_SECRET: secret, DATABASE_URL: await foreignDatabase(t) };
    const program = await runProgram(t, installed.python, words(name), env, folder);
    await assertReceives(program, secret);
  });
}

test('main.go of the page handles deliveries', async (t) => {
  const folder = await buildFolder(t, 'page');
  await writeFile(join(folder, 'main.go'), blocks.get('main.go') as string);
  await writeFile(join(folder, 'go.mod'), 'module example/hooks\n\ngo 1.22\n');
  const options = { cwd: folder, env: { ...process.env, CHECKOUT: join(clients, '..') } };
  try {
    await run('go', ['version']);
    await run('sh', ['-c', blocks.get('go.sh') as string], options);
    await run('go', ['build', '-o', 'hooks', '.'], options);
  } catch (error) {
    const missing = missingTool(error as Failure);
    if (missing === undefined) throw error;
    return t.skip(missing);
  }
  const secret = makeSecret();
  const program = await runProgram(t, join(folder, 'hooks'), () => [], { WEBHOOK_SECRET: secret });
  await assertReceives(program, secret);
});

test('Hooks.java of the page handles deliveries', async (t) => {
  const built = await buildJar(t);
  if ('missing' in built) return t.skip(built.missing);
  await writeFile(join(built.folder, 'Hooks.java'), blocks.get('Hooks.java') as string);
  const secret = makeSecret();
  const words = ['-cp', built.jar, join(built.folder, 'Hooks.java')];
  const program = await runProgram(t, 'java', () => words, { WEBHOOK_SECRET: secret });
  await assertReceives(program, secret);
});
