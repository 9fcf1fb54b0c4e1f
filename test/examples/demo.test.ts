/** The demo: over HTTP, and in a real browser. */

import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../src/config/environment.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';

const demo = fileURLToPath(new URL('../../examples/reader/main.ts', import.meta.url));

let settings: Environment;
const opened = new AsyncDisposableStack();
const file = { after: (close: () => Promise<void>) => opened.defer(close) };

before(async () => {
  settings = { NUNCIO_DATA_DIR: await temporaryFolder(file), PORT: String(await freePort()) };
  await startProcess(file, ['dev'], settings).ready();
});

after(() => opened.disposeAsync());

test('every step of npm run demo -- --once succeeds', async () => {
  const { code, output } = await new Promise<{ code: number; output: string }>((resolve) => {
    execFile(
      process.execPath,
      [demo, '--once'],
      { env: { ...process.env, ...settings } },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr });
      },
    );
  });
  assert.equal(code, 0, output);
  for (const library of ['stripe', '@octokit/webhooks-methods', 'standardwebhooks']) {
    assert.match(output, new RegExp(`verified by ${library}`));
  }
  assert.match(output, /Every step succeeded\.\n$/);
});

test('the demo connects, logs in, confirms, publishes, shows the event and disconnects in a browser', async (t) => {
  const port = await freePort();
  const reader = await startReader(t, port);
  const { page, problems } = await openPage(await startBrowser(t));
  await page.goto(reader);
  await page.getByRole('link', { name: 'Connect' }).click();
  await page.getByLabel('Email address').fill('demo@example.com');
  await page.getByLabel('Password').fill('demo-password');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Connect Reader?' }).waitFor();
  await page.getByRole('button', { name: 'Allow' }).click();

  await page.getByLabel('Title').fill('Carried by hand');
  await page.getByRole('button', { name: 'Save as a draft' }).click();
  await page.getByText('article.created').waitFor();
  await page.getByRole('button', { name: 'Publish' }).click();
  await page.getByText('article.published').waitFor();
  assert.equal(await page.getByText('signature verified by stripe').count(), 2);
  await page.locator('#articles li', { hasText: 'Carried by hand' }).getByText('published').waitFor();

  await page.getByRole('button', { name: 'Disconnect' }).click();
  await page.getByText('Access was withdrawn').waitFor();
  assert.deepEqual(problems, []);
});

test('the demo shows a message when the user denies access', async (t) => {
  const reader = await startReader(t, await freePort());
  const { page } = await openPage(await startBrowser(t), { javaScriptEnabled: false });
  await page.goto(reader);
  await page.getByRole('link', { name: 'Connect' }).click();
  await page.getByLabel('Email address').fill('demo@example.com');
  await page.getByLabel('Password').fill('demo-password');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Deny' }).click();
  await page.getByText('You denied access').waitFor();
});

interface Scope {
  after: (close: () => Promise<void>) => unknown;
}

/** @returns the URL of its page, once it responds */
async function startReader(scope: Scope, port: number): Promise<string> {
  const child = spawn(process.execPath, [demo], {
    stdio: 'ignore',
    env: { ...process.env, ...settings, READER_PORT: String(port) },
  });
  scope.after(() => end(child));
  const url = `http://localhost:${port}`;
  while (
    !(await fetch(url).then(
      () => true,
      () => false,
    ))
  ) {
    assert.equal(child.exitCode, null, 'the demo ended');
    await sleep(50);
  }
  return url;
}

async function end(child: ChildProcess): Promise<void> {
  const ended = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  child.kill('SIGTERM');
  await ended;
}
