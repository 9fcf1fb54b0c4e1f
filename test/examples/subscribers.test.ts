/**
 * examples/subscribers, with deliveries of a real server: the programs run on what `npm pack` and `pip wheel` would publish.
 * The one in Python is skipped, with the reason, if Python or its packages are missing.
 */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { cp, mkdir, mkdtemp, rename, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { pack } from '../support/programs/installed_package.ts';
import { installWheel } from '../support/programs/subscriber_libraries.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';

const run = promisify(execFile);
const examples = fileURLToPath(new URL('../../examples/subscribers/', import.meta.url));
const checkout = fileURLToPath(new URL('../../node_modules/', import.meta.url));
const server = await startTestServer({ after });
const publisher = await createPublisher(server);

// Here, because a hook that a test registers runs at the end of that test.
const packed = await mkdtemp(join(tmpdir(), 'nuncio-subscribers-'));
after(() => rm(packed, { recursive: true, force: true }));
let modules: Promise<string> | undefined;

/** Returns a folder of modules: the package as `npm pack` writes it, and the frameworks of this checkout. */
async function createModules(): Promise<string> {
  await run('tar', ['-xzf', await pack(packed), '-C', packed]);
  const folder = join(packed, 'node_modules');
  await mkdir(join(folder, '@hono'), { recursive: true });
  await rename(join(packed, 'package'), join(folder, 'nuncio'));
  for (const name of ['express', 'hono', '@hono/node-server'])
    await symlink(join(checkout, name), join(folder, name));
  return folder;
}

interface Command {
  command: string;
  /** @param port to listen on */
  words: (port: string) => string[];
  env: NodeJS.ProcessEnv;
}

/** Runs a copy of an example until the test ends. */
async function start(t: TestContext, name: string, { command, words, env }: Command, secret: string) {
  const folder = await mkdtemp(join(tmpdir(), 'nuncio-subscriber-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await cp(join(examples, name), folder, { recursive: true });
  if (command === process.execPath) {
    modules ??= createModules();
    await symlink(await modules, join(folder, 'node_modules'));
  }
  const port = String(await freePort());
  const child = spawn(command, words(port), {
    cwd: folder,
    env: { ...process.env, NODE_OPTIONS: '', ...env, PORT: port, WEBHOOK_SECRET: secret },
  });
  t.after(() => child.kill('SIGKILL'));
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  const url = `http://127.0.0.1:${port}/hooks`;
  await until(
    async () => {
      assert.equal(child.exitCode, null, output);
      return fetch(url, { method: 'POST', body: '{}' }).then(
        ({ status }) => status,
        () => 0,
      );
    },
    (status) => status === 401,
  );
  return { url, output: () => output };
}

async function assertHandlesOnce(t: TestContext, name: string, command: Command): Promise<void> {
  const secret = makeSecret();
  const { url, output } = await start(t, name, command, secret);
  const app = await createApp(server);
  for (const signature of ['timestamp', 'sha256', 'standard'])
    await subscribe(app, { url, secret, signature });
  await publish(publisher, app.account, ['one', 'two']);
  const handled = () => [...output().matchAll(/^handled push ([0-9a-f-]{36}): .*refs\/heads\/(\w+)/gm)];
  await until(
    async () => handled().length,
    (count) => count === 6,
  );
  // Somebody resends a delivery that was handled.
  const [, id] = handled()[0] as RegExpMatchArray;
  await until(
    async () => (await app.request('GET', `/deliveries/${id}`)).body.state,
    (state) => state === 'succeeded',
  );
  assert.equal((await app.request('POST', `/deliveries/${id}/resend`)).status, 202);
  await until(
    async () => output(),
    (text) => text.includes('handled before'),
  );
  assert.deepEqual(
    handled()
      .map(([, , mark]) => mark)
      .sort(),
    ['one', 'one', 'one', 'two', 'two', 'two'],
  );
}

for (const name of ['express', 'hono']) {
  test(`the subscriber with ${name} handles deliveries once`, async (t) => {
    await assertHandlesOnce(t, name, {
      command: process.execPath,
      words: () => ['--disable-warning=ExperimentalWarning', 'main.js'],
      env: {},
    });
  });
}

test('the subscriber with fastapi handles deliveries once', async (t) => {
  const installed = await installWheel(t);
  if ('missing' in installed) return t.skip(installed.missing);
  await assertHandlesOnce(t, 'fastapi', {
    command: installed.python,
    words: (port) => ['-m', 'uvicorn', 'main:app', '--port', port],
    env: installed.env,
  });
});
