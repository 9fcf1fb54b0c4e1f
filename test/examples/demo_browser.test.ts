/** The demo in a real browser. */

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { Environment } from '../../src/config/environment.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';
import { startReader } from './reader.ts';

let settings: Environment;
const opened = new AsyncDisposableStack();
const file = { after: (close: () => Promise<void>) => opened.defer(close) };

before(async () => {
  settings = { NUNCIO_DATA_DIR: await temporaryFolder(file), PORT: String(await freePort()) };
  await startProcess(file, ['dev'], settings).ready();
});

after(() => opened.disposeAsync());

test('the demo connects, logs in, confirms, publishes, shows the event and disconnects in a browser', async (t) => {
  const port = await freePort();
  const reader = await startReader(t, settings, port);
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
  const reader = await startReader(t, settings, await freePort());
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

test('the demo shows a message when the user denies access', async (t) => {
  const reader = await startReader(t, settings, await freePort());
  const { page } = await openPage(await startBrowser(t), { javaScriptEnabled: false });
  await page.goto(reader);
  await page.getByRole('link', { name: 'Connect' }).click();
  await page.getByLabel('Email address').fill('demo@example.com');
  await page.getByLabel('Password').fill('demo-password');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Deny' }).click();
  await page.getByText('You denied access').waitFor();
});
