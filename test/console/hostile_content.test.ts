/**
 * Script injection into the console, in a real browser. Names, texts, bodies and headers of hostile users, apps and
 * subscribers are shown as they are, on the pages of developers and of operators. The pages' Content-Security-Policy is
 * switched off, so that a script that gets into a page would run.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { Page } from 'playwright-core';
import { startBrowser } from '../support/browser/chromium.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { openConsole, startConsoleServer } from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { desktop } from '../support/console/places.ts';
import { reject } from '../support/publishing/rejected_events.ts';
import { createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s' });
const browser = await startBrowser({ after });
const publisher = await createPublisher(server);

const run = 'window.__xss=1';
/** Breaks out of text, attributes, scripts and templates; the last one also hides and reverses text. */
const attacks = [
  `"><img src=x onerror="${run}">`,
  `'><svg/onload=${run}>`,
  `</script><script>${run}</script>`,
  `<iframe srcdoc="<script>parent.__xss=1</script>">`,
  `\${${run}}{{${run}}}<a href="javascript:${run}">`,
  `\u202e\u200b\u2066<b onfocus=${run} autofocus tabindex=1>`,
];
const everything = attacks.join(' ');

/** What must be in no page: elements and links that only the attacks have. React replaces `javascript:` URLs with one that throws. */
const injected =
  '[onerror],[onload],[onfocus],[srcdoc],iframe,img[src="x"],a[href^="javascript" i]:not([href*="React has blocked"]),script:not([src]),main b[autofocus]';

async function assertHarmless(page: Page, where: string): Promise<void> {
  assert.equal(await page.evaluate('window.__xss'), undefined, where);
  assert.deepEqual(
    await page
      .locator(injected)
      .evaluateAll((found) => found.map((element) => element.outerHTML.slice(0, 300))),
    [],
    where,
  );
}

/** Opens a page, its tabs and its attempts. */
async function visit(page: Page, follow: (path: string) => Promise<void>, path: string): Promise<string> {
  await follow(path);
  let text = '';
  const look = async () => {
    await until(
      () => page.locator('.skeleton').count(),
      (count) => count === 0,
    );
    await assertHarmless(page, path);
    text += await page.locator('body').innerText();
  };
  await look();
  for (const tab of await page.getByRole('tablist').first().getByRole('tab').all()) {
    await tab.click();
    await look();
  }
  for (const attempt of await page.getByRole('button', { name: /^Attempt/ }).all()) await attempt.click();
  await look();
  return text;
}

test('no script of a user, an app or a subscriber runs on any page of the console', async (t) => {
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(500, attacks[2], {
      'content-type': 'text/html',
      'x-attack': Buffer.from(everything).toString('latin1'),
      location: `javascript:${run}`,
      'set-cookie': `a=${attacks[0]?.replaceAll(/[";]/g, '')}`,
    });
    response.end(`<html>${everything}</html>`);
  });
  const account = await createTestAccount(server, { name: attacks[0] as string });
  const user = await createConsoleUser(server, { account });
  const create = (json: object) => user.request('POST', '/apps', { json });
  const callback = { redirect_uris: ['https://evil.example/cb'], scope: 'read:posts' };
  const made = await create({ client_name: attacks[0], ...callback });
  assert.equal(made.status, 201, made.text);
  for (const name of ['client_uri', 'policy_uri', 'tos_uri', 'logo_uri', 'redirect_uris']) {
    const value = `javascript:${run}`;
    const json = { client_name: 'A', ...callback, [name]: name === 'redirect_uris' ? [value] : value };
    assert.equal((await create(json)).status, 422, name);
  }
  const appId: string = made.body.client_id;
  // What a gap in that check, or an older version, could have left.
  const links = {
    client_uri: `javascript:${run}`,
    policy_uri: `javascript:${run}`,
    tos_uri: `JaVaScRiPt:${run}`,
  };
  await sql`update clients set metadata = metadata || ${JSON.stringify(links)}::jsonb where id = ${appId}`.execute(
    server.db,
  );
  const description = attacks.slice(0, 4).join(' ').slice(0, 250);
  const url = `${subscriber.url}/${attacks[0]}?a=${encodeURIComponent(attacks[1] as string)}`;
  const { id } = await subscribe(user, { url, description, headers: { 'X-Static': `static ${attacks[0]}` } });
  await user.request('POST', `/apps/${appId}/subscriptions`, { json: { url, description, kinds: ['*'] } });
  await publish(publisher, account, [everything]);
  const { id: rejected } = await reject(server, account.id, { [attacks[0] as string]: everything, ref: 1 });
  const { body } = await until(
    () => user.request('GET', `/subscriptions/${id}/deliveries?status=failed`),
    ({ body: list }) => list.items.length > 0,
  );
  const delivery: string = body.items[0].id;

  const options = { ...desktop, bypassCSP: true };
  const own = await openConsole(browser, server, account, '/console', options);
  const dialogs: string[] = [];
  own.page.on('dialog', (dialog) => {
    dialogs.push(dialog.message());
    return dialog.dismiss();
  });
  const shown = new Map<string, string>();
  for (const path of [
    ...['', '/subscriptions', `/subscriptions/${id}`, '/deliveries', `/deliveries/${delivery}`],
    ...['/apps', `/apps/${appId}`, '/health', '/events'],
  ]) {
    shown.set(path, await visit(own.page, own.follow, `/console${path}`));
  }
  assert.ok(shown.get('/apps')?.includes(attacks[0] as string));
  assert.ok(shown.get(`/subscriptions/${id}`)?.includes(attacks[1] as string));
  const ofDelivery = shown.get(`/deliveries/${delivery}`) ?? '';
  assert.ok(ofDelivery.includes(`<html>${attacks[0]}`), 'the response body');
  assert.match(ofDelivery, /x-attack/i, 'the response headers');

  const admin = await createTestAccount(server, { isAdmin: true, name: attacks[1] as string });
  const operator = await openConsole(browser, server, admin, '/console/operator', options);
  operator.page.on('dialog', (dialog) => {
    dialogs.push(dialog.message());
    return dialog.dismiss();
  });
  const pages = [
    '',
    '/accounts',
    '/apps',
    '/subscriptions',
    '/rejected',
    `/rejected/${rejected}`,
    '/audit',
    '/settings',
  ];
  for (const path of pages) {
    shown.set(path, await visit(operator.page, operator.follow, `/console/operator${path}`));
  }
  assert.ok(shown.get('/accounts')?.includes(attacks[0] as string));
  assert.ok(shown.get('/apps')?.includes(attacks[0] as string));
  assert.ok(shown.get(`/rejected/${rejected}`)?.includes(attacks[1] as string));
  assert.deepEqual(dialogs, []);
  for (const { problems } of [own, operator]) assert.deepEqual(problems, []);
});

test('the console’s Content-Security-Policy lets no inline script run', async () => {
  const account = await createTestAccount(server);
  const { page, problems } = await openConsole(browser, server, account);
  await page.evaluate(`(() => {
    const holder = document.createElement('div');
    holder.innerHTML = ${JSON.stringify(everything)};
    document.body.append(holder);
    const script = document.createElement('script');
    script.textContent = ${JSON.stringify(run)};
    document.body.append(script);
  })()`);
  await until(
    async () => problems.length,
    (count) => count > 0,
  );
  assert.equal(await page.evaluate('window.__xss'), undefined);
  assert.match(problems.join('\n'), /Content Security Policy/);
});
