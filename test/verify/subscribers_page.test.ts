/** The programs of docs/subscribers.md, run as they are, with deliveries of a real server. */

import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { readFile, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import pg from 'pg';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';

const page = readFileSync(new URL('../../docs/subscribers.md', import.meta.url), 'utf8');
const blocks = new Map(
  [...page.matchAll(/^```\w+ (\S+)\n([\s\S]*?)^```$/gm)].map(([, name = '', text = '']) => [name, text]),
);
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

interface Program {
  url: string;
  output(): string;
}

async function startProgram(t: TestContext, name: string, settings: NodeJS.ProcessEnv): Promise<Program> {
  const file = await writeProgram(t, name);
  const port = await freePort();
  const child: ChildProcess = spawn(process.execPath, ['--disable-warning=ExperimentalWarning', file], {
    env: { ...process.env, NODE_OPTIONS: '', PORT: String(port), ...settings },
  });
  t.after(() => child.kill('SIGKILL'));
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', (chunk) => (output += chunk));
  const url = `http://127.0.0.1:${port}/hooks`;
  await until(
    async () => {
      assert.equal(child.exitCode, null, output);
      return fetch(url, { method: 'POST' }).then(
        ({ status }) => status,
        () => 0,
      );
    },
    (status) => status === 401,
  );
  return { url, output: () => output };
}

/** Publishes two events to a subscription, and waits until they have succeeded. */
async function deliverTo(url: string, fields: object): Promise<void> {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url, ...fields });
  await publish(publisher, app.account, ['one', 'two']);
  await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items.filter(({ state }: { state: string }) => state === 'succeeded').length === 2,
  );
}

function assertHandled(output: string, marks: string[]): void {
  const handled = [...output.matchAll(/^handled push [0-9a-f-]{36}: .*refs\/heads\/(\w+)$/gm)];
  assert.deepEqual(handled.map(([, mark]) => mark).sort(), marks, output);
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

for (const name of ['express.js', 'fastify.js', 'once.js', 'transaction.js', 'order.js']) {
  test(`${name} of the page handles deliveries`, async (t) => {
    const secret = makeSecret();
    const program = await startProgram(t, name, {
      WEBHOOK_SECRET: secret,
      ...(/once|transaction/.test(name) ? { DATABASE_URL: await foreignDatabase(t) } : {}),
      ...(name === 'order.js' ? { DATABASE_FILE: await sqliteFile(t) } : {}),
    });
    await deliverTo(program.url, { secret, ordered: name === 'order.js' });
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
    await deliverTo(url, { secret, signature: 'standard' });
    assertHandled(lines.join('\n'), ['one', 'two']);
    assert.equal((await fetch(url, { method: 'POST', body: '{}' })).status, 401);
  });
}

test('catch_up.sh of the page reads the events after a sequence', async () => {
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
});

test('every block of the page is one that a test runs', () => {
  const run = ['express.js', 'fastify.js', 'hono.js', 'worker.js', 'once.js', 'transaction.js', 'order.js'];
  const others = ['clean.sql', 'postgres.sql', 'sqlite.sql', 'catch_up.sh'];
  assert.deepEqual([...blocks.keys()].sort(), [...run, ...others].sort());
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
