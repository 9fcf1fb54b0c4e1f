/** The demo: over HTTP, and in a real browser. */

import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { Environment } from '../../src/config/environment.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { runCommand, startProcess, temporaryFolder } from '../support/servers/process.ts';
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

/** Runs an example until it exits. */
function runExample(file: string, words: string[], environment: Environment) {
  return new Promise<{ code: number; output: string }>((resolve) => {
    execFile(
      process.execPath,
      [file, ...words],
      { env: { ...process.env, ...environment } },
      (error, stdout, stderr) => {
        resolve({ code: error === null ? 0 : Number(error.code), output: stdout + stderr });
      },
    );
  });
}

test('every example has --help, and refuses unknown options with its usage', async () => {
  for (const name of ['reader', 'own-api', 'existing-app']) {
    const file = fileURLToPath(new URL(`../../examples/${name}/main.ts`, import.meta.url));
    const help = await runExample(file, ['--help'], {});
    assert.deepEqual([help.code, help.output.split(' ', 1)[0]], [0, 'usage:'], help.output);
    const unknown = await runExample(file, ['--twice'], {});
    assert.equal(unknown.code, 2, unknown.output);
    assert.match(unknown.output, /^Unknown option '--twice'[^\n]*\n\nusage: npm run /);
  }
});

test('the demo fails in one line beside a server that uses another database', async (t) => {
  const failed = await runExample(demo, ['--once'], {
    ...settings,
    NUNCIO_DATA_DIR: await temporaryFolder(t),
  });
  assert.equal(failed.code, 1);
  assert.match(
    failed.output,
    /^✗ the server at http:\/\/localhost:\d+ does not use [^\n]+NUNCIO_DATA_DIR[^\n]+\n$/,
  );
  const elsewhere = await runExample(demo, [], { ...settings, PORT: String(await freePort()) });
  assert.equal(elsewhere.code, 1);
  assert.match(
    elsewhere.output,
    /^✗ the server that uses [^\n]+ is at http:\/\/localhost:\d+, not at [^\n]+\n$/,
  );
});

test('every step of npm run demo -- --once succeeds, on any port of the server', async () => {
  const { NUNCIO_DATA_DIR } = settings;
  const { code, output } = await runExample(demo, ['--once'], { NUNCIO_DATA_DIR: String(NUNCIO_DATA_DIR) });
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

test('an event is listed once after the user has connected in two browsers', async (t) => {
  const reader = await startReader(t, await freePort());
  const browser = await startBrowser(t);
  const pages = [];
  for (let count = 0; count < 2; count += 1) {
    const { page } = await openPage(browser);
    await page.goto(reader);
    await page.getByRole('link', { name: 'Connect' }).click();
    await page.getByLabel('Email address').fill('demo@example.com');
    await page.getByLabel('Password').fill('demo-password');
    await page.getByRole('button', { name: 'Sign in' }).click();
    // The second time, the user has allowed the app already.
    if (count === 0) await page.getByRole('button', { name: 'Allow' }).click();
    await page.getByLabel('Title').waitFor();
    pages.push(page);
  }
  const [first, second] = pages as [(typeof pages)[number], (typeof pages)[number]];
  await first.getByLabel('Title').fill('Told once');
  await first.getByRole('button', { name: 'Save as a draft' }).click();
  await second.getByText('article.created').waitFor();
  // The second article's event arrives after every delivery of the first.
  await second.getByLabel('Title').fill('Told after it');
  await second.getByRole('button', { name: 'Save as a draft' }).click();
  for (const page of pages) {
    await page.locator('#deliveries').getByText('Told after it').waitFor();
    assert.equal(await page.getByText('article.created').count(), 2);
  }
});

test('the demo deletes the app that a killed demo left', async (t) => {
  const port = await freePort();
  const scope: Scope = { after: () => undefined };
  let killed: ChildProcess | undefined;
  await startReader(scope, port, (child) => {
    killed = child;
  });
  killed?.kill('SIGKILL');
  await startReader(t, port);
  const { stdout } = await runCommand(['client', 'list', '--json'], settings);
  const uri = `http://localhost:${port}/callback`;
  const apps = JSON.parse(stdout) as { redirect_uris: string[] }[];
  assert.equal(apps.filter(({ redirect_uris: uris }) => uris.includes(uri)).length, 1);
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
async function startReader(
  scope: Scope,
  port: number,
  onStart: (child: ChildProcess) => void = () => {},
): Promise<string> {
  const child = spawn(process.execPath, [demo], {
    stdio: 'ignore',
    env: { ...process.env, ...settings, READER_PORT: String(port) },
  });
  scope.after(() => end(child));
  onStart(child);
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
