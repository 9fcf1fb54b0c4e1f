/** The reference page in a real browser: it draws, signs its reader in, and tries a request. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { openPage, startBrowser } from './support/chromium.ts';
import { createTestAccount } from './support/oauth.ts';
import { startTestServer } from './support/server.ts';

const server = await startTestServer({ after });
const browser = await startBrowser({ after });

test('sign in through the page and create an article from it', async () => {
  const account = await createTestAccount(server);
  const { page, problems } = await openPage(browser);
  page.setDefaultTimeout(15_000);
  const elsewhere: string[] = [];
  page.on('request', (request) => {
    if (!request.url().startsWith(server.baseUrl) && !/^(?:data|blob):/.test(request.url()))
      elsewhere.push(request.url());
  });
  await page.goto(`${server.baseUrl}/docs`);
  await page.getByRole('button', { name: 'Authorize' }).click();
  const flow = page.locator('.auth-container').filter({ hasText: 'authorizationCode' });
  await flow.getByText('select all').click();
  const opened = page.context().waitForEvent('page');
  await flow.locator('button.authorize').click();
  const popup = await opened;
  await popup.locator('input[name=email]').fill(account.email);
  await popup.locator('input[name=password]').fill(account.password);
  await popup.locator('button[type=submit]').first().click();
  await popup.getByRole('button', { name: /allow/i }).click();
  await flow.locator('button', { hasText: 'Logout' }).waitFor();
  await page.locator('.close-modal').click();

  const operation = page.locator('#operations-articles-create_articles');
  await operation.locator('.opblock-summary-control').click();
  await operation.getByRole('button', { name: 'Try it out' }).click();
  await operation.getByRole('button', { name: 'Execute' }).click();
  const status = operation.locator('.live-responses-table .response-col_status').last();
  await status.waitFor();
  assert.match((await status.textContent()) ?? '', /^201/);
  assert.deepEqual(elsewhere, []);
  assert.deepEqual(problems, []);
});

test('the reference is dark where the system is', async () => {
  for (const colorScheme of ['dark', 'light'] as const) {
    const { page } = await openPage(browser, { colorScheme });
    await page.goto(`${server.baseUrl}/docs`);
    await page.getByRole('button', { name: 'Authorize' }).waitFor();
    assert.equal(await page.locator('html.dark-mode').count(), colorScheme === 'dark' ? 1 : 0);
  }
});
