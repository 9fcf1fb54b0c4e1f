/** The reference page in a real browser: it is readable without JavaScript, signs the reader in, and sends requests. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Page } from 'playwright-core';
import type { ApiDocument } from '../../../src/web/reference/reader/document.ts';
import { openPage, startBrowser } from '../../support/browser/chromium.ts';
import { createTestAccount } from '../../support/clients/oauth.ts';
import { accessibilityErrors } from '../../support/console/console_page.ts';
import { variants } from '../../support/runner/tier.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after });
const browser = await startBrowser({ after });

/** Submits the login and consent pages in the popup window. */
async function signIn(page: Page): Promise<void> {
  const account = await createTestAccount(server);
  const opened = page.context().waitForEvent('page');
  await page.getByRole('button', { name: 'Sign in' }).click();
  const popup = await opened;
  await popup.locator('input[name=email]').fill(account.email);
  await popup.locator('input[name=password]').fill(account.password);
  await popup.locator('button[type=submit]').first().click();
  await popup.getByRole('button', { name: /allow/i }).click();
  await page.getByRole('button', { name: 'Sign out' }).waitFor();
}

test('the reference shows whole requests and responses without a scroll column, and formats in words', async (t) => {
  // A single-process browser can open only one window with another origin policy, and signing in opens it.
  const { page } = await openPage(await startBrowser(t), { viewport: { width: 1440, height: 900 } });
  await page.goto(`${server.baseUrl}/docs/`);
  const nested = await page.evaluate(`[...document.querySelectorAll('.samples, .samples pre')]
    .filter((element) => element.scrollHeight > element.clientHeight + 1
      && getComputedStyle(element).overflowY !== 'visible')
    .map((element) => element.closest('section').id)`);
  assert.deepEqual(nested, []);
  const bounds = (await page.locator('.bounds, .type').allTextContents()).join('\n');
  assert.doesNotMatch(bounds, /[\^$]|\\u00|matches/);
  for (const words of [
    'string (UUID)',
    'string (RFC 3339 time)',
    'printable ASCII',
    'separated by commas: ',
  ]) {
    assert.ok(bounds.includes(words), words);
  }
  // What no words describe is behind a disclosure.
  const pattern = page.locator('#create_subscription .pattern:visible').first();
  await pattern.locator('summary').click();
  await pattern.getByText('^').first().waitFor();
  assert.deepEqual(await accessibilityErrors(page), []);
});

test('the reference creates an article when its reader signs in and sends a request', async () => {
  const { page, problems } = await openPage(browser);
  const elsewhere: string[] = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(server.baseUrl) && !/^(?:data|blob):/.test(request.url()))
      elsewhere.push(request.url());
  });
  await page.goto(`${server.baseUrl}/docs`);
  await signIn(page);
  const operation = page.locator('#create_articles');
  await operation.getByText('Try it').click();
  await operation.getByRole('button', { name: 'Send request' }).click();
  const result = operation.getByRole('status');
  await result.getByText('201 Created').waitFor();
  const { title } = JSON.parse((await result.locator('pre').textContent()) ?? '');
  assert.equal(title, 'On carrying messages');

  const list = page.locator('#list_articles');
  await list.getByText('Try it').click();
  await list.getByLabel('limit').fill('1');
  await list.getByRole('button', { name: 'Send request' }).click();
  const { items } = JSON.parse((await list.getByRole('status').locator('pre').textContent()) ?? '');
  assert.deepEqual(
    items.map((item: { title: string }) => item.title),
    ['On carrying messages'],
  );
  await page.getByRole('button', { name: 'Sign out' }).click();
  await list.getByRole('button', { name: 'Send request' }).click();
  await list.getByText('Sign in first').waitFor();
  assert.deepEqual(elsewhere, []);
  assert.deepEqual(problems, []);
});

test('the reference ignores an authorization response with a foreign state', async (t) => {
  // A single-process browser crashes when a popup severs the link to its opener.
  const { page } = await openPage(await startBrowser({ after: (close) => t.after(close) }));
  await page.goto(`${server.baseUrl}/docs/`);
  const opened = page.context().waitForEvent('page');
  await page.getByRole('button', { name: 'Sign in' }).click();
  const popup = await opened;
  await popup.locator('input[name=email]').waitFor();
  const tokenRequests: string[] = [];
  page.on('request', (request) => {
    if (request.url().endsWith('/oauth/token')) tokenRequests.push(request.url());
  });
  // Anyone can open a page of this origin with a query of their choice.
  await popup.goto(`${server.baseUrl}/docs/oauth2-redirect.html?code=stolen&state=another`).catch(() => {});
  // This request comes after any request for a token.
  await page.evaluate(() => fetch('/meta'));
  assert.deepEqual(tokenRequests, []);
  assert.equal(await page.getByRole('button', { name: 'Sign out' }).count(), 0);
});

test('the reference shows every operation and event without JavaScript', async () => {
  const { page } = await openPage(browser, { javaScriptEnabled: false });
  await page.goto(`${server.baseUrl}/docs/`);
  const document = (await (await fetch(`${server.baseUrl}/openapi.json`)).json()) as ApiDocument;
  for (const path of Object.values(document.paths)) {
    for (const { operationId } of Object.values(path)) {
      assert.ok(await page.locator(`section#${operationId} h3`).isVisible(), operationId);
    }
  }
  for (const kind of Object.keys(document.webhooks)) {
    assert.ok(await page.locator(`#kind-${kind.replaceAll('.', '-')} pre`).isVisible(), kind);
  }
  assert.equal(await page.getByText('Try it').first().isVisible(), false);
});

test('the reference’s search finds an operation by its words and its path', async () => {
  const { page } = await openPage(browser);
  await page.goto(`${server.baseUrl}/docs/`);
  const contents = page.getByRole('navigation', { name: 'Reference' });
  for (const [words, expected] of [
    ['rotate', 'Rotate the secret'],
    ['post /articles/{id}/publish', 'Publish an article'],
    ['invoice', 'invoice.paid'],
  ] as const) {
    await page.getByLabel('Search').fill(words);
    const shown = contents.locator('li:visible');
    assert.equal(await shown.count(), 1, words);
    assert.match((await shown.textContent()) ?? '', new RegExp(expected));
  }
  await page.getByLabel('Search').fill('no such thing');
  await page.getByText('Nothing found.').waitFor();
});

test('the reference fits a phone, is accessible, and follows the system’s colour scheme', async () => {
  for (const colorScheme of variants(['dark', 'light'] as const)) {
    const { page, problems } = await openPage(browser, {
      colorScheme,
      viewport: { width: 390, height: 844 },
    });
    await page.goto(`${server.baseUrl}/docs/`);
    // A string, because the project is not type-checked against the DOM.
    const [width, ground] = await page.evaluate<[number, string]>(
      '[document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]',
    );

    assert.equal(width, 390);
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(ground, colorScheme === 'dark' ? 'rgb(18, 20, 27)' : 'rgb(255, 255, 255)');
    assert.deepEqual(problems, []);
  }
});

test('the reference is compressed on request and allows no inline script or style', async () => {
  for (const [accepted, encoding] of [
    ['br, gzip', 'br'],
    ['gzip', 'gzip'],
    ['br;q=0, gzip;q=0.5', 'gzip'],
    ['identity', null],
  ] as const) {
    const response = await fetch(`${server.baseUrl}/docs/`, { headers: { 'accept-encoding': accepted } });
    assert.equal(response.headers.get('content-encoding'), encoding, accepted);
    assert.match(await response.text(), /<h1 id="top">/);
    const policy = response.headers.get('content-security-policy') ?? '';
    assert.ok(policy.includes("default-src 'none'") && !policy.includes('unsafe'), policy);
  }
});
