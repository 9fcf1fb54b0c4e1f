/** Accessibility: axe finds no violation on any page or dialog, and the operator's pages work with the keyboard alone. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Page } from 'playwright-core';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  hasFocus,
  openConsole,
  signIn,
  startConsoleServer,
  tabTo,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { pagePlaces, phone } from '../support/console/places.ts';
import { reject } from '../support/publishing/rejected_events.ts';
import { createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const browser = await startBrowser({ after });
/** Milliseconds for a click, and for what it opens, before it is repeated. */
const clickTimeoutMs = 10_000;
const publisher = await createPublisher(server);

async function check(page: Page, where: string): Promise<void> {
  await until(
    () => page.locator('.skeleton').count(),
    (count) => count === 0,
  );
  assert.deepEqual(await accessibilityErrors(page), [], where);
  assert.equal(
    await page.evaluate('document.documentElement.scrollWidth - innerWidth'),
    0,
    `${where}: width`,
  );
}

function authorizePath(client: { id: string; redirectUri: string }): string {
  const query = new URLSearchParams({
    client_id: client.id,
    redirect_uri: client.redirectUri,
    response_type: 'code',
    scope: 'read:posts read:profile',
    state: 'state',
    code_challenge: 'a'.repeat(43),
    code_challenge_method: 'S256',
  });
  return `/oauth/authorize?${query}`;
}

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults on the pages beside the console ${where}`, async () => {
    const account = await createTestAccount(server);
    const client = await createTestClient(server, { origin: 'account' });
    const { page } = await openPage(browser, options);
    for (const path of ['/', '/docs/', '/account', '/device', '/nothing', '/oauth/authorize?client_id=no']) {
      await page.goto(server.baseUrl + path);
      await check(page, path);
    }
    await page.goto(server.baseUrl + authorizePath(client));
    await check(page, 'login');
    await signIn(page, { email: account.email, password: 'wrong' });
    await page.getByRole('alert').waitFor();
    await check(page, 'login refused');
    await signIn(page, account);
    await page.getByRole('button', { name: 'Allow' }).waitFor();
    await check(page, 'consent');
    for (const path of ['/account', '/oauth/logout']) {
      await page.goto(server.baseUrl + path);
      await check(page, path);
    }
  });

  test(`axe finds no faults in the dialogs and remaining tabs of the console ${where}`, async (t) => {
    const subscriber = await startSubscriber(t, answer(500));
    const user = await createConsoleUser(server, { isAdmin: true });
    // Administrators can disable other accounts only.
    await createTestAccount(server);
    const { id } = await subscribe(user, { url: subscriber.url, description: 'Warehouse' });
    const made = await user.request('POST', '/apps', {
      json: { client_name: 'Reader', redirect_uris: ['https://reader.example/cb'], scope: 'read:posts' },
    });
    const app = `/console/apps/${made.body.client_id}`;
    await user.request('POST', `/apps/${made.body.client_id}/subscriptions`, {
      json: { url: subscriber.url, kinds: ['*'] },
    });
    await publish(publisher, user.account, ['one']);
    await subscriber.waitFor(2);
    await reject(server, user.account.id, { ref: 7 });
    const { page, follow } = await openConsole(browser, server, user.account, '/console/health', options);
    await page.getByRole('img', { name: 'Deliveries over time by outcome' }).waitFor();
    await check(page, 'health');
    for (const tab of ['overview', 'health', 'settings']) {
      await follow(`/console/subscriptions/${id}?tab=${tab}`);
      await check(page, `subscription ${tab}`);
    }
    await follow(`${app}?tab=subscriptions`);
    await page.getByRole('link', { name: subscriber.url }).waitFor();
    await check(page, 'subscriptions of an app');
    await follow('/console/notices');
    await page.getByText('A subscription keeps failing').waitFor();
    await check(page, 'notices');
    for (const path of ['/console/nothing', '/console/apps/none', '/console/subscriptions/none']) {
      await follow(path);
      await check(page, path);
    }
    const dialogs = [
      [`/console/subscriptions/${id}`, 'Rotate'],
      [`/console/subscriptions/${id}`, 'Delete'],
      [`/console/subscriptions/${id}`, 'Recover'],
      [`${app}?tab=settings`, 'Delete app'],
      ['/console/operator/apps', 'Suspend Reader'],
      ['/console/operator/accounts', 'Disable '],
      ['/console/operator/subscriptions', 'Disable '],
      ['/console/operator/rejected', 'Retry push'],
      ['/console/operator/rejected', 'Discard push'],
    ] as const;
    for (const [path, button] of dialogs) {
      await follow(path);
      await openDialog(page, button);
      await check(page, `${path}: ${button}`);
    }
    await follow('/console/events');
    if (options.viewport?.width === phone.viewport?.width)
      await page.getByRole('button', { name: 'Open navigation' }).click();
    await page.getByRole('button', { name: user.account.name }).click();
    await page.getByRole('menuitem', { name: 'Sign out' }).waitFor();
    await check(page, 'menu');
  });
}

/** Clicks again, as a user does, if a page that still loads its data has lost the first click. */
async function openDialog(page: Page, button: string): Promise<void> {
  const dialog = page.locator('[role=dialog], [role=alertdialog]');
  await until(
    async () => {
      await page
        .getByRole('button', { name: button })
        .first()
        .click({ timeout: clickTimeoutMs })
        .catch(() => {});
      return dialog.waitFor({ timeout: clickTimeoutMs }).then(
        () => true,
        () => false,
      );
    },
    (isOpen) => isOpen,
  );
}

test('a page reports when the server is unreachable or fails', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/apps');
  await page.getByText('No apps yet').waitFor();
  const answers = (url: URL) => url.pathname === '/subscriptions';
  await page.route(answers, (route) => route.abort());
  await page.getByRole('link', { name: 'Subscriptions' }).click();
  await page.getByText('The server cannot be reached.').waitFor();
  assert.deepEqual(await accessibilityErrors(page), []);
  await page.unroute(answers);
  await page.route(answers, (route) => route.fulfill({ status: 500, body: 'oops' }));
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.getByText('The server responded with 500.').waitFor();
  await page.unroute(answers);
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.getByText('No subscriptions yet').waitFor();
});

test('a row keeps the focus while the search of its list waits for the answer', async () => {
  const developer = await createConsoleUser(server);
  const json = { client_name: 'Focused', redirect_uris: ['https://f.example/cb'] };
  assert.equal((await developer.request('POST', '/apps', { json })).status, 201);
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page } = await openConsole(browser, server, admin, '/console/operator/apps');
  const suspend = page.getByRole('button', { name: 'Suspend Focused' });
  await suspend.waitFor();
  const answered = Promise.withResolvers<void>();
  await page.route('**/admin/apps?*name=Focu*', async (route) => {
    await answered.promise;
    await route.continue();
  });

  await page.getByRole('searchbox', { name: 'Name begins with' }).fill('Focu');
  await page.locator('[aria-busy=true]').waitFor();
  await tabTo(page, suspend);
  answered.resolve();
  await page.locator('[aria-busy=true]').waitFor({ state: 'detached' });

  assert.ok(await hasFocus(suspend));
});

test('an administrator verifies an app, disables an account and reads the audit log by keyboard alone', async () => {
  const developer = await createConsoleUser(server);
  const json = { client_name: 'Keyboardist', redirect_uris: ['https://k.example/cb'] };
  assert.equal((await developer.request('POST', '/apps', { json })).status, 201);
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator');
  const press = (key: string) => page.keyboard.press(key);
  const dialog = page.getByRole('alertdialog');

  await tabTo(page, page.getByRole('link', { name: 'All apps' }));
  await press('Enter');
  await page.getByRole('heading', { name: 'All apps' }).waitFor();
  await tabTo(page, page.getByRole('searchbox', { name: 'Name begins with' }));
  await page.keyboard.type('Keyb');
  const verify = page.getByRole('button', { name: 'Verify Keyboardist' });
  await tabTo(page, verify);
  await press('Enter');
  await dialog.waitFor();
  await press('Escape');
  await dialog.waitFor({ state: 'detached' });
  // The dialog gives the focus back a frame after it has gone.
  await until(() => hasFocus(verify), Boolean);
  await press('Enter');
  await tabTo(page, dialog.getByRole('textbox', { name: 'Reason' }));
  await page.keyboard.type('Read by keys.');
  await tabTo(page, dialog.getByRole('button', { name: 'Verify' }));
  await press('Enter');
  await page.getByText('Keyboardist is verified.').waitFor();

  await tabTo(page, page.getByRole('link', { name: 'Accounts' }));
  await press('Enter');
  await page.getByRole('heading', { name: 'Accounts' }).waitFor();
  const { email } = developer.account;
  await tabTo(page, page.getByRole('searchbox', { name: 'Email begins with' }));
  await page.keyboard.type(email);
  await tabTo(page, page.getByRole('button', { name: 'State' }));
  await press('Enter');
  await page.getByRole('option', { name: 'Active' }).waitFor();
  await press('ArrowDown');
  await press('Enter');
  await tabTo(page, page.getByRole('button', { name: `Disable ${email}` }));
  await press('Enter');
  await tabTo(page, dialog.getByRole('button', { name: 'Disable' }));
  await press('Enter');
  await page.getByText(`${email} is disabled.`).waitFor();

  await tabTo(page, page.getByRole('link', { name: 'Audit log', exact: true }));
  await press('Enter');
  await page.getByText('Read by keys.').waitFor();
  assert.deepEqual(problems, []);
});
