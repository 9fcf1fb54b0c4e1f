/**
 * docs/existing-app.md, run as its readers run it: from the packed package, in an empty folder, by its own code blocks. And
 * the example, which runs the page with the sources of this checkout.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { Page } from 'playwright-core';
import { type RunningGuide, runGuide } from '../../examples/existing-app/guide.ts';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { execute } from '../support/database/database.ts';
import { cleanEnvironment, pack } from '../support/programs/installed_package.ts';
import { freePort } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const opened = new AsyncDisposableStack();
after(() => opened.disposeAsync());
const folder = await newFolder();
const guide = await followGuide();
const [nuncioUrl, shopUrl, partnerUrl] = guide.urls;

async function followGuide(): Promise<RunningGuide> {
  const archive = await pack(await newFolder());
  // The team's own PostgreSQL. The guide creates roles, so it is not the one that test files share.
  const embedded = await startEmbedded({ dataDir: await newFolder(), role: 'server' });
  opened.defer(() => embedded.stop());
  await execute(embedded.connectionString, 'create database shop');
  const database = new URL(embedded.connectionString);
  database.pathname = '/shop';
  const running = await runGuide({
    folder,
    database,
    ports: [await freePort(), await freePort(), await freePort()],
    environment: {
      ...cleanEnvironment(),
      DATABASE_URL: undefined,
      TEST_DATABASE_URL: undefined,
      PATH: `${dirname(process.execPath)}:${process.env.PATH}`,
      npm_config_prefer_offline: 'true',
      npm_config_audit: 'false',
    },
    adapt: (command) => command.replace(/\S+\/nuncio-[\d.]+\.tgz/, `'${archive}'`),
  });
  opened.defer(running.stop);
  return running;
}

async function newFolder(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'nuncio-guide-'));
  opened.defer(() => rm(path, { recursive: true, force: true, maxRetries: 5 }));
  return path;
}

/** What the partner's app has received, and what it reads from the shop's API. */
async function partnerSees(): Promise<{
  received: { item: string }[];
  api: { status: number; items?: { item: string }[] };
}> {
  return (await (await fetch(partnerUrl)).json()) as never;
}

const looks = [
  {
    name: 'a phone without JavaScript',
    user: 'ann@example.com',
    password: 'correct horse',
    width: 390,
    isScripted: false,
  },
  { name: 'a desktop', user: 'bob@example.com', password: 'battery staple', width: 1280, isScripted: true },
];

for (const { name, user, password, width, isScripted } of looks) {
  test(`the guide’s user signs in at the shop, consents, gets API and webhooks, and disconnects: ${name}`, async (t) => {
    const viewport = { width, height: 844 };
    const { page } = await openPage(await startBrowser(t), { viewport, javaScriptEnabled: isScripted });
    const seen = async (title: RegExp) => {
      await until(
        () => page.title().catch(() => 'between two pages'),
        (found) => title.test(found),
      );
      const content = await page.locator('body').boundingBox();
      assert.ok((content?.width ?? 0) <= width, `${await page.title()} is wider than the screen`);
    };
    await page.goto(`${partnerUrl}/connect`);
    await seen(/^Sign in to the shop/);
    assert.ok(page.url().startsWith(`${shopUrl}/login?login_request=`));
    await page.getByText('to continue to Order watch').waitFor();
    await signIn(page, user, 'wrong');
    await page.getByText('Incorrect email address or password').waitFor();
    await signIn(page, user, password);
    await seen(/^Connect Order watch/);
    assert.ok(page.url().startsWith(`${nuncioUrl}/interaction/`));
    assert.doesNotMatch(page.url(), /login_verifier/);
    await page.locator('button[value="allow"]').click();
    await page.waitForURL(`${partnerUrl}/`);

    const item = `Tea for ${user}`;
    await placeOrder(page, item);
    const { api } = await until(partnerSees, ({ received }) => received.some((order) => order.item === item));
    assert.deepEqual(
      [api.status, api.items?.map((order) => order.item)],
      [200, [item]],
      'the API serves the orders of this user only',
    );

    await page.goto(`${shopUrl}/settings`);
    await seen(/^Settings/);
    assert.match(await page.locator('section').innerText(), /Order watch[\s\S]*read your orders/);
    await page.getByRole('button', { name: 'Disconnect Order watch' }).click();
    await page.getByText('No app is connected').waitFor();
    await until(partnerSees, (sees) => sees.api.status === 401);

    // The user is signed in to the shop, so connecting again asks for consent but not for a password.
    await page.goto(`${partnerUrl}/connect`);
    await seen(/^Connect Order watch/);
  });
}

async function placeOrder(page: Page, item: string): Promise<void> {
  await page.goto(shopUrl);
  await page.getByLabel('Item').fill(item);
  await page.getByRole('button', { name: 'Place order' }).click();
  await page.getByRole('listitem').filter({ hasText: item }).waitFor();
}

test('the guide’s app refuses a webhook that Nuncio did not sign', async () => {
  const forged = { method: 'POST', body: '{"order":{"id":"1","item":"forged"}}' };
  assert.equal((await fetch(`${partnerUrl}/hooks`, forged)).status, 403);
});

test('the guide’s API refuses a request without a token and names the authorization server', async () => {
  const response = await fetch(`${shopUrl}/api/orders`);
  assert.equal(response.status, 401);
  const [, metadata = ''] =
    /resource_metadata="([^"]+)"/.exec(response.headers.get('www-authenticate') ?? '') ?? [];
  const { resource, authorization_servers: servers } = (await (await fetch(metadata)).json()) as {
    resource: string;
    authorization_servers: string[];
  };
  assert.deepEqual([resource, servers], [`${shopUrl}/api`, [nuncioUrl]]);
});

test('a user who cancels at the shop’s login page connects nothing', async (t) => {
  const { page } = await openPage(await startBrowser(t), { javaScriptEnabled: false });
  await page.goto(`${partnerUrl}/connect`);
  await page.getByRole('button', { name: 'Cancel' }).click();
  await page.getByText('Not connected: access_denied').waitFor();
});

test('the shop tells the app and does not fail when the user’s account is disabled', async (t) => {
  const { page } = await openPage(await startBrowser(t), { javaScriptEnabled: false });
  // The module reads the backend's credentials from the environment, as the shop does.
  const script = `const { call } = await import(process.argv[1]);
    const { items } = await call('GET', '/accounts?limit=200');
    const { external_id: id } = items.find(({ email }) => email === 'bob@example.com');
    await call('PUT', '/accounts/external/' + id, { disabled: process.argv[2] === 'true' });`;
  const disable = async (isDisabled: boolean) => {
    const words = ['--env-file=shop.env', '--input-type=module', '-e', script];
    const module = pathToFileURL(join(folder, 'nuncio.mjs')).href;
    const child = spawn(process.execPath, [...words, module, String(isDisabled)], {
      cwd: folder,
      stdio: 'inherit',
    });
    assert.deepEqual(await once(child, 'exit'), [0, null]);
  };
  await disable(true);
  await page.goto(`${partnerUrl}/connect`);
  await signIn(page, 'bob@example.com', 'battery staple');
  await page.getByText('Not connected: access_denied').waitFor();
  await disable(false);
});

test('nobody withdraws what another user of the shop connected', async (t) => {
  const browser = await startBrowser(t);
  const { page: ann } = await openPage(browser, { javaScriptEnabled: false });
  await ann.goto(`${partnerUrl}/connect`);
  await signIn(ann, 'ann@example.com', 'correct horse');
  await ann.locator('button[value="allow"]').click();
  await ann.waitForURL(`${partnerUrl}/`);
  await ann.goto(`${shopUrl}/settings`);
  const grant = await ann.locator('input[name="grant"]').getAttribute('value');
  const { page: bob } = await openPage(browser, { javaScriptEnabled: false });
  await bob.goto(shopUrl);
  await signIn(bob, 'bob@example.com', 'battery staple');
  await bob.getByRole('heading', { name: 'Your orders' }).waitFor();
  const answer = await bob.request.post(`${shopUrl}/settings/disconnect`, { form: { grant: String(grant) } });
  assert.equal(new URL(answer.url()).pathname, '/settings', 'the form was accepted from a signed-in user');
  await ann.reload();
  assert.equal(await ann.locator('input[name="grant"]').getAttribute('value'), grant);
});

async function signIn(page: Page, user: string, password: string): Promise<void> {
  await page.getByLabel('Email').fill(user);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

test('the guide names the setting of the database and runs without warnings', async () => {
  assert.match(await readFile(join(folder, 'nuncio.env'), 'utf8'), /^DATABASE_URL='postgres:/m);
  assert.doesNotMatch(guide.output(), /WARN|ERROR|Warning|cannot publish by SQL/);
});

test('the example runs the guide with the sources of the checkout', async (t) => {
  const [port, shopPort, partnerPort] = [await freePort(), await freePort(), await freePort()].map(String);
  const main = fileURLToPath(new URL('../../examples/existing-app/main.ts', import.meta.url));
  const child = spawn(process.execPath, [main], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...cleanEnvironment(), PORT: port, SHOP_PORT: shopPort, PARTNER_PORT: partnerPort },
  });
  const ended = once(child, 'exit');
  t.after(async () => {
    if (child.exitCode === null) child.kill('SIGTERM');
    await ended;
  });
  const gone = ended.then(([code]) => {
    throw new Error(`the example ended with ${code}`);
  });
  gone.catch(() => {});
  await Promise.race([once(child.stdout, 'data'), gone]);
  assert.match(await (await fetch(`http://localhost:${shopPort}/login`)).text(), /Sign in to the shop/);
  child.kill('SIGTERM');
  assert.deepEqual(await ended, [0, null]);
});
