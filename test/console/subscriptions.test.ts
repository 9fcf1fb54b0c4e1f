/** The console in a browser: signing in and out, and a subscription from creation to deletion. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  accessibilityErrorsOnTheWay,
  openConsole,
  signIn,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { pagePlaces } from '../support/console/places.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);

test('a user subscribes a URL, tries it, pauses, changes, rotates and deletes it', async (t) => {
  const subscriber = await startSubscriber(t);
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account, '/console/subscriptions');
  await page.getByRole('link', { name: 'New subscription' }).first().click();
  const url = page.getByRole('textbox', { name: 'URL' });
  await url.fill('ftp://example.com');
  await page.getByText('Use https://.').waitFor();
  await url.fill(subscriber.url);
  await page.getByText('Allowed in development, and for private receivers').waitFor();
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('Select at least one kind.').waitFor();
  await page.getByRole('button', { name: 'Show push' }).click();
  await page.getByText('refs/heads/main').waitFor();
  await page.getByText('All kinds').click();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();

  await publish(publisher, account, ['once']);
  await subscriber.waitFor(1);
  await page.getByRole('button', { name: 'Send test event' }).click();
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-event']),
    ['push', 'ping'],
  );

  await page.getByRole('button', { name: 'Show the secret' }).click();
  const secret = await page.locator('.secret code').textContent();
  assert.match(secret ?? '', /^whsec_/);
  await page.getByRole('button', { name: 'Rotate' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Rotate' }).click();
  await page.getByText('The previous secret also signs until').waitFor();

  await page.getByRole('button', { name: 'Pause' }).click();
  await page.getByText('Deliveries are paused').waitFor();
  await page.getByRole('button', { name: 'Resume' }).click();
  await page.getByRole('button', { name: 'Pause' }).waitFor();

  await page.getByRole('tab', { name: 'Settings' }).click();
  await page.getByRole('textbox', { name: 'Description' }).fill('Warehouse');
  await page.getByText('Advanced settings').click();
  await page.getByRole('textbox', { name: 'Retry schedule' }).fill('1s, 2min');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('heading', { name: 'Warehouse' }).waitFor();
  await page.getByRole('tab', { name: 'Overview' }).click();
  await page.getByText('1s, 2min').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);

  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('No subscriptions yet').waitFor();
  assert.deepEqual(problems, []);
});

test('the server’s refusal of a URL appears beside the field', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions/new');
  await page.getByText('All kinds').click();
  // The page cannot know that this name is not public. The server checks it.
  await page.getByRole('textbox', { name: 'URL' }).fill('https://hooks.internal/x');
  await page.getByRole('button', { name: 'Create subscription' }).click();
  await page.getByText('It must have a host on the public internet.').waitFor();
  assert.equal(await page.getByRole('textbox', { name: 'URL' }).getAttribute('aria-invalid'), 'true');
});

test('a reload resumes without a question, and sign-out ends every tab', async () => {
  const account = await createTestAccount(server);
  const { page, problems, follow } = await openConsole(
    browser,
    server,
    account,
    '/console/subscriptions/new',
  );
  await page.reload();
  await page.getByRole('heading', { name: 'New subscription' }).waitFor();
  assert.equal(page.url(), `${server.baseUrl}/console/subscriptions/new`);
  const stored = await page.evaluate('JSON.stringify([{ ...localStorage }, { ...sessionStorage }])');
  assert.doesNotMatch(String(stored), /eyJ|token|verifier/i);
  const second = await page.context().newPage();
  await second.goto(`${server.baseUrl}/console/subscriptions`);
  await second.getByRole('heading', { name: 'Subscriptions', exact: true }).waitFor();
  await page.getByRole('button', { name: account.name }).click();
  await page.getByRole('menuitem', { name: 'Sign out' }).click();
  await second.getByRole('dialog', { name: 'You are signed out' }).waitFor();
  await page.getByRole('button', { name: /sign out/i }).click();
  await page.getByText('You are signed out').waitFor();
  await second.getByRole('button', { name: 'Sign in again' }).click();
  await signIn(second, account);
  await second.getByRole('heading', { name: 'Subscriptions', exact: true }).waitFor();
  await follow('/console/subscriptions');
  assert.deepEqual(problems, []);
});

test('a withdrawn access token is replaced, and a withdrawn grant asks to sign in', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions');
  await sql`update grants set withdrawn_at = now() where account_id = ${account.id}`.execute(server.db);
  // The withdrawal takes effect on this node when its notification arrives.
  await until(
    async () => {
      // Simulates a return to the tab, which reloads the data.
      await page.evaluate("dispatchEvent(new Event('visibilitychange'))");
      return page.getByRole('dialog', { name: 'You are signed out' }).count();
    },
    (count) => count === 1,
  );
});

test('an unsolicited authorization response signs nobody in', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions');
  await page.goto(`${server.baseUrl}/console/callback?code=stolen&state=x&iss=${server.baseUrl}`);
  await page.getByText('This sign-in has expired or was started in another tab.').waitFor();
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Apps', exact: true }).waitFor();
});

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults on the pages of subscriptions ${where}`, async () => {
    const account = await createTestAccount(server);
    const { page, problems } = await openConsole(browser, server, account, '/console/subscriptions', options);
    assert.deepEqual(await accessibilityErrors(page), []);
    await page.getByRole('link', { name: 'New subscription' }).first().click();
    await page.getByText('All kinds').click();
    await page.getByText('Advanced settings').click();
    assert.deepEqual(await accessibilityErrors(page), []);
    const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
    assert.equal(overflow, 0);
    assert.deepEqual(problems, []);
  });
}
