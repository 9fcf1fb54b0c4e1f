/** The programs of docs/subscribers.md, run as they are, with deliveries of a real server. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { sql } from 'kysely';
import pg from 'pg';
import { runCommandLine } from '../../src/commands/command_line.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import {
  assertHandled,
  blocks,
  deliverTo,
  type Program,
  page,
  runProgram,
} from '../support/webhooks/subscribers_page.ts';

const entry = new URL('../../src/verify/verify.ts', import.meta.url).href;
const modules = fileURLToPath(new URL('../../node_modules', import.meta.url));
const server = await startTestServer({ after });
const publisher = await createPublisher(server);

/** Writes a program of the page into an empty folder. */
async function writeProgram(t: TestContext, name: string): Promise<string> {
  const folder = await temporaryFolder(t);
  await symlink(modules, join(folder, 'node_modules'));
  await writeFile(join(folder, 'package.json'), '{"type":"module"}');
  const file = join(folder, name);
  await writeFile(file, (blocks.get(name) as string).replace("'nuncio/verify'", `'${entry}'`));
  return file;
}

async function startProgram(t: TestContext, name: string, settings: NodeJS.ProcessEnv): Promise<Program> {
  const file = await writeProgram(t, name);
  return runProgram(t, process.execPath, () => ['--disable-warning=ExperimentalWarning', file], settings);
}

async function foreignDatabase(t: TestContext): Promise<string> {
  const database = await createForeignDatabase();
  t.after(() => database.drop());
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query(blocks.get('postgres.sql') as string);
  await client.query(blocks.get('clean.sql') as string);
  await client.query('create table pushes (ref text)');
  await client.end();
  return database.url;
}

async function sqliteFile(t: TestContext): Promise<string> {
  const file = join(await temporaryFolder(t), 'app.sqlite');
  const database = new DatabaseSync(file);
  database.exec(blocks.get('sqlite.sql') as string);
  database.close();
  return file;
}

for (const name of ['express.js', 'fastify.js', 'handshake.js', 'once.js', 'transaction.js', 'order.js']) {
  test(`${name} of the page handles deliveries`, async (t) => {
    const secret = makeSecret();
    const program = await startProgram(t, name, {
      WEBHOOK_SECRET: secret,
      ...(/once|transaction/.test(name) ? { DATABASE_URL: await foreignDatabase(t) } : {}),
      ...(name === 'order.js' ? { DATABASE_FILE: await sqliteFile(t) } : {}),
    });
    const isChallenged = name === 'handshake.js';
    await deliverTo(server, program.url, { secret, ordered: name === 'order.js', handshake: isChallenged });
    await until(
      async () => program.output(),
      (output) => output.includes('/one') && output.includes('/two'),
    );
    assertHandled(program.output(), ['one', 'two']);
  });
}

/** Code for the libraries of other platforms. */
const movedOver = { 'stripe.js': 'timestamp', 'github.js': 'sha256', 'svix.js': 'standard' };

for (const [name, signature] of Object.entries(movedOver)) {
  test(`${name} of the page verifies deliveries with the library of another platform`, async (t) => {
    const secret = makeSecret();
    const program = await startProgram(t, name, { WEBHOOK_SECRET: secret });
    await deliverTo(server, program.url, { secret, signature });
    await until(
      async () => program.output(),
      (output) => output.includes('/one') && output.includes('/two'),
    );
    assertHandled(program.output(), ['one', 'two']);
  });
}

for (const name of ['hono.js', 'worker.js']) {
  test(`${name} of the page handles deliveries`, async (t) => {
    const lines: string[] = [];
    t.mock.method(console, 'log', (line: string) => lines.push(line));
    const secret = makeSecret();
    process.env.WEBHOOK_SECRET = secret;
    const file = await writeProgram(t, name);
    const { default: application } = await import(pathToFileURL(file).href);
    const listener = createServer(async (incoming, response) => {
      const request = new Request(`http://localhost${incoming.url}`, {
        method: 'POST',
        headers: Object.entries(incoming.headers) as [string, string][],
        body: Buffer.concat(await Array.fromAsync(incoming)),
      });
      const answer: Response = await application.fetch(request, { WEBHOOK_SECRET: secret });
      response.writeHead(answer.status).end(await answer.text());
    });
    await new Promise<void>((resolve) => listener.listen(0, '127.0.0.1', resolve));
    t.after(() => {
      listener.closeAllConnections();
      listener.close();
    });
    const url = `http://127.0.0.1:${(listener.address() as AddressInfo).port}/hooks`;
    await deliverTo(server, url, { secret, signature: 'standard' });
    assertHandled(lines.join('\n'), ['one', 'two']);
    assert.equal((await fetch(url, { method: 'POST', body: '{}' })).status, 401);
  });
}

test('move.sh of the page moves a subscription to the newest version', async () => {
  const app = await createApp(server);
  const token = await mintAccessToken(server, {
    account: app.account,
    client: { id: app.clientId },
    scopes: appScopes,
  });
  const { id } = await subscribe(
    { request: requester(server, token.accessToken) },
    { url: 'http://127.0.0.1:20000/' },
  );
  await sql`update subscriptions set version = '2020-01-01' where id = ${id}`.execute(server.db);
  const environment = { ...process.env, TOKEN: token.accessToken, NUNCIO: server.baseUrl, ID: id };
  const command = blocks.get('move.sh') as string;
  const { stdout } = await promisify(execFile)('sh', ['-c', command], { env: environment });
  // The platform of this server has no versions.
  assert.equal(JSON.parse(stdout).version, null);
});

test('catch_up.sh of the page reads the events after a sequence, and acknowledge.sh acknowledges it', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const { id } = await subscribe(
    { request: requester(server, accessToken) },
    { url: 'http://127.0.0.1:20000/' },
  );
  await publish(publisher, account, ['one', 'two', 'three']);
  await fannedOut(server);
  const environment = { ...process.env, TOKEN: accessToken, NUNCIO: server.baseUrl, ID: id, AFTER: '1' };
  const command = blocks.get('catch_up.sh') as string;
  const { stdout } = await promisify(execFile)('sh', ['-c', command], { env: environment });
  const marks = JSON.parse(stdout).items.map(({ body }: { body: { ref: string } }) => body.ref);
  assert.deepEqual(marks, ['refs/heads/two', 'refs/heads/three']);
  const acknowledge = blocks.get('acknowledge.sh') as string;
  const { stdout: shown } = await promisify(execFile)('sh', ['-c', acknowledge], { env: environment });
  assert.equal(JSON.parse(shown).sequence, 1);
});

test('filter.json of the page is a filter of the kind that it is about', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const request = requester(server, accessToken);
  const filter = JSON.parse(blocks.get('filter.json') as string);
  const { body } = await request('POST', '/event-kinds/article.published/match', { json: { filter } });
  assert.equal(typeof body.matches, 'boolean', JSON.stringify(body));
});

test('auth.json of the page is an authentication that a subscription may have', async () => {
  const app = await createApp(server);
  const auth = JSON.parse(blocks.get('auth.json') as string);
  const { auth: shown } = await subscribe(app, { url: 'https://example.com/hooks', auth });
  assert.deepEqual({ ...shown, client_secret: auth.client_secret }, auth);
});

test('listen.sh of the page has options that the command knows', async () => {
  const [, , , ...words] = (blocks.get('listen.sh') as string).trim().replaceAll("'", '').split(' ');
  const lines: string[] = [];
  const shell = {
    environment: { NUNCIO_BASE_URL: 'http://localhost:9' },
    folder: process.cwd(),
    print: (line: string) => lines.push(line),
    printError: (line: string) => lines.push(line),
  };
  assert.equal(await runCommandLine(['listen', ...words], shell), 1);
  assert.match(lines.join(), /http:\/\/localhost:9 cannot be reached/);
});

test('every block of the page is one that a test runs', () => {
  const run = [
    'express.js',
    'fastify.js',
    'handshake.js',
    'hono.js',
    'worker.js',
    'once.js',
    'transaction.js',
    'order.js',
  ];
  const others = [
    'clean.sql',
    'postgres.sql',
    'sqlite.sql',
    'catch_up.sh',
    'acknowledge.sh',
    'move.sh',
    'auth.json',
    'filter.json',
    'listen.sh',
  ];
  // subscribers_page_languages.test.ts
  const python = ['with_fastapi.py', 'with_flask.py', 'with_django.py', 'once.py'];
  const languages = [...python, 'go.sh', 'main.go', 'Hooks.java'];
  const all = [...run, ...others, ...languages, ...Object.keys(movedOver)];
  assert.deepEqual([...blocks.keys()].sort(), all.sort());
  assert.equal(page.match(/^```\w/gm)?.length, blocks.size);
});

test('the page has every code of an error with its status', async () => {
  const source = await readFile(new URL('../../src/verify/error.ts', import.meta.url), 'utf8');
  const codes = [...source.matchAll(/^ {2}'([a-z-]+)': (\d+),$/gm)];
  assert.ok(codes.length >= 14);
  const rows = page.split('\n').filter((line) => line.startsWith('| `'));
  for (const [, code, status] of codes) {
    const isListed = rows.some((row) => row.includes(`\`${code}\``) && row.includes(`| ${status} |`));
    assert.ok(isListed, `${code} ${status}`);
  }
});
