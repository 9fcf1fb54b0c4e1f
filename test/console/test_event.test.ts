/** "Send test event" in the console shows what became of the event. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startBrowser } from '../support/browser/chromium.ts';
import {
  accessibilityErrors,
  accessibilityErrorsOnTheWay,
  openConsole,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { storyPlaces } from '../support/console/places.ts';
import { subscribe } from '../support/webhooks/apps.ts';
import { accept, answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });

for (const [where, options] of storyPlaces) {
  test(`a test event shows status, time and response of its first attempt, with a link ${where}`, async (t) => {
    const subscriber = await startSubscriber(t, (_received, response) =>
      response.writeHead(500).end(`database is locked <img src="/x" onerror="x">${'x'.repeat(1_000)}`),
    );
    const user = await createConsoleUser(server);
    const { id } = await subscribe(user, { url: subscriber.url, retry_schedule: [90] });
    const path = `/console/subscriptions/${id}`;
    const { page, problems } = await openConsole(browser, server, user.account, path, options);
    const outcome = page.getByRole('status');
    const send = page.getByRole('button', { name: 'Send test event' });
    await send.click();
    await outcome.getByText(/^Failed · 500 · (?:< )?[\d.]+ m?s$/).waitFor();
    await outcome.getByText('500: The receiver failed.').waitFor();
    const shown = await outcome.getByText('database is locked').textContent();
    assert.equal(shown?.length, 301, 'the start of the response');
    assert.equal(await outcome.locator('img').count(), 0, 'markup is text');
    await outcome.getByText(/^Next attempt in \d+ (?:s|min)\.$/).waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);

    subscriber.behave(accept);
    await send.click();
    await outcome.getByText(/^Delivered · 204 · (?:< )?[\d.]+ m?s$/).waitFor();
    assert.equal(await outcome.getByText('Next attempt').count(), 0);
    assert.deepEqual(await accessibilityErrors(page), []);
    await outcome.getByRole('link', { name: 'View the test delivery' }).click();
    await page.getByRole('heading', { name: 'ping' }).waitFor();
    await page.locator('h1 ~ .badge').getByText('Succeeded').waitFor();
    assert.deepEqual(problems, []);
  });
}

test('a test event without a response shows the reason, and one that is accepted later is delivered', async (t) => {
  const subscriber = await startSubscriber(t, (_received, response) => response.destroy());
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url, retry_schedule: [2, 2, 2, 2] });
  const { page } = await openConsole(browser, server, user.account, `/console/subscriptions/${id}`);
  const outcome = page.getByRole('status');
  await page.getByRole('button', { name: 'Send test event' }).click();
  await outcome.getByText(/^Failed · connection error/).waitFor();
  await outcome.getByText('The connection closed before the response was complete.').waitFor();
  subscriber.behave(accept);
  await outcome.getByText(/^Delivered · 204/).waitFor();
});

test('the page says that a test event was not sent: subscription paused elsewhere, server away', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  const { page } = await openConsole(browser, server, user.account, `/console/subscriptions/${id}`);
  const send = page.getByRole('button', { name: 'Send test event' });
  await send.waitFor();
  const isTest = (url: URL) => url.pathname.endsWith('/test');
  await page.route(isTest, (route) => route.abort());
  await send.click();
  await page.getByRole('alert').getByText('The server cannot be reached.').waitFor();
  await page.unroute(isTest);
  await user.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
  await send.click();
  await page.getByRole('alert').getByText('The subscription is paused.').waitFor();
  await page.getByText('Deliveries are paused').waitFor();
  assert.deepEqual(await accessibilityErrorsOnTheWay(page), []);
  assert.equal(subscriber.received.length, 0);
});

test('a test event that is answered with 410 says that it disabled the subscription', async (t) => {
  const subscriber = await startSubscriber(t, answer(410));
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  const { page } = await openConsole(browser, server, user.account, `/console/subscriptions/${id}`);
  await page.getByRole('button', { name: 'Send test event' }).click();
  await page.getByRole('status').getByText('The subscription was disabled.').waitFor();
  await page.getByText('Deliveries are paused').waitFor();
});

test('an early answer of a disabled subscription, without an attempt, is not taken for the outcome', async (t) => {
  const subscriber = await startSubscriber(t, answer(410));
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  const { page } = await openConsole(browser, server, user.account, `/console/subscriptions/${id}`);
  let isFirst = true;
  await page.route('**/deliveries/*', async (route) => {
    const response = await route.fetch();
    if (!isFirst) return route.fulfill({ response });
    isFirst = false;
    const early = { state: 'held', attempt_count: 0, attempts: [], next_attempt_at: null, last_status: null };
    return route.fulfill({ response, json: { ...(await response.json()), ...early } });
  });
  await page.getByRole('button', { name: 'Send test event' }).click();
  await page.getByRole('status').getByText('The subscription was disabled.').waitFor();
  assert.equal(isFirst, false);
});

test('a test event that waits behind a pause says when its first attempt starts', async (t) => {
  const busy = (_received: unknown, response: import('node:http').ServerResponse) =>
    response.writeHead(503, { 'retry-after': '3600' }).end();
  const subscriber = await startSubscriber(t, busy);
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: subscriber.url });
  const { page } = await openConsole(browser, server, user.account, `/console/subscriptions/${id}`);
  const send = page.getByRole('button', { name: 'Send test event' });
  await send.click();
  await page
    .getByRole('status')
    .getByText(/^Failed · 503/)
    .waitFor();
  await send.click();
  await page.getByRole('status').getByText('Not sent yet').waitFor();
  await page.getByText(/The first attempt starts in \d+ (?:min|h)\./).waitFor();
});
