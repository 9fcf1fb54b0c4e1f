/** The editor of a subscription's filter in the console, on a platform whose kinds have values of every type. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { isDeepStrictEqual } from 'node:util';
import type { Locator, Page } from 'playwright-core';
import { defineEventKind, Type } from '../../src/index.ts';
import { createPlatform } from '../../src/platform.ts';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  openConsole,
  startConsoleServer,
  tabTo,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { pagePlaces, storyPlaces } from '../support/console/places.ts';
import { createApp, createPublisher, fannedOut, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const money = Type.Object({ amount: Type.Number(), currency: Type.String() });
const order = {
  id: Type.String(),
  total: Type.Unsafe({ $ref: '#/$defs/money' }),
  isGift: Type.Boolean(),
  state: Type.Union([Type.Literal('open'), Type.Literal('shipped')]),
  note: Type.Union([Type.String(), Type.Number(), Type.Null()]),
};
const example = {
  id: 'o-1',
  total: { amount: 120, currency: 'EUR' },
  isGift: true,
  state: 'open',
  note: null,
};
const kind = (name: string, members: object, body: object) =>
  defineEventKind({
    name,
    description: `It is ${name}.`,
    object: null,
    schema: Type.Object(members as typeof order, { $defs: { money } }),
    example: body,
  });
const platform = createPlatform({
  collections: [],
  eventKinds: [
    kind('order.placed', { ...order, rank: Type.Integer() }, { ...example, rank: 3 }),
    kind('order.returned', { ...order, rank: Type.String() }, { ...example, id: 'o-2', rank: 'low' }),
    kind('stock.low', { item: Type.String() }, { item: 'Pen' }),
  ],
});

const server = await startConsoleServer({ after }, {}, 'dev', platform);
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);

const button = (page: Page | Locator, name: string | RegExp) =>
  page.getByRole('button', { name, exact: true });
const conditionOf = (page: Page, number: number) =>
  page.getByRole('group', { name: `Condition ${number}`, exact: true });
const field = (condition: Locator, name: string) => condition.getByRole('combobox', { name, exact: true });
const answerOf = (page: Page) => page.getByRole('region', { name: 'Try the filter' }).getByRole('status');

/** Fills in a field with suggestions, and closes them: what is behind an open list has no role. */
async function fill(input: Locator, text: string): Promise<void> {
  await input.fill(text);
  await closeList(input);
}

async function closeList(input: Locator): Promise<void> {
  await until(
    async () => {
      if ((await input.getAttribute('aria-expanded')) === 'true') await input.press('Escape');
      return input.getAttribute('aria-expanded');
    },
    (isExpanded) => isExpanded === 'false',
  );
}

async function choose(page: Page, condition: Locator, name: string, option: string): Promise<void> {
  await condition.getByRole('button', { name: new RegExp(`${name}$`) }).click();
  await page.getByRole('option', { name: option, exact: true }).click();
}

async function choosePath(page: Page, condition: Locator, path: string): Promise<void> {
  await field(condition, 'Path').focus();
  await page.getByRole('option', { name: path }).first().click();
}

async function publishOrders(account: { id: string }, orders: object[]): Promise<void> {
  const events = orders.map((body) => ({ kind: 'order.placed', account: account.id, body }));
  const { status, text } = await publisher('POST', '/events', { json: events });
  assert.equal(status, 202, text);
  await fannedOut(server);
}

const placed = (part: object) => ({ ...example, rank: 1, ...part });

for (const [where, options] of storyPlaces) {
  test(`a user sets a filter, tries it on an example, changes and removes it ${where}`, async (t) => {
    const subscriber = await startSubscriber(t);
    const user = await createConsoleUser(server);
    const { account } = user;
    const path = '/console/subscriptions/new';
    const { page, problems } = await openConsole(browser, server, account, path, options);
    await page.getByRole('textbox', { name: 'URL' }).fill(subscriber.url);
    await page.getByText('Select events first.').waitFor();
    await page.getByText('It is order.placed.').click();
    await button(page, 'Add a filter').click();

    const first = conditionOf(page, 1);
    await page.getByRole('option', { name: '/total/amount number' }).click();
    await choose(page, first, 'Operator', 'is at least');
    await fill(field(first, 'Value'), '100');
    await answerOf(page).getByText('Yes, it would be sent.').waitFor();
    await first.getByText('Met by the example').waitFor();

    await button(page, 'Add condition').click();
    const second = conditionOf(page, 2);
    await page.getByRole('option', { name: '/state text' }).click();
    await button(second, 'Not').click();
    await choose(page, second, 'Operator', 'is none of');
    await field(second, 'Value to add').focus();
    await page.getByRole('option', { name: 'open', exact: true }).click();
    await button(second, 'Add value').click();
    await fill(field(second, 'Value to add'), 'shipped');
    await second.getByText('“open”').waitFor();
    await answerOf(page).getByText('No, it would not be sent.').waitFor();
    await second.getByText('Not met by the example').waitFor();
    const words = page.locator('.filter-words');
    assert.equal(
      (await words.innerText()).replaceAll(/\n+/g, '\n'),
      'Only events where all of these are true:\n/total/amount is at least 100\n' +
        '/state is none of “open” or “shipped”\nA condition with “not” is also true if the body does not have the value.',
    );
    await page.getByRole('radio', { name: 'any', exact: true }).click();
    await answerOf(page).getByText('Yes, it would be sent.').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);

    const body = page.getByRole('textbox', { name: 'Body of order.placed' });
    await body.fill('{ "total": { "amount": 5 }, "state": "open" }');
    await answerOf(page).getByText('No, it would not be sent.').waitFor();
    await body.fill('{');
    await page.getByText('This is not JSON.').waitFor();
    await button(page, 'Restore the example').click();
    await answerOf(page).getByText('Yes, it would be sent.').waitFor();
    await button(page, 'Create subscription').click();
    await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();

    const id = new URL(page.url()).pathname.split('/').at(-1) as string;
    const stored = async () => (await user.request('GET', `/subscriptions/${id}`)).body.filter;
    assert.deepEqual(await stored(), {
      any: [{ path: '/total/amount', gte: 100 }, { not: { path: '/state', in: ['open', 'shipped'] } }],
    });
    await publishOrders(account, [
      placed({ total: { amount: 1, currency: 'EUR' } }),
      placed({ id: 'large' }),
    ]);
    const [received] = await subscriber.waitFor(1);
    assert.equal(JSON.parse(String(received?.body)).id, 'large');
    assert.equal(subscriber.received.length, 1);

    await words.getByText('is none of “open” or “shipped”').waitFor();
    await page.getByRole('tab', { name: 'Settings' }).click();
    await button(page, 'Remove condition 2').click();
    await page.getByRole('radio', { name: 'all', exact: true }).click();
    await fill(field(first, 'Value'), '7.5');
    await button(page, 'Save').click();
    await page.getByText('Saved.').waitFor();
    assert.deepEqual(await stored(), { all: [{ path: '/total/amount', gte: 7.5 }] });

    await page.getByRole('tab', { name: 'Overview' }).click();
    await page.getByText('Only events where /total/amount is at least 7.5.').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    await button(page, 'Remove the filter').click();
    await page.getByRole('alertdialog').getByRole('button', { name: 'Remove' }).click();
    await page.getByText('Filter removed.').waitFor();
    await until(
      () => words.count(),
      (count) => count === 0,
    );
    assert.equal(await stored(), null);
    assert.deepEqual(problems, []);
  });
}

test('values have the type of the schema: boolean, number, null, or the one that the user chooses', async () => {
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: null, kinds: ['order.placed'] });
  const path = `/console/subscriptions/${id}?tab=settings`;
  const { page } = await openConsole(browser, server, user.account, path);
  await button(page, 'Add a filter').click();
  const condition = conditionOf(page, 1);
  const offered = async () => {
    await condition.getByRole('button', { name: /Operator$/ }).click();
    const texts = await page.getByRole('option').allTextContents();
    await page.keyboard.press('Escape');
    return texts;
  };
  const save = async () => {
    // The message about the last change covers the button for some seconds.
    await button(page, 'Save').press('Enter');
    await until(
      async () => (await user.request('GET', `/subscriptions/${id}`)).body.filter,
      (filter) => filter !== null,
    );
    const { body } = await user.request('GET', `/subscriptions/${id}`);
    await user.request('PATCH', `/subscriptions/${id}`, { json: { filter: null } });
    return body.filter.all[0];
  };
  await page.getByRole('option', { name: '/isGift boolean' }).click();
  await until(offered, (texts) => isDeepStrictEqual(texts, ['is', 'exists', 'does not exist']));
  await choose(page, condition, 'Value', 'false');
  assert.deepEqual(await save(), { path: '/isGift', eq: false });

  await fill(field(condition, 'Path'), '/total');
  await until(offered, (texts) => isDeepStrictEqual(texts, ['exists', 'does not exist']));
  assert.deepEqual(await save(), { path: '/total', exists: true });

  await fill(field(condition, 'Path'), '/note');
  await choose(page, condition, 'Operator', 'is null');
  assert.deepEqual(await save(), { path: '/note', eq: null });
  await choose(page, condition, 'Operator', 'is');
  await choose(page, condition, 'Type', 'Number');
  await fill(field(condition, 'Value'), '1,5');
  await button(page, 'Save').click();
  await condition.getByText('Enter a number, such as 100 or 2.5.').waitFor();
  assert.equal(await field(condition, 'Value').getAttribute('aria-invalid'), 'true');
  await fill(field(condition, 'Value'), '1.5');
  assert.deepEqual(await save(), { path: '/note', eq: 1.5 });

  await choose(page, condition, 'Operator', 'is one of');
  const add = field(condition, 'Value to add');
  await fill(add, '2');
  await add.press('Enter');
  await fill(add, '3');
  await choose(page, condition, 'Type', 'Text');
  await fill(add, '3');
  assert.deepEqual(await save(), { path: '/note', in: [2, '3'] });
});

test('several kinds offer the values that all have, and an example of each', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions/new');
  await page.getByText('order.*').click();
  await button(page, 'Add a filter').click();
  await page.getByRole('option').first().waitFor();
  const notes = await page.getByRole('option').allTextContents();
  assert.ok(notes.includes('/rankdiffers'), `${notes}`);
  await page.getByRole('option', { name: '/id' }).click();
  await fill(field(conditionOf(page, 1), 'Value'), 'o-2');
  await answerOf(page).getByText('No, it would not be sent.').waitFor();
  await page.getByRole('button', { name: 'order.placed Kind of the example' }).click();
  await page.getByRole('option', { name: 'order.returned' }).click();
  await answerOf(page).getByText('Yes, it would be sent.').waitFor();

  // The first kind accepts a number, the second does not: the tried one cannot tell.
  await page.getByRole('button', { name: 'order.returned Kind of the example' }).click();
  await page.getByRole('option', { name: 'order.placed' }).click();
  await button(page, 'Add condition').click();
  const second = conditionOf(page, 2);
  await fill(field(second, 'Path'), '/item');
  await choose(page, second, 'Operator', 'exists');
  await second.getByText('It does not exist in the body of order.placed.').waitFor();
  await answerOf(page).getByText('The filter does not fit this kind.').waitFor();

  await page.getByText('It is stock.low.').click();
  await page.getByText('These kinds have no value in common').waitFor();
  await button(page, 'Remove the filter').click();
  assert.equal(await button(page, 'Add a filter').count(), 0);
  await page.getByText('stock.low', { exact: true }).click();
  await button(page, 'Add a filter').waitFor();
});

test('the server’s refusal of a condition appears beside it, and what is missing too', async () => {
  const account = await createTestAccount(server);
  const { page } = await openConsole(browser, server, account, '/console/subscriptions/new');
  await page.getByText('My app asks for the events').click();
  await page.getByText('order.*').click();
  await button(page, 'Add a filter').click();
  await fill(field(conditionOf(page, 1), 'Path'), '/id');
  await button(page, 'Add condition').click();
  const second = conditionOf(page, 2);
  await page.getByRole('option').first().waitFor();
  await closeList(page.locator('[role=combobox]').nth(2));
  await button(page, 'Create subscription').click();
  await conditionOf(page, 1).getByText('Enter a value.').waitFor();
  await second.getByText('Choose a value of the body.').waitFor();
  await fill(field(conditionOf(page, 1), 'Value'), 'o-1');
  await until(
    () => page.getByText('Enter a value.').count(),
    (count) => count === 0,
  );
  // Only one of the two kinds has a number there: the page does not know which are sent.
  await fill(field(second, 'Path'), '/rank/x');
  await choose(page, second, 'Operator', 'exists');
  await page.route(
    (url) => url.pathname.endsWith('/match'),
    (route) => route.abort(),
  );
  await button(page, 'Create subscription').click();
  await second.getByText('It does not exist in the body of order.placed.').waitFor();
  assert.equal(await field(second, 'Path').getAttribute('aria-invalid'), 'true');
  await until(
    () => page.evaluate('document.activeElement.getAttribute("aria-invalid")'),
    (isInvalid) => isInvalid === 'true',
  );
  assert.deepEqual(await accessibilityErrors(page), []);
  await button(page, 'Remove condition 2').click();
  await button(page, 'Create subscription').click();
  await page.getByRole('heading', { name: 'Verify deliveries' }).waitFor();
});

test('an app’s own subscription has a filter, and one of a connected app only shows it', async () => {
  const user = await createConsoleUser(server);
  const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };
  const { body: app } = await user.request('POST', '/apps', { json });
  const path = `/console/subscriptions/new?app=${app.client_id}`;
  const { page, problems, follow } = await openConsole(browser, server, user.account, path);
  await page.getByText('My app asks for the events').click();
  await page.getByText('It is stock.low.').click();
  await button(page, 'Add a filter').click();
  const condition = conditionOf(page, 1);
  await choosePath(page, condition, '/item');
  await choose(page, condition, 'Operator', 'begins with');
  await fill(field(condition, 'Value'), 'P');
  await button(page, 'Create subscription').click();
  await page.getByText('Only events where /item begins with “P”.').waitFor();
  await button(page, 'Remove the filter').waitFor();
  await follow(`/console/apps/${app.client_id}?tab=subscriptions`);
  await page.getByText('With a filter').waitFor();

  const connected = await createApp(server, { account: user.account });
  const filter = { all: [{ path: '/item', eq: '<img src=x onerror=alert(1)>' }] };
  const { id } = await subscribe(connected, { url: null, kinds: ['stock.low'], filter });
  await follow(`/console/subscriptions/${id}`);
  await page.getByText('Only events where /item is “<img src=x onerror=alert(1)>”.').waitFor();
  assert.equal(await button(page, 'Remove the filter').count(), 0);
  assert.deepEqual(problems, []);
});

test('a filter is set with the keyboard alone, and the focus is never lost', async () => {
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account, '/console/subscriptions/new');
  const { keyboard } = page;
  await tabTo(page, page.getByRole('switch', { name: /My app asks/ }));
  await keyboard.press('Space');
  await tabTo(page, page.getByRole('checkbox', { name: /stock\.low/ }));
  await keyboard.press('Space');
  await tabTo(page, button(page, 'Add a filter'));
  await keyboard.press('Enter');
  await page.getByRole('option', { name: '/item' }).waitFor();
  await keyboard.press('ArrowDown');
  await keyboard.press('Enter');
  await tabTo(page, button(conditionOf(page, 1), 'Not'));
  await keyboard.press('Space');
  await keyboard.press('Tab');
  await keyboard.press('ArrowDown');
  await page.getByRole('option', { name: 'is none of' }).focus();
  await keyboard.press('Enter');
  const add = field(conditionOf(page, 1), 'Value to add');
  await tabTo(page, add);
  for (const value of ['one', 'two', 'three']) {
    await keyboard.type(value);
    await keyboard.press('Enter');
    await conditionOf(page, 1).getByText(`“${value}”`).waitFor();
  }
  await keyboard.press('Shift+Tab');
  await keyboard.press('Delete');
  await until(
    () => page.getByRole('row').count(),
    (count) => count === 2,
  );
  await tabTo(page, button(page, 'Add condition'));
  await keyboard.press('Enter');
  await page.getByRole('option', { name: '/item' }).waitFor();
  await keyboard.press('Escape');
  await tabTo(page, button(page, 'Remove condition 2'));
  await keyboard.press('Enter');
  const focused = () => page.evaluate('document.activeElement.textContent.trim()') as Promise<string>;
  await until(focused, (text) => text === 'Add condition');
  await tabTo(page, button(page, 'Create subscription'));
  await keyboard.press('Enter');
  await page.getByText(/^Only events where \/item is none of “\w+” or “\w+”\.$/).waitFor();
  assert.deepEqual(problems, []);
});

test('a list takes pasted lines, once each, and a filter ten conditions', async () => {
  const user = await createConsoleUser(server);
  const { id } = await subscribe(user, { url: null, kinds: ['stock.low'] });
  const path = `/console/subscriptions/${id}?tab=settings`;
  const { page } = await openConsole(browser, server, user.account, path);
  await button(page, 'Add a filter').click();
  const condition = conditionOf(page, 1);
  await fill(field(condition, 'Path'), '/item');
  await choose(page, condition, 'Operator', 'is one of');
  const lines = Array.from({ length: 120 }, (_each, index) => `v${index}`);
  await field(condition, 'Value to add').evaluate(
    (element, text) => {
      // biome-ignore lint/suspicious/noExplicitAny: the types of tests do not have those of browsers
      const { DataTransfer, ClipboardEvent } = globalThis as any;
      const clipboardData = new DataTransfer();
      clipboardData.setData('text/plain', text);
      element.dispatchEvent(new ClipboardEvent('paste', { clipboardData, bubbles: true, cancelable: true }));
    },
    `v1\r\n${lines.join('\n')}\n\n`,
  );
  await condition.getByText('“v99”').waitFor();
  for (let count = 1; count < 10; count += 1) {
    await button(page, 'Add condition').click();
    await fill(field(conditionOf(page, count + 1), 'Path'), '/item');
    await choose(page, conditionOf(page, count + 1), 'Operator', 'exists');
  }
  await page.getByText('A filter has at most 10 conditions.').waitFor();
  assert.equal(await button(page, 'Add condition').count(), 0);
  await button(page, 'Save').click();
  await page.getByText('Saved.').waitFor();
  const { filter } = (await user.request('GET', `/subscriptions/${id}`)).body;
  assert.equal(filter.all.length, 10);
  assert.deepEqual(filter.all[0].in.toSorted(), lines.slice(0, 100).toSorted());
});

for (const [where, options] of pagePlaces) {
  test(`axe finds no faults in the editor of a filter ${where}`, async () => {
    const user = await createConsoleUser(server);
    const filter = {
      any: [
        { path: '/total/amount', gt: 5 },
        { not: { path: '/state', in: ['open', `a${'-long'.repeat(40)}`] } },
        { path: '/isGift', eq: true },
        { path: '/note', in: [1, 'x', null] },
        { path: `/total/${'x'.repeat(80)}`, exists: true },
      ].slice(0, 4),
    };
    const { id } = await subscribe(user, { url: null, kinds: ['order.*'], filter });
    const path = `/console/subscriptions/${id}?tab=settings`;
    const { page, problems } = await openConsole(browser, server, user.account, path, options);
    await answerOf(page).getByText('Yes, it would be sent.').waitFor();
    await page.getByText('Filter as JSON').click();
    assert.deepEqual(await accessibilityErrors(page), []);
    assert.equal(await page.evaluate('document.documentElement.scrollWidth - innerWidth'), 0);
    assert.deepEqual(problems, []);
  });
}
