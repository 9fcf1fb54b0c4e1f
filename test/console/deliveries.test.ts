/** Deliveries in the console: they appear live, show why they failed, and can be sent again. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { after, test } from 'node:test';
import { promisify } from 'node:util';
import { verify as verifyGithub } from '@octokit/webhooks-methods';
import { sql } from 'kysely';
import { Webhook as StandardWebhook } from 'standardwebhooks';
import Stripe from 'stripe';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
  tabTo,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { pagePlaces, storyPlaces } from '../support/console/places.ts';
import { createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { accept, answer, type Received, startSubscriber } from '../support/webhooks/subscriber.ts';

// One retry after a second: a failing delivery soon fails for good, and its state no longer changes during the test.
const server = await startConsoleServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);

/** Each throws for a wrong signature. */
const verifyWithLibrary = {
  timestamp: ({ body, headers }: Received, secret: string) =>
    new Stripe('sk_test_nothing').webhooks.constructEvent(
      body,
      headers['nuncio-signature'] as string,
      secret,
    ),
  sha256: async ({ body, headers }: Received, secret: string) =>
    assert.ok(await verifyGithub(secret, body, headers['nuncio-signature'] as string)),
  standard: ({ body, headers }: Received, secret: string) =>
    new StandardWebhook(secret).verify(body, headers as Record<string, string>),
};

for (const [where, options] of storyPlaces) {
  test(`a delivery appears live, fails with a reason, is resent, and the others are recovered ${where}`, async (t) => {
    const subscriber = await startSubscriber(t);
    const user = await createConsoleUser(server);
    const { id } = await subscribe(user, { url: subscriber.url, description: 'Warehouse' });
    const path = `/console/subscriptions/${id}?tab=deliveries`;
    const { page, problems } = await openConsole(browser, server, user.account, path, options);
    await page.getByText('No deliveries yet').waitFor();

    await publish(publisher, user.account, ['first']);
    await page.getByRole('link', { name: 'push' }).waitFor();
    await page.getByText('Live', { exact: true }).waitFor();
    await page.locator('td').getByText('succeeded').waitFor();

    subscriber.behave((_received, response) => response.writeHead(500).end('warehouse offline'));
    await publish(publisher, user.account, ['second', 'third']);
    await page.locator('tr', { hasText: 'failed' }).nth(1).waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    await page.locator('tr', { hasText: 'failed' }).last().getByRole('link').click();
    await page.getByText('500: The receiver failed.').waitFor();
    await page.getByText('No automatic attempts are left.').waitFor();
    await page.getByText('warehouse offline').waitFor();
    await page.getByText(`curl -i --globoff '${subscriber.url}/'`).waitFor();
    await page.getByRole('button', { name: 'Attempt 1 500' }).click();
    await page.getByRole('list', { name: 'Timing' }).getByText('First byte').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);

    subscriber.behave(accept);
    await page.getByRole('button', { name: 'Resend' }).click();
    await page.locator('h1 ~ .badge').getByText('succeeded').waitFor();

    await page.getByRole('link', { name: 'Warehouse', exact: true }).click();
    await page.getByRole('button', { name: 'Recover' }).click();
    const dialog = page.getByRole('dialog', { name: 'Recover deliveries' });
    assert.deepEqual(await accessibilityErrors(page), []);
    await dialog.getByRole('button', { name: 'Recover' }).click();
    await dialog.getByText('Done').waitFor();
    await dialog.getByText('1 resent, 0 added.').waitFor();
    await dialog.getByRole('button', { name: 'Close' }).click();
    await page.locator('tr', { hasText: 'succeeded' }).nth(2).waitFor();
    const marks = subscriber.received.map(({ body }) => JSON.parse(body).ref.split('/').at(-1));
    assert.deepEqual([...new Set(marks)].sort(), ['first', 'second', 'third']);
    assert.deepEqual(problems, []);
  });
}

test('a second member sees an app’s deliveries and resends one, and sees nothing once removed', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const owner = await createConsoleUser(server);
  const member = await createConsoleUser(server);
  const json = { client_name: 'Shared', redirect_uris: ['https://shared.example/cb'], scope: 'read:posts' };
  const { body: app } = await owner.request('POST', '/apps', { json });
  const members = `/apps/${app.client_id}/members`;
  await owner.request('PUT', `${members}/${member.account.email}`, { json: { role: 'developer' } });
  const { body: invitations } = await member.request('GET', '/app-invitations');
  await member.request('POST', `/app-invitations/${invitations.items[0].id}/accept`, { json: {} });
  const made = await owner.request('POST', `/apps/${app.client_id}/subscriptions`, {
    json: { url: subscriber.url, description: 'Of the app', kinds: ['*'] },
  });
  await owner.request('POST', `/subscriptions/${made.body.id}/test`, { json: {} });
  await subscriber.waitFor(2);

  const path = `/console/apps/${app.client_id}?tab=subscriptions`;
  const { page } = await openConsole(browser, server, member.account, path);
  await page.getByRole('link', { name: 'Of the app' }).click();
  await page.getByRole('tab', { name: 'Deliveries' }).click();
  await page.getByRole('link', { name: 'ping' }).click();
  await page.getByText('500: The receiver failed.').waitFor();
  subscriber.behave(accept);
  await page.getByRole('button', { name: 'Resend' }).click();
  await page.locator('h1 ~ .badge').getByText('succeeded').waitFor();

  await owner.request('DELETE', `${members}/${member.account.id}`);
  await page.reload();
  await page.getByText('Not found').waitFor();
});

test('a response that was not stored is explained, and a binary one is labelled', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  await user.request('POST', `/subscriptions/${id}/test`, { json: {} });
  const { body } = await until(
    () => user.request('GET', `/subscriptions/${id}/deliveries?status=failed`),
    ({ body: list }) => list.items.length === 1,
  );
  const delivery = body.items[0];
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(
    server.db,
  );
  await sql`
    update attempts set response_omitted = true, headers = null, body = null
    where lane = ${rows[0]?.lane} and number = 2`.execute(server.db);
  await sql`update attempts set body = '\\xff00ff' where lane = ${rows[0]?.lane} and number = 1`.execute(
    server.db,
  );
  const path = `/console/deliveries/${delivery.id}`;
  const { page, problems } = await openConsole(browser, server, user.account, path);
  await page.getByText('The response is not stored').waitFor();
  await page.getByText('had filled their storage for that day (UTC)').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await page.getByRole('button', { name: 'Attempt 1 500' }).click();
  await page.getByText('Response (body in base64)').waitFor();
  assert.equal(await page.getByText('The response is not stored').count(), 0);
  assert.deepEqual(problems, []);
});

test('the log filters by state, kind, time and id', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  await publish(publisher, user.account, ['one', 'two']);
  await user.request('POST', `/subscriptions/${id}/test`, { json: {} });
  await subscriber.waitFor(3);
  const path = `/console/subscriptions/${id}?tab=deliveries`;
  const { page, problems } = await openConsole(browser, server, user.account, path);
  const rows = page.locator('tbody tr');
  await rows.nth(2).waitFor();
  const choose = async (field: string, choice: string) => {
    await page.getByRole('button', { name: field }).click();
    await page.getByRole('option', { name: choice, exact: true }).click();
  };
  await choose('Kind', 'ping');
  // The list is empty while it reloads.
  await rows.filter({ hasText: 'push' }).first().waitFor({ state: 'detached' });
  await rows.first().waitFor();
  assert.equal(await rows.count(), 1);
  const delivery = (await rows.getByRole('link').getAttribute('href'))?.split('/').at(-1) as string;
  await choose('Kind', 'All kinds');
  await rows.nth(2).waitFor();
  await choose('State', 'Failed');
  await page.getByText('No matching deliveries').waitFor();
  await page.getByRole('button', { name: 'Clear filters' }).click();
  await rows.nth(2).waitFor();
  await choose('Time', 'Last hour');
  await rows.nth(2).waitFor();
  await page.getByRole('textbox', { name: 'Delivery ID' }).fill(delivery);
  await rows.filter({ hasText: 'push' }).first().waitFor({ state: 'detached' });
  await rows.first().waitFor();
  assert.match((await rows.first().textContent()) ?? '', /ping/);
  assert.deepEqual(problems, []);
});

test('a retried delivery shows its last response in a warning color, and the filter Failing finds it', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url, retry_schedule: [120] });
  await publish(publisher, user.account, ['accepted']);
  await subscriber.waitFor(1);
  subscriber.behave(answer(500));
  await publish(publisher, user.account, ['refused']);
  const path = `/console/subscriptions/${id}?tab=deliveries`;
  const { page, problems } = await openConsole(browser, server, user.account, path);
  const rows = page.locator('tbody tr');
  await rows.nth(1).waitFor();
  await page.getByRole('button', { name: 'State' }).click();
  await page.getByRole('option', { name: 'Failing', exact: true }).click();
  await rows.filter({ hasText: 'Succeeded' }).waitFor({ state: 'detached' });
  const badge = rows.locator('.badge-warn').getByText(/^Retrying · 500 · next in \d+ (?:s|min)$/);
  await badge.waitFor();
  assert.equal(await rows.count(), 1);
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  await rows.getByRole('link', { name: 'push' }).click();
  await page.locator('h1 ~ .badge-warn').getByText('Retrying · 500').waitFor();
  await page.goBack();
  await page.getByRole('button', { name: 'State' }).click();
  await page.getByRole('option', { name: 'Failing', exact: true }).click();
  await badge.waitFor();
  subscriber.behave(accept);
  const { body } = await user.request('GET', `/subscriptions/${id}/deliveries?status=failing`);
  await user.request('POST', `/deliveries/${body.items[0].id}/resend`, { json: {} });
  // It leaves the list.
  await page.getByText('No matching deliveries').waitFor();
  assert.deepEqual(problems, []);
});

test('the link of a delivery covers its row, for the mouse, the middle button and the keyboard', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  await publish(publisher, user.account, ['one']);
  await subscriber.waitFor(1);
  const path = `/console/subscriptions/${id}?tab=deliveries`;
  const { page, problems } = await openConsole(browser, server, user.account, path);
  const row = page.locator('tbody tr');
  await row.waitFor();
  const box = await row.boundingBox();
  assert.ok(box !== null);
  const [x, y] = [box.x + box.width - 8, box.y + box.height / 2];
  const opened = page.context().waitForEvent('page');
  await page.mouse.click(x, y, { button: 'middle' });
  const second = await opened;
  await second.waitForURL(/\/console\/deliveries\/[0-9a-f-]{36}$/);
  await second.close();
  await tabTo(page, row.getByRole('link'));
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'push' }).waitFor();
  await page.goBack();
  await row.waitFor();
  await page.mouse.click(x, y);
  await page.getByRole('heading', { name: 'push' }).waitFor();
  assert.deepEqual(problems, []);
});

for (const signature of ['timestamp', 'sha256', 'standard'] as const) {
  test(`the curl command says its signature is masked, and verifies once signed with the secret of ${signature}`, async (t) => {
    const subscriber = await startSubscriber(t);
    const user = await createConsoleUser(server);
    const headers = { 'X-Key': 'of the subscriber' };
    const url = `${subscriber.url}/{a,b}?of={1,2}&at=[3-4]&text=it's$HOME`;
    const made = await subscribe(user, { url, signature, headers });
    await publish(publisher, user.account, [`it's ünïcödé`]);
    await subscriber.waitFor(1);
    const { body } = await until(
      () => user.request('GET', `/subscriptions/${made.id}/deliveries?status=succeeded`),
      ({ body: found }) => found.items.length === 1,
    );
    const path = `/console/deliveries/${body.items[0].id}`;
    const { page, problems } = await openConsole(browser, server, user.account, path);
    await page.getByText('a receiver that verifies it refuses this command').waitFor();
    await page.getByText('Replace *** in x-key.').waitFor();
    assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
    await page.getByRole('button', { name: 'Sign with the secret' }).click();
    await page.getByText('Receivers usually accept a signature for 5 minutes.').waitFor();
    const command = await page.getByRole('region', { name: 'curl' }).locator('code').textContent();
    await promisify(execFile)('sh', ['-c', command ?? '']);
    const [sent, received, ...others] = (await subscriber.waitFor(2)) as [Received, Received];
    assert.deepEqual([received.path, others], [sent.path, []]);
    await verifyWithLibrary[signature](received, made.secret);
    assert.deepEqual(problems, []);
  });
}

test('a user subscribes and reads a delivery by keyboard alone', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions');
  await page.keyboard.press('Tab');
  assert.equal(await page.locator(':focus').textContent(), 'Skip to content');
  await page.keyboard.press('Enter');
  await tabTo(page, page.getByRole('link', { name: 'New subscription' }).first());
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'New subscription' }).waitFor();
  await tabTo(page, page.getByRole('textbox', { name: 'URL' }));
  await page.keyboard.type(subscriber.url);
  await tabTo(page, page.getByRole('checkbox', { name: /^All kinds/ }));
  await page.keyboard.press('Space');
  await tabTo(page, page.getByRole('button', { name: 'Create subscription' }));
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();
  await tabTo(page, page.getByRole('button', { name: 'Send test event' }));
  await page.keyboard.press('Enter');
  await subscriber.waitFor(1);
  await tabTo(page, page.getByRole('tab', { name: 'Overview' }));
  await page.keyboard.press('ArrowRight');
  const link = page.getByRole('link', { name: 'ping' });
  await link.waitFor();
  await tabTo(page, link);
  await page.keyboard.press('Enter');
  await page.getByText('500: The receiver failed.').waitFor();
  // Navigation moves the focus to the new content.
  assert.equal(await page.locator(':focus').textContent(), 'ping');
});

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults on the pages of deliveries ${where}`, async (t) => {
    const subscriber = await startSubscriber(t, answer(500));
    const user = await createConsoleUser(server);
    await subscribe(user, { url: subscriber.url });
    await publish(publisher, user.account, ['one']);
    const path = '/console/deliveries';
    const { page, problems } = await openConsole(browser, server, user.account, path, options);
    await page.getByRole('link', { name: 'push' }).waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);
    await page.getByRole('link', { name: 'push' }).click();
    await page.getByText('500: The receiver failed.').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);
    assert.deepEqual(problems, []);
  });
}
