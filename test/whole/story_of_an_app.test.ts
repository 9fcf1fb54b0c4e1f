/**
 * The life of an app in one browser: created in the console, authorized by a user, and subscribed on a page. Its
 * deliveries arrive, fail, are inspected, sent again and recovered. After the user withdraws the grant, it receives
 * nothing.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Page } from 'playwright-core';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { connectApp } from '../support/console/connect_app.ts';
import { accessibilityErrors, openConsole, startConsoleServer } from '../support/console/console_page.ts';
import { storyPlaces } from '../support/console/places.ts';
import { createPublisher, fannedOut, publish, until } from '../support/webhooks/apps.ts';
import { accept, answer, startSubscriber } from '../support/webhooks/subscriber.ts';

// One retry after a second: a failing delivery soon fails for good, and its state no longer changes during the test.
const server = await startConsoleServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const publisher = await createPublisher(server);

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true });
const field = (page: Page, name: string) => page.getByRole('textbox', { name, exact: true });
const rows = (page: Page, text: string) => page.locator('tbody tr', { hasText: text });

/** @returns the page on which the user consented */
async function makeAndAuthorize(page: Page, home: string): Promise<Page> {
  await page.getByRole('link', { name: 'New app' }).first().click();
  await field(page, 'Name').fill('Reader');
  await field(page, 'Redirect URI').fill(`${home}/callback`);
  await button(page, 'Select all').click();
  await button(page, 'Create app').click();
  const { consent } = await connectApp(page, server, `${home}/callback`);
  return consent;
}

async function subscribeOnPage(page: Page, url: string): Promise<void> {
  await page.getByRole('tab', { name: 'Subscriptions' }).click();
  await page.getByRole('link', { name: 'New subscription' }).click();
  await field(page, 'URL').fill(url);
  await field(page, 'Description').fill('Warehouse');
  await page.getByText('All kinds').click();
  await button(page, 'Create subscription').click();
  await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();
  await page.getByRole('tab', { name: 'Deliveries' }).click();
  await page.getByText('No deliveries yet').waitFor();
}

/** Recovers the failed deliveries of the last ten minutes. */
async function recoverRange(page: Page): Promise<void> {
  await button(page, 'Recover').click();
  const dialog = page.getByRole('dialog', { name: 'Recover deliveries' });
  const local = await page.evaluate(`(() => {
    const at = (minutes) => {
      const time = new Date(Date.now() + minutes * 60000);
      return new Date(time.getTime() - time.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
    };
    return [at(-10), at(2)];
  })()`);
  const [from, to] = local as [string, string];
  await dialog.getByLabel('From', { exact: true }).fill(from);
  await dialog.getByLabel('To', { exact: true }).fill(to);
  await dialog.getByRole('button', { name: 'Recover' }).click();
  await dialog.getByText('2 resent, 0 added.').waitFor();
  await dialog.getByRole('button', { name: 'Close' }).click();
}

for (const [where, options] of storyPlaces) {
  test(`an app is created, authorized, subscribed, notified, fails, is explained, resent, recovered and withdrawn ${where}`, async (t) => {
    const home = await startSubscriber(t, answer(200));
    const account = await createTestAccount(server);
    const hooks = () => home.received.filter(({ path }) => path === '/hooks');
    const marks = () => hooks().map(({ body }) => JSON.parse(body).ref?.split('/').at(-1));
    // A single-process browser can open only one window with another origin policy.
    const browser = await startBrowser(t);
    const { page, problems } = await openConsole(browser, server, account, '/console/apps', options);
    const consent = await makeAndAuthorize(page, home.url);
    await subscribeOnPage(page, `${home.url}/hooks`);

    // It appears live, without any interaction.
    await publish(publisher, account, ['first']);
    await rows(page, 'Succeeded').first().waitFor();
    assert.deepEqual(marks(), ['first']);

    home.behave((_received, response) => response.writeHead(503).end('warehouse offline'));
    await publish(publisher, account, ['second', 'third', 'fourth']);
    await rows(page, 'Failed').nth(2).waitFor();
    await rows(page, 'Failed').last().getByRole('link').click();
    await page.getByText('503: The receiver failed.').waitFor();
    await page.getByText('No automatic attempts are left.').waitFor();
    await page.getByText('warehouse offline').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    home.behave(accept);
    await button(page, 'Resend').click();
    await page.locator('h1 ~ .badge').getByText('Succeeded').waitFor();

    await page.getByRole('link', { name: 'Warehouse', exact: true }).click();
    await rows(page, 'Failed').nth(1).waitFor();
    await recoverRange(page);
    await rows(page, 'Succeeded').nth(3).waitFor();
    assert.equal(await rows(page, 'Failed').count(), 0);
    assert.deepEqual([...new Set(marks())].sort(), ['first', 'fourth', 'second', 'third']);
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);

    await consent.goto(`${server.baseUrl}/account`);
    const reader = consent.locator('li', { hasText: 'Reader' });
    await reader.locator('summary').first().click();
    await reader.getByRole('button').click();
    await consent.getByText('is disconnected').waitFor();
    const before = hooks().length;
    await publish(publisher, account, ['withdrawn']);
    await fannedOut(server);
    // A later test event arrives and this event does not: it has no delivery.
    await button(page, 'Send test event').click();
    await rows(page, 'ping').getByText('Succeeded').waitFor();
    await until(
      async () => hooks().length,
      (count) => count === before + 1,
    );
    assert.ok(!marks().includes('withdrawn'));
    assert.equal(await page.locator('tbody tr').count(), 5);
    assert.deepEqual(problems, []);
  });
}
