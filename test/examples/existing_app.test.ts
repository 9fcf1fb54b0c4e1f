/** `examples/existing-app` started as its users start it, and its documentation page. */

import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { freePort } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const folder = new URL('../../examples/existing-app/', import.meta.url);
const ports = [await freePort(), await freePort(), await freePort()];
const [nuncioUrl, shopUrl, partnerUrl] = ports.map((port) => `http://localhost:${port}`) as [
  string,
  string,
  string,
];
const child = await start();
after(async () => {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await once(child, 'exit');
});

async function start(): Promise<ChildProcess> {
  const [port, shopPort, partnerPort] = ports.map(String);
  const { DATABASE_URL: _none, ...env } = process.env;
  const started = spawn(process.execPath, [fileURLToPath(new URL('main.ts', folder))], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...env, PORT: port, SHOP_PORT: shopPort, PARTNER_PORT: partnerPort, LOG_LEVEL: 'silent' },
  });
  const gone = once(started, 'exit').then(([code]) => {
    throw new Error(`the example ended with ${code}`);
  });
  gone.catch(() => {});
  await Promise.race([once(started.stdout as NodeJS.ReadableStream, 'data'), gone]);
  return started;
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
  test(`the shop hands over login and shows consent, the connected app, an order’s webhook and its withdrawal: ${name}`, async (t) => {
    const viewport = { width, height: 844 };
    const { page } = await openPage(await startBrowser(t), { viewport, javaScriptEnabled: isScripted });
    const seen = async (title: RegExp) => {
      assert.match(await page.title(), title);
      const content = await page.locator('body').boundingBox();
      assert.ok((content?.width ?? 0) <= width, `${await page.title()} is wider than the screen`);
    };
    await page.goto(partnerUrl);
    await page.getByRole('link', { name: 'Connect the shop' }).click();
    await seen(/^Sign in to the shop/);
    assert.ok(page.url().startsWith(`${shopUrl}/login?login_request=`));
    assert.match(await page.locator('body').innerText(), /to continue to Order watch/);
    await page.getByLabel('Email').fill(user);
    await page.getByLabel('Password').fill('wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    assert.match(await page.locator('body').innerText(), /Incorrect email address or password/);
    await page.getByLabel('Email').fill(user);
    await page.getByLabel('Password').fill(password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await seen(/^Connect Order watch/);
    assert.ok(page.url().startsWith(`${nuncioUrl}/interaction/`));
    assert.doesNotMatch(page.url(), /login_verifier/);
    await page.locator('button[value="allow"]').click();
    await seen(/^Order watch/);

    const item = `Tea for ${user}`;
    await placeOrder(page, item);
    await until(
      async () => {
        await page.goto(partnerUrl);
        return page.locator('body').innerText();
      },
      (text) => text.includes(item),
    );

    await page.goto(`${shopUrl}/settings`);
    await seen(/^Settings/);
    assert.match(await page.locator('section').innerText(), /Order watch[\s\S]*read your orders/);
    await page.getByRole('button', { name: 'Disconnect Order watch' }).click();
    await seen(/^Settings/);
    assert.match(await page.locator('body').innerText(), /No app is connected/);

    // The user is signed in to the shop, so connecting again asks for consent but not for a password.
    await page.goto(`${partnerUrl}/connect`);
    await seen(/^Connect Order watch/);
  });
}

async function placeOrder(page: Page, item: string): Promise<void> {
  await page.goto(shopUrl);
  await page.getByLabel('Item').fill(item);
  await page.getByRole('button', { name: 'Place order' }).click();
}

test('a user who cancels at the shop’s login page connects nothing', async (t) => {
  const { page } = await openPage(await startBrowser(t), { javaScriptEnabled: false });
  await page.goto(`${partnerUrl}/connect`);
  await page.getByRole('button', { name: 'Cancel' }).click();
  assert.match(await page.title(), /^Not connected/);
});

test('nobody withdraws what another user of the shop connected', async (t) => {
  const browser = await startBrowser(t);
  const { page: ann } = await openPage(browser, { javaScriptEnabled: false });
  await ann.goto(`${partnerUrl}/connect`);
  await signIn(ann, 'ann@example.com', 'correct horse');
  await ann.locator('button[value="allow"]').click();
  await ann.goto(`${shopUrl}/settings`);
  const grant = await ann.locator('input[name="grant"]').getAttribute('value');
  const { page: bob } = await openPage(browser, { javaScriptEnabled: false });
  await bob.goto(shopUrl);
  await signIn(bob, 'bob@example.com', 'battery staple');
  await bob.request.post(`${shopUrl}/settings/disconnect`, { form: { grant: String(grant) } });
  await ann.reload();
  assert.equal(await ann.locator('input[name="grant"]').getAttribute('value'), grant);
});

async function signIn(page: Page, user: string, password: string): Promise<void> {
  await page.getByLabel('Email').fill(user);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

test('every code block of docs/existing-app.md is in a file of the example', () => {
  const text = readFileSync(new URL('../../docs/existing-app.md', import.meta.url), 'utf8');
  const blocks = [...text.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)];
  assert.ok(blocks.length >= 15);
  const files = new Map(
    readdirSync(folder).map((name) => [name, readFileSync(new URL(name, folder), 'utf8')]),
  );
  for (const [, info = '', block = ''] of blocks) {
    const name = info.split(' ')[1] ?? '';
    assert.ok(files.get(name)?.includes(block), `${name}:\n${block}`);
  }
});
