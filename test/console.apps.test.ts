/** Apps in the console: made, authorized, subscribed, shared, withdrawn, and ended. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startBrowser } from './support/chromium.ts';
import {
  accessibilityFaults,
  desktop,
  openConsole,
  phone,
  startConsoleServer,
} from './support/console_page.ts';
import { createTestAccount } from './support/oauth.ts';
import { startSubscriber } from './support/subscriber.ts';
import { createPublisher, publish } from './support/webhooks.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);

test('a user makes an app, authorizes it on the page, has it hear of events, withdraws it, and it hears no more', async (t) => {
  // A page, too: a browser stays where it is on an answer without content.
  const subscriber = await startSubscriber(t, (_received, response) => response.writeHead(200).end('ok'));
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account, '/console/apps');
  await page.getByText('You have no app yet').waitFor();
  await page.getByRole('link', { name: 'New app' }).first().click();
  await page.getByRole('button', { name: 'Create app' }).click();
  await page.getByText('Give it a name.').waitFor();
  await page.getByRole('textbox', { name: 'Name' }).fill('Reader');
  const redirect = page.getByRole('textbox', { name: 'Redirect URI' });
  await redirect.fill('http://app.example.com/cb');
  await page.getByText('It must be https: http is for localhost alone.').waitFor();
  await redirect.fill(`http://localhost:${subscriber.port}/callback`);
  for (const scope of ['read:posts', 'read:webhooks', 'write:webhooks']) {
    await page.getByText(scope, { exact: true }).click();
  }
  assert.deepEqual(await accessibilityFaults(page), []);
  await page.getByRole('button', { name: 'Create app' }).click();
  const shown = page.getByRole('dialog', { name: 'Keep the client secret now' });
  await shown.getByRole('button', { name: 'Show the client secret' }).click();
  const secret = (await shown.locator('.secret code').textContent()) as string;
  await shown.getByRole('button', { name: 'I have kept it' }).click();
  await page.getByRole('heading', { name: 'Reader' }).waitFor();
  await page.getByRole('tab', { name: 'curl' }).click();
  await page.getByText('grant_type=authorization_code').waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);

  await page.getByRole('tab', { name: 'Try it' }).click();
  const opened = page.context().waitForEvent('page');
  await page.getByRole('link', { name: 'Open in a new tab' }).click();
  const tab = await opened;
  await tab.getByRole('button', { name: 'Allow' }).click();
  await tab.waitForURL(/\/callback\?/);
  const address = page.getByRole('textbox', { name: 'The address that you were sent to' });
  await address.fill(tab.url().replace(/state=[^&]+/, 'state=other'));
  await page.getByText('The state is not the one that was sent.').waitFor();
  await address.fill(tab.url());
  await page.getByText('State and code are as they should be.').waitFor();
  await page.getByLabel('Client secret').fill(secret);
  await page.getByRole('button', { name: 'Exchange the code' }).click();
  await page.getByRole('region', { name: 'Token answer' }).getByText('200').waitFor();
  await page.getByRole('button', { name: 'GET /api' }).click();
  await page.getByRole('region', { name: 'API answer' }).getByText(account.id).waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);

  await page.getByRole('tab', { name: 'Subscriptions' }).click();
  await page.getByRole('link', { name: 'Subscribe a URL' }).click();
  await page.getByRole('textbox', { name: 'URL' }).fill(`${subscriber.url}/hooks`);
  await page.getByText('All kinds').click();
  await page.getByRole('button', { name: 'Subscribe' }).click();
  await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();
  const hooks = () => subscriber.received.filter(({ path }) => path === '/hooks');
  const before = subscriber.received.length;
  await publish(publisher, account, ['allowed']);
  await subscriber.waitFor(before + 1);
  assert.match(hooks().at(-1)?.body ?? '', /allowed/);

  await tab.goto(`${server.baseUrl}/account`);
  const reader = tab.locator('li', { hasText: 'Reader' });
  await reader.locator('summary').first().click();
  await reader.getByRole('button').click();
  await tab.getByText('no longer acts for you').waitFor();
  await publish(publisher, account, ['withdrawn']);
  await page.getByRole('button', { name: 'Send test event' }).click();
  await subscriber.waitFor(before + 2);
  assert.equal(hooks().at(-1)?.headers['nuncio-event'], 'ping');
  assert.ok(!hooks().some(({ body }) => body.includes('withdrawn')));
  assert.deepEqual(problems, []);
});

test('a second secret is made and the first deleted; a member is invited, joins, and has a developer’s rights', async () => {
  const owner = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, owner, '/console/apps/new');
  await page.getByRole('textbox', { name: 'Name' }).fill('Shared');
  await page.getByRole('textbox', { name: 'Redirect URI' }).fill('https://shared.example/cb');
  await page.getByText('read:posts', { exact: true }).click();
  await page.getByRole('button', { name: 'Create app' }).click();
  await page.getByRole('button', { name: 'I have kept it' }).click();
  await page.getByRole('button', { name: 'New secret' }).click();
  await page.getByRole('button', { name: 'I have kept it' }).click();
  await page
    .getByRole('button', { name: /^Delete the secret/ })
    .nth(1)
    .waitFor();
  await page
    .getByRole('button', { name: /^Delete the secret/ })
    .first()
    .click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('Only the other one works now.').waitFor();

  const second = await createTestAccount(server);
  await page.getByRole('tab', { name: 'Members' }).click();
  await page.getByRole('textbox', { name: 'E-mail address' }).fill(second.email);
  await page.getByRole('button', { name: 'Invite' }).click();
  await page.getByText('invited', { exact: true }).waitFor();
  assert.deepEqual(await accessibilityFaults(page), []);
  assert.deepEqual(problems, []);

  const other = await openConsole(browser, server, second, '/console/apps');
  await other.page.getByText('You are invited to Shared').waitFor();
  await other.page.getByRole('button', { name: 'Join' }).click();
  await other.page.getByRole('link', { name: 'Shared' }).click();
  await other.page.getByRole('tab', { name: 'Members' }).click();
  await other.page.getByText(owner.email).waitFor();
  assert.equal(await other.page.getByRole('button', { name: /^Remove/ }).count(), 0);
  await other.page.getByRole('tab', { name: 'Overview' }).click();
  await other.page.getByRole('heading', { name: 'Connect it' }).waitFor();
  assert.equal(await other.page.getByRole('button', { name: 'Delete', exact: true }).count(), 0);
  await other.page.getByRole('tab', { name: 'Settings' }).click();
  await other.page.getByRole('textbox', { name: 'Home page' }).fill('https://shared.example/');
  await other.page.getByRole('button', { name: 'Save' }).click();
  await other.page.getByText('Saved.').waitFor();
  assert.deepEqual(other.problems, []);

  await page.reload();
  await page.getByRole('tab', { name: 'Overview' }).click();
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('You have no app yet').waitFor();
});

for (const [name, size] of Object.entries({ phone, desktop })) {
  for (const colorScheme of ['light', 'dark'] as const) {
    test(`axe finds nothing on the pages of apps on a ${name} in ${colorScheme}`, async () => {
      const account = await createTestAccount(server);
      const options = { ...size, colorScheme };
      const { page, problems } = await openConsole(browser, server, account, '/console', options);
      await page.getByText('You have no app yet').waitFor();
      assert.deepEqual(await accessibilityFaults(page), []);
      await page.getByRole('link', { name: 'New app' }).first().click();
      await page.getByText('read:posts', { exact: true }).click();
      assert.deepEqual(await accessibilityFaults(page), []);
      assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);
      assert.deepEqual(problems, []);
    });
  }
}
