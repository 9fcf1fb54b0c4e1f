/** Health, events and the operator's pages in the console. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { Page } from 'playwright-core';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount, mintAccessToken } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { pagePlaces } from '../support/console/places.ts';
import { reject } from '../support/publishing/rejected_events.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);
const operatorPages = [
  '',
  '/accounts',
  '/apps',
  '/subscriptions',
  '/rejected',
  '/audit',
  '/doctor',
  '/settings',
];

test('an example event is sent from the catalogue, and health counts it', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url, description: 'Orders' });
  const { page, problems, follow } = await openConsole(browser, server, user.account, '/console/events');
  await page.getByRole('link', { name: 'invoice.paid' }).click();
  await page.getByText('An invoice of the user was paid.').waitFor();
  await page.getByRole('tab', { name: 'Schema' }).click();
  await page.getByText('"minimum": 0').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await page.getByRole('button', { name: 'Send', exact: true }).click();
  await page.getByRole('heading', { name: 'invoice.paid' }).waitFor();
  const [received] = await subscriber.waitFor(1);
  assert.equal(received?.headers['nuncio-event'], 'invoice.paid');

  subscriber.behave(answer(503));
  await publish(publisher, user.account, ['fails']);
  await subscriber.waitFor(3);
  await follow(`/console/subscriptions/${id}?tab=health`);
  await page.getByText('Server error (5xx)').waitFor();
  await page.getByRole('img', { name: 'Deliveries over time by outcome' }).waitFor();
  await page.getByText('As a table').first().click();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await follow('/console/health');
  await page.getByText('Success rate', { exact: true }).waitFor();
  await page.getByText(/^about (?:< )?[\d.]+ m?s$/).waitFor();
  assert.deepEqual(problems, []);
});

test('an administrator verifies and suspends apps, disables accounts and subscriptions, and sees who did it', async () => {
  const developer = await createConsoleUser(server);
  const made = await developer.request('POST', '/apps', {
    json: { client_name: 'Zeppelin', redirect_uris: ['https://z.example/cb'], scope: 'read:posts' },
  });
  assert.equal(made.status, 201);
  const { id } = await subscribe(developer, { url: 'https://example.com/zeppelin' });
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator');
  await page.getByText('Pending events').waitFor();
  await page.getByText('alive').waitFor();

  await page.getByRole('link', { name: 'All apps' }).click();
  await page.getByRole('searchbox', { name: 'Name begins with' }).fill('Zepp');
  await page.getByRole('button', { name: 'Verify Zeppelin' }).click();
  await page.getByRole('textbox', { name: 'Reason' }).fill('We know them.');
  await page.getByRole('alertdialog').getByRole('button', { name: 'Verify' }).click();
  await page.getByText('Zeppelin is verified.').waitFor();
  await page.getByRole('button', { name: 'Suspend Zeppelin' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Suspend' }).click();
  await page.locator('td').getByText('suspended').waitFor();
  const { body } = await developer.request('GET', `/apps/${made.body.client_id}`);
  assert.equal(body.state, 'suspended');

  await page.getByRole('link', { name: 'All subscriptions' }).click();
  await page.getByRole('button', { name: 'Disable https://example.com/zeppelin' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Disable' }).click();
  await page.locator('tr', { hasText: id }).getByText('paused').waitFor();

  await page.getByRole('link', { name: 'Accounts' }).click();
  const { email } = developer.account;
  await page.getByRole('searchbox', { name: 'Email begins with' }).fill(email);
  await page.getByRole('button', { name: `Disable ${email}` }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Disable' }).click();
  await page.locator('td').getByText('disabled').waitFor();

  await page.getByRole('link', { name: 'Audit log', exact: true }).click();
  await page.getByText('We know them.').waitFor();
  await page.getByRole('searchbox', { name: 'Kind begins with' }).fill('account');
  await page.getByText('We know them.').waitFor({ state: 'detached' });
  await page.getByRole('link', { name: 'Settings' }).click();
  const shownValue = (name: string) =>
    page.locator('.setting', { hasText: name }).locator('dd').textContent();
  await page.getByText('NUNCIO_RETRY_SCHEDULE').waitFor();
  assert.equal(await shownValue('NUNCIO_RETRY_SCHEDULE'), '1 s');
  assert.equal(await shownValue('NUNCIO_INSECURE_SUBSCRIBERS'), 'on');
  const quotas = await shownValue('webhooks.quotas');
  assert.match(quotas ?? '', /^responseBytesPerDay: 64 MiB$/m);
  assert.match(quotas ?? '', /^hostRate: 20,000 per second$/m);
  assert.deepEqual(problems, []);
});

test('a suspended app’s tokens stop, its owner reads why, and a reinstated app works again', async () => {
  const developer = await createConsoleUser(server);
  const json = { client_name: 'Suspicious', redirect_uris: ['https://s.example/cb'] };
  const { body: app } = await developer.request('POST', '/apps', { json });
  const user = await createTestAccount(server);
  const mint = () =>
    mintAccessToken(server, { account: user, client: { id: app.client_id }, scopes: ['read:profile'] });
  const { accessToken } = await mint();
  const ask = async (token: string) => {
    const response = await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${token}` } });
    await response.arrayBuffer();
    return response.status;
  };
  assert.equal(await ask(accessToken), 200);
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator/apps');
  await page.getByRole('searchbox', { name: 'Name begins with' }).fill('susp');
  await page.getByRole('button', { name: 'Suspend Suspicious' }).click();
  const dialog = page.getByRole('alertdialog');
  await dialog.getByRole('textbox', { name: 'Reason' }).fill('It collects what it should not.');
  await dialog.getByRole('button', { name: 'Suspend' }).click();
  await page.locator('td').getByText('Suspended', { exact: true }).waitFor();
  await until(
    () => ask(accessToken),
    (status) => status === 401,
  );
  const owner = await openConsole(browser, server, developer.account, `/console/apps/${app.client_id}`);
  await owner.page.getByText('This app is suspended').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(owner.page), []);
  await page.getByRole('link', { name: 'Audit log of Suspicious' }).click();
  await page.getByText('It collects what it should not.').waitFor();
  await page.goBack();
  await page.getByRole('searchbox', { name: 'Name begins with' }).fill('susp');
  await page.getByRole('button', { name: 'Reinstate Suspicious' }).click();
  await dialog.getByRole('button', { name: 'Reinstate' }).click();
  await page.getByText('Suspicious reinstated.').waitFor();
  assert.equal(await ask((await mint()).accessToken), 200);
  assert.deepEqual([...problems, ...owner.problems], []);
});

test('the audit log and all subscriptions show names with links, and unclipped ids to copy', async () => {
  const app = await createApp(server, {
    account: await createTestAccount(server, { email: 'someone.with.a.long.address@subscribers.example' }),
  });
  await sql`update clients set name = 'Archive of all articles' where id = ${app.clientId}`.execute(
    server.db,
  );
  const { id } = await subscribe(app, { url: 'https://example.com/archive' });
  const admin = await createTestAccount(server, { isAdmin: true });
  const actor = await createConsoleUser(server, { account: admin, isAdmin: true });
  await actor.request('POST', `/admin/subscriptions/${id}/disable`, { json: {} });
  await actor.request('DELETE', `/admin/grants/${app.grantId}`);
  const { page, problems } = await openConsole(
    browser,
    server,
    admin,
    `/console/operator/audit?client=${app.clientId}`,
  );
  const row = page.locator('tr', { hasText: 'grant.withdrawn' });
  await row.getByRole('link', { name: 'someone.with.a.long.address@subscribers.example' }).waitFor();
  await row.getByRole('link', { name: admin.email }).waitFor();
  assert.deepEqual(await clipped(page), []);
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  // A browser without a screen has no clipboard.
  await page.evaluate(
    "Object.defineProperty(navigator, 'clipboard', { value: { writeText: async (text) => { copied = text; } } })",
  );
  await row.getByRole('button', { name: `Copy client ID ${app.clientId}` }).click();
  await row.getByRole('button', { name: 'Copied' }).waitFor();
  assert.equal(await page.evaluate('copied'), app.clientId);
  await row.getByRole('link', { name: 'Archive of all articles' }).click();
  await page.getByRole('heading', { name: 'Archive of all articles' }).waitFor();
  await page.goBack();
  await row.getByRole('link', { name: 'someone.with.a.long.address@subscribers.example' }).click();
  await page.getByRole('heading', { name: 'Account', exact: true }).waitFor();
  await page.getByText(app.account.id).waitFor();
  assert.equal(await page.locator('tbody tr').count(), 1);
  await page.getByRole('navigation', { name: 'Breadcrumbs' }).getByRole('link', { name: 'Accounts' }).click();
  await page.getByRole('heading', { name: 'Accounts', exact: true }).waitFor();

  const other = await createApp(server, { account: app.account });
  await sql`update clients set name = 'Second app' where id = ${other.clientId}`.execute(server.db);
  await subscribe(other, { url: 'https://example.com/second' });
  await page.getByRole('link', { name: 'All subscriptions' }).click();
  const subscription = page.locator('tr', { hasText: 'https://example.com/second' });
  await subscription.getByRole('link', { name: 'Second app' }).waitFor();
  await subscription.getByRole('link', { name: 'someone.with.a.long.address@subscribers.example' }).waitFor();
  assert.deepEqual(await clipped(page), []);
  assert.deepEqual(problems, []);
});

/** Texts of cells that are wider than what shows of them. */
function clipped(page: Page): Promise<string[]> {
  return page.evaluate(`[...document.querySelectorAll('.table-scroll, .table-scroll td, .table-scroll td *')]
    .filter((element) => element.scrollWidth > element.clientWidth && element.clientWidth > 0
      && getComputedStyle(element).overflowX !== 'visible')
    .map((element) => element.textContent)`);
}

test('the doctor’s page shows what is wrong with its advice, and examines again', async () => {
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator/doctor');
  // The PostgreSQL of the tests gives up durability for speed.
  const row = page.getByRole('listitem').filter({ hasText: 'database.fsync' });
  await row.getByText('fsync is off: a power failure destroys the database').waitFor();
  await row.getByText('Set fsync = on.').waitFor();
  await row.getByText('Error', { exact: true }).waitFor();
  const parked = page.getByRole('listitem').filter({ hasText: 'events.parked' });
  await parked.getByText('no event is parked').waitFor();
  await sql`insert into parked_events (position, day, turn, reason) values (7, current_date, gen_random_uuid(), 'odd')`.execute(
    server.db,
  );
  await page.getByRole('button', { name: 'Examine again' }).click();
  await parked.getByText('1 event could not be fanned out (odd)').waitFor();
  await sql`delete from parked_events`.execute(server.db);
  assert.deepEqual(problems, []);
});

test('an administrator enables an account again, and cannot disable their own', async () => {
  const account = await createTestAccount(server, { email: 'zoe@search.example' });
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator/accounts');
  const email = page.getByRole('searchbox', { name: 'Email begins with' });
  await email.fill('zoe@');
  const dialog = page.getByRole('alertdialog');
  await page.getByRole('button', { name: `Disable ${account.email}` }).click();
  await dialog.getByRole('button', { name: 'Disable' }).click();
  await page.getByRole('button', { name: `Enable ${account.email}` }).click();
  await dialog.getByRole('button', { name: 'Enable' }).click();
  await page.getByText(`${account.email} can sign in again.`).waitFor();
  await email.fill(admin.email);
  await page.getByText('you', { exact: true }).waitFor();
  assert.equal(await page.getByRole('button', { name: /^Disable/ }).count(), 0);
  assert.deepEqual(problems, []);
});

test('an administrator corrects a rejected event, and its subscriber gets it', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const rejected = await reject(server, app.account.id, { ref: 7, commits: [], repository: { name: 'x' } });
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator');
  await page.getByRole('link', { name: 'Rejected events' }).click();
  const row = page.locator('tr', { hasText: rejected.eventId });
  await row.getByText('/body/ref must be string').waitFor();
  await row.getByText(app.account.id).waitFor();

  // The unchanged event is rejected again, and the dialog says why.
  await row.getByRole('button', { name: 'Retry' }).click();
  const dialog = page.getByRole('alertdialog');
  await dialog.getByRole('button', { name: 'Retry' }).click();
  await dialog.getByRole('alert').getByText('body/ref').waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();

  await row.getByRole('link', { name: 'push' }).click();
  const body = page.getByRole('textbox', { name: 'Body (JSON)' });
  assert.deepEqual(JSON.parse(await body.inputValue()).ref, 7);
  for (const [text, says] of [
    ['{"ref": ', 'This is not JSON'],
    ['{"ref": 12345678901234567890}', 'would not be sent exactly'],
    ['{"ref": 8}', 'This '],
  ] as const) {
    await body.fill(text);
    await page.getByRole('button', { name: 'Retry' }).click();
    await page.locator('.field-error').getByText(says).waitFor();
    assert.equal(await body.getAttribute('aria-invalid'), 'true', text);
    assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  }
  await body.fill('{"ref": "refs/heads/mended", "commits": [], "repository": {"name": "x"}}');
  await page.getByRole('textbox', { name: 'Kind' }).fill('');
  await page.getByRole('button', { name: 'Retry' }).click();
  await page.getByText('Enter a kind.').waitFor();
  await page.getByRole('textbox', { name: 'Kind' }).fill('push');
  await page.getByRole('button', { name: 'Retry' }).click();
  await page.getByText('push is published.').waitFor();
  const [received] = await subscriber.waitFor(1);
  assert.match(received?.body ?? '', /mended/);
  await row.waitFor({ state: 'detached' });
  // The browser itself logs each refused request.
  assert.deepEqual(
    problems.filter((problem) => !problem.includes('422')),
    [],
  );
});

test('rejected events are discarded one by one and several at once, by the keyboard too', async () => {
  const { id } = await createTestAccount(server);
  const made = [];
  for (let number = 0; number < 4; number += 1) made.push(await reject(server, id, { ref: number }));
  const [first, second, third, fourth] = made.map(({ eventId }) => eventId);
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, problems } = await openConsole(browser, server, admin, '/console/operator/rejected');
  const dialog = page.getByRole('alertdialog');
  await page.getByRole('button', { name: `Discard push ${first}` }).focus();
  await page.keyboard.press('Enter');
  await dialog.getByText('cannot be undone').waitFor();
  await page.keyboard.press('Escape');
  await dialog.waitFor({ state: 'detached' });
  await page.getByRole('button', { name: `Discard push ${first}` }).click();
  await dialog.getByRole('button', { name: 'Discard' }).click();
  await page.locator('tr', { hasText: first as string }).waitFor({ state: 'detached' });

  assert.equal(await page.getByRole('button', { name: 'Discard selected' }).isDisabled(), true);
  for (const event of [second, third]) {
    await page.getByRole('checkbox', { name: `Select push ${event}` }).focus();
    await page.keyboard.press('Space');
  }
  await page.getByRole('button', { name: 'Discard 2 events' }).click();
  // Another administrator discards one of them first. It disappears here, too.
  await sql`delete from rejected_events where event_id = ${third}`.execute(server.db);
  await dialog.getByRole('button', { name: 'Discard' }).click();
  await page.getByText('Discarded 2 events.').waitFor();
  // The list is read again after the message.
  for (const event of [second, third]) {
    await page.locator('tr', { hasText: event as string }).waitFor({ state: 'detached' });
  }
  await page.locator('tr', { hasText: fourth as string }).waitFor();
  const { rows } = await sql`select from rejected_events where event_id = any(${[second, third]})`.execute(
    server.db,
  );
  assert.equal(rows.length, 0);

  await page.getByRole('checkbox', { name: /^Select all/ }).focus();
  await page.keyboard.press('Space');
  await page.getByRole('button', { name: /^Discard \d+ event/ }).click();
  await dialog.getByRole('button', { name: 'Discard' }).click();
  await page.getByText('No rejected events').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  assert.deepEqual(
    problems.filter((problem) => !problem.includes('404')),
    [],
  );
});

test('the page of a missing rejected event says so, and a failed list can be retried', async () => {
  const admin = await createTestAccount(server, { isAdmin: true });
  const { page, follow } = await openConsole(
    browser,
    server,
    admin,
    '/console/operator/rejected/01890000-0000-7000-8000-000000000000',
  );
  await page.getByText('Not found').waitFor();
  const isList = (url: URL) => url.pathname === '/admin/rejected-events';
  await page.route(isList, (route) => route.abort());
  await follow('/console/operator/rejected');
  await page.getByRole('alert').getByText('cannot be reached').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await page.unroute(isList);
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.getByText('No rejected events').waitFor();
});

test('other users see no operator page, also by its address', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/operator/accounts');
  await page.getByText('You do not have access').waitFor();
  assert.equal(await page.getByRole('link', { name: 'Audit log' }).count(), 0);
});

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults on the operator’s pages ${where}`, async () => {
    const admin = await createTestAccount(server, { isAdmin: true });
    const rejected = await reject(server, admin.id, { ref: 7, commits: [{ id: 'x' }] });
    const { page, problems, follow } = await openConsole(browser, server, admin, '/console/events', options);
    const parts = [...operatorPages, `/rejected/${rejected.id}`];
    for (const path of ['/console/events', ...parts.map((part) => `/console/operator${part}`)]) {
      await follow(path);
      await page.getByRole('status', { name: 'Loading' }).first().waitFor({ state: 'detached' });
      assert.deepEqual(await accessibilityErrors(page), [], path);
      assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0, path);
    }
    assert.deepEqual(problems, []);
  });
}
