/** Apps in the console: from creation to the first request, their secrets, members and deletion. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { sql } from 'kysely';
import type { Page } from 'playwright-core';
import { samplesFor } from '../../src/console/pages/apps/sample_code.ts';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount, postForm, type TestClient } from '../support/clients/oauth.ts';
import { connectApp } from '../support/console/connect_app.ts';
import {
  accessibilityErrors,
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { pagePlaces, phone, storyPlaces } from '../support/console/places.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);
const run = promisify(execFile);

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true });
const field = (page: Page, name: string) => page.getByRole('textbox', { name, exact: true });

/** Creates an app over the API. Returns its representation. */
async function createAppFor(user: Awaited<ReturnType<typeof createConsoleUser>>, fields: object = {}) {
  const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'], ...fields };
  const made = await user.request('POST', '/apps', { json });
  assert.equal(made.status, 201, made.text);
  return made.body;
}

test('the form of a new app folds the OAuth settings of its kind, and an error opens them', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/apps/new');
  const settings = page.getByRole('heading', { name: 'OAuth settings' });
  const summary = page.getByText('Advanced: OAuth settings');
  await summary.waitFor();
  assert.equal(await settings.isVisible(), false);
  await page.getByText('Machine to machine').click();
  await summary.click();
  await settings.waitFor();
  assert.equal(await page.getByRole('checkbox', { name: /^Client credentials/ }).isChecked(), true);
  assert.equal(await page.getByRole('checkbox', { name: /^Authorization code/ }).isChecked(), false);
  assert.equal(await page.getByRole('radio', { name: /^Secret in a header/ }).isChecked(), true);
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  const none = page.getByRole('radio', { name: /^None/ }).first();
  await until(
    async () => {
      await none.click({ force: true });
      return none.isChecked();
    },
    (isChecked) => isChecked,
  );
  await summary.click();
  await settings.waitFor({ state: 'hidden' });
  await field(page, 'Name').fill('Nightly');
  await button(page, 'Create app').click();
  await page.getByText('The client credentials grant needs client authentication.').waitFor();
});

for (const [where, options] of storyPlaces) {
  test(`a developer creates an app, sees errors at once, connects it, subscribes it and withdraws it ${where}`, async (t) => {
    const home = await startSubscriber(t, answer(200));
    const account = await createTestAccount(server);
    const { page, problems } = await openConsole(
      // A single-process browser can open only one window with another origin policy.
      await startBrowser(t),
      server,
      account,
      '/console/apps',
      options,
    );
    await page.getByText('No apps yet').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    await page.getByRole('link', { name: 'New app' }).first().click();
    await button(page, 'Create app').click();
    await page.getByText('Enter a name.').waitFor();
    await field(page, 'Name').fill('Reader');
    const redirect = field(page, 'Redirect URI');
    for (const [uri, message] of [
      ['reader.example/callback', 'Enter a full URL'],
      ['http://reader.example/callback', 'Use https://. Plain http is allowed for localhost only.'],
      ['https://reader.example/callback#here', 'Fragments (#…) are not allowed.'],
      ['https://*.reader.example/', 'Wildcards are not supported'],
      ['https://me:secret@reader.example/', 'User names and passwords are not allowed.'],
      ['javascript:alert(1)', 'URIs that begin with javascript: are not allowed.'],
      ['com.example.reader:/callback', 'Other schemes are for installed apps.'],
      [`${server.baseUrl}/console/callback`, 'This is an address of this server.'],
    ] as const) {
      await redirect.fill(uri);
      await page.getByText(message).waitFor();
    }
    await redirect.fill(`${home.url}/callback`);
    await page.getByText('Any port works.').waitFor();
    await page.getByText('read the user’s articles and comments').click();
    await page.getByText('see its subscriptions to the user’s events').click();
    await page.getByText('receive the user’s events as they happen').click();
    assert.deepEqual(await accessibilityErrors(page), []);
    await button(page, 'Create app').click();

    await page.getByText('It is shown only once').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    const { consent, accessToken } = await connectApp(page, server, `${home.url}/callback`);
    const headers = { authorization: `Bearer ${accessToken}` };
    assert.match(await (await fetch(`${server.baseUrl}/api`, { headers })).text(), new RegExp(account.id));
    await page.getByRole('tab', { name: 'Overview' }).click();
    await page.getByRole('link', { name: 'API reference' }).waitFor();

    await page.getByRole('tab', { name: 'Subscriptions' }).click();
    await page.getByRole('link', { name: 'New subscription' }).click();
    await field(page, 'URL').fill(`${home.url}/hooks`);
    await page.getByText('All kinds').click();
    await button(page, 'Create subscription').click();
    await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();
    const hooks = () => home.received.filter(({ path }) => path === '/hooks');
    await publish(publisher, account, ['allowed']);
    await until(
      async () => hooks().length,
      (count) => count === 1,
    );
    assert.match(hooks()[0]?.body ?? '', /allowed/);

    await consent.goto(`${server.baseUrl}/account`);
    const reader = consent.locator('li', { hasText: 'Reader' });
    await reader.locator('summary').first().click();
    await reader.getByRole('button').click();
    await consent.getByText('is disconnected').waitFor();
    await publish(publisher, account, ['withdrawn']);
    await button(page, 'Send test event').click();
    await until(
      async () => hooks().length,
      (count) => count === 2,
    );
    assert.equal(hooks()[1]?.headers['nuncio-event'], 'ping');
    assert.deepEqual(problems, []);
  });
}

test('an app has at most two secrets, each shown once, and keeps its last', async () => {
  const account = await createTestAccount(server);
  const user = await createConsoleUser(server, { account });
  const app = await createAppFor(user);
  const path = `/console/apps/${app.client_id}?tab=credentials`;
  const { page, problems } = await openConsole(browser, server, account, path);
  await page.getByText('The last secret cannot be deleted.').waitFor();
  await button(page, 'New secret').click();
  const shown = page.getByRole('status').filter({ hasText: 'It is shown only once' });
  const secret = String(await shown.locator('code').textContent());
  assert.ok(await button(page, 'New secret').isDisabled());
  const client = { id: app.client_id, secret, authMethod: app.token_endpoint_auth_method } as TestClient;
  const isTaken = async (given: TestClient) => {
    const { body } = await postForm(server, '/oauth/token', given, {
      grant_type: 'refresh_token',
      refresh_token: 'x',
    });
    return body.error !== 'invalid_client';
  };
  assert.ok(await isTaken(client));
  await page.reload();
  await button(page, 'Delete secret 2').waitFor();
  assert.ok(!(await page.content()).includes(secret));
  await button(page, 'Delete secret 1').click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByText('The last secret cannot be deleted.').waitFor();
  assert.ok(await isTaken(client));
  assert.ok(!(await isTaken({ ...client, secret: app.client_secret })));
  assert.deepEqual(problems, []);
});

test('an owner invites a developer, who accepts, works on the app, manages nobody and leaves', async () => {
  const [owner, developer] = [await createTestAccount(server), await createTestAccount(server)];
  const app = await createAppFor(await createConsoleUser(server, { account: owner }), {
    client_name: 'Shared',
  });
  const members = `/console/apps/${app.client_id}?tab=members`;
  const first = await openConsole(browser, server, owner, members);
  await first.page.getByText('An app needs an owner.').waitFor();
  await field(first.page, 'Email address').fill(developer.email);
  await button(first.page, 'Invite').click();
  await first.page.getByText('Invited', { exact: true }).waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(first.page), []);

  const second = await openConsole(browser, server, developer, '/console/apps');
  await second.page.getByText('to Shared').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(second.page), []);
  await button(second.page, 'Accept').click();
  await second.page.getByRole('link', { name: 'Shared' }).click();
  await second.page.getByRole('tab', { name: 'Members' }).click();
  await button(second.page, 'Leave the app').waitFor();
  assert.equal(await field(second.page, 'Email address').count(), 0);
  assert.equal(await second.page.getByRole('button', { name: /^(?:Remove|Role of)/ }).count(), 0);
  await second.page.getByRole('tab', { name: 'Settings' }).click();
  await second.page.getByText('Only an owner can delete the app.').waitFor();
  assert.equal(await button(second.page, 'Delete app').count(), 0);
  await field(second.page, 'Home page').fill('https://shared.example/');
  await button(second.page, 'Save').click();
  await second.page.getByText('Saved.').waitFor();

  await first.page.reload();
  await first.page.getByRole('button', { name: /Role of/ }).click();
  await first.page.getByRole('option', { name: 'Owner' }).click();
  await first.page.getByText('is now an owner.').waitFor();
  await second.page.reload();
  await button(second.page, 'Delete app').waitFor();
  await second.page.getByRole('tab', { name: 'Members' }).click();
  await button(second.page, 'Leave the app').click();
  await second.page.getByRole('alertdialog').getByRole('button', { name: 'Leave' }).click();
  await second.page.getByText('No apps yet').waitFor();
  assert.deepEqual([...first.problems, ...second.problems], []);
});

test('an app’s own subscription is created on its page', async (t) => {
  const subscriber = await startSubscriber(t);
  const account = await createTestAccount(server);
  const app = await createAppFor(await createConsoleUser(server, { account }));
  const path = `/console/apps/${app.client_id}?tab=subscriptions`;
  const { page, problems } = await openConsole(browser, server, account, path);
  await page.getByRole('link', { name: 'New subscription' }).click();
  await field(page, 'URL').fill(subscriber.url);
  await page.getByText('All kinds').click();
  await button(page, 'Create subscription').click();
  await button(page, 'Send test event').click();
  await subscriber.waitFor(1);
  await page.goBack();
  await page.goto(server.baseUrl + path);
  await page.getByRole('link', { name: subscriber.url }).waitFor();
  assert.deepEqual(problems, []);
});

test('an app is changed, and deleted by typing its name; a verified app’s review is announced', async () => {
  const account = await createTestAccount(server);
  const user = await createConsoleUser(server, { account });
  const app = await createAppFor(user);
  await sql`update clients set verified_at = now() where id = ${app.client_id}`.execute(server.db);
  const path = `/console/apps/${app.client_id}?tab=settings`;
  const { page, problems } = await openConsole(browser, server, account, path);
  const read = async () => (await user.request('GET', `/apps/${app.client_id}`)).body;
  assert.equal(await page.getByText('Saving removes the verification').count(), 0);
  await page.getByText('Privacy policy and terms').click();
  await field(page, 'Privacy policy').fill('https://reader.example/privacy');
  await page.getByText('Saving removes the verification').waitFor();
  await button(page, 'Add another').click();
  await field(page, 'Redirect URI 2').fill('https://reader.example/second');
  await page.getByText('Saving removes the verification').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await button(page, 'Save').click();
  await page.getByText('Unverified', { exact: true }).waitFor();
  assert.deepEqual(
    [(await read()).redirect_uris.length, (await read()).policy_uri],
    [2, 'https://reader.example/privacy'],
  );

  await button(page, 'Delete app').click();
  const dialog = page.getByRole('alertdialog');
  assert.ok(await dialog.getByRole('button', { name: 'Delete permanently' }).isDisabled());
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await dialog.getByRole('textbox').fill('Reader');
  await dialog.getByRole('button', { name: 'Delete permanently' }).click();
  await page.getByText('No apps yet').waitFor();
  assert.equal((await user.request('GET', `/apps/${app.client_id}`)).status, 404);
  assert.deepEqual(problems, []);
});

test('the selected tab is visible on a phone, also when a link leads to it', async () => {
  const account = await createTestAccount(server);
  const app = await createAppFor(await createConsoleUser(server, { account }));
  const path = `/console/apps/${app.client_id}?tab=settings`;
  const { page, problems } = await openConsole(browser, server, account, path, phone);
  const isSeen = (name: string) =>
    until(
      () =>
        page.getByRole('tab', { name, exact: true }).evaluate((tab) => {
          const { left, right } = tab.getBoundingClientRect();
          return left >= 0 && right <= 390;
        }),
      (seen) => seen,
    );
  await isSeen('Settings');
  await page.getByRole('tab', { name: 'Settings', exact: true }).press('Home');
  await isSeen('Overview');
  assert.deepEqual(problems, []);
});

test('an app is created by keyboard alone', async () => {
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account, '/console/apps');
  const press = (key: string) => page.keyboard.press(key);
  /** Presses Tab until the wanted element has the focus. */
  const reach = async (role: string, name: string) => {
    for (let count = 0; count < 80; count += 1) {
      await press('Tab');
      const found = page.getByRole(role as 'button', { name }).and(page.locator(':focus'));
      if ((await found.count()) > 0) return;
    }
    assert.fail(`${role} ${name} is not reached`);
  };
  await page.getByText('No apps yet').waitFor();
  await reach('link', 'New app');
  await press('Enter');
  await page.getByRole('heading', { name: 'New app' }).waitFor();
  await reach('textbox', 'Name');
  await page.keyboard.type('By keyboard');
  await reach('radio', 'Web app with a server');
  await press('ArrowDown');
  await press('ArrowDown');
  await reach('textbox', 'Redirect URI');
  await page.keyboard.type('com.example.reader:/callback');
  await reach('button', 'Select all');
  await press('Space');
  await reach('button', 'Create app');
  await press('Enter');
  await page.getByRole('heading', { name: 'By keyboard' }).waitFor();
  await page.getByText('This app has no secret').waitFor();
  assert.deepEqual(problems, []);
});

test('the code for openid-client and curl gets a token and calls the API', async (t) => {
  const user = await createConsoleUser(server);
  const machine = await createAppFor(user, { grant_types: ['client_credentials'], redirect_uris: [] });
  const env = { ...process.env, CLIENT_SECRET: machine.client_secret };
  const [node, , , curl] = samplesFor(machine, server.baseUrl);
  const file = new URL(`openid_client_${process.pid}.mjs`, new URL('../../build/', import.meta.url));
  t.after(() => import('node:fs').then(({ rmSync }) => rmSync(file, { force: true })));
  writeFileSync(file, String(node?.code));
  const { stdout } = await run(process.execPath, [file.pathname], { env });
  assert.ok(stdout.includes(machine.client_id), stdout);
  const [getToken = '', callApi = ''] = String(curl?.code).split('# 2.');
  const token = JSON.parse((await run('sh', ['-c', getToken.replace('curl', 'curl -s')], { env })).stdout);
  const called = await run('sh', ['-c', `#${callApi.replace('curl', 'curl -s')}`], {
    env: { ...env, ACCESS_TOKEN: token.access_token },
  });
  assert.ok(called.stdout.includes(machine.client_id), called.stdout);
});

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults on the pages of an app ${where}`, async () => {
    const account = await createTestAccount(server);
    const app = await createAppFor(await createConsoleUser(server, { account }), {
      grant_types: ['authorization_code', 'refresh_token', 'client_credentials'],
    });
    const { page, problems } = await openConsole(browser, server, account, '/console/apps', options);
    const check = async (where: string) => {
      await until(
        () => page.locator('.skeleton').count(),
        (count) => count === 0,
      );
      assert.deepEqual(await accessibilityErrors(page), [], where);
      const overflow = await page.evaluate('document.documentElement.scrollWidth - innerWidth');
      assert.equal(overflow, 0, where);
    };
    await page.getByRole('link', { name: 'Reader' }).waitFor();
    await check('list');
    await page.getByRole('link', { name: 'New app' }).click();
    await page.getByText('Privacy policy and terms').click();
    await check('new');
    await page.goto(`${server.baseUrl}/console/apps/${app.client_id}`);
    for (const tab of ['Overview', 'Credentials', 'Subscriptions', 'Members', 'Settings']) {
      await page.getByRole('tab', { name: tab, exact: true }).click();
      await check(tab);
    }
    assert.deepEqual(problems, []);
  });
}
