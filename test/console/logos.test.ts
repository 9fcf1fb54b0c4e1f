/** The logo of an app in the console: selected, previewed, saved, shown to users and removed. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { Page } from 'playwright-core';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  type TestClient,
} from '../support/clients/oauth.ts';
import {
  accessibilityErrors,
  openConsole,
  signIn,
  startConsoleServer,
} from '../support/console/console_page.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { storyPlaces } from '../support/console/places.ts';
import { jpeg, losslessWebp, png, transparentWebp, webp } from '../support/values/images.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startConsoleServer({ after });
const browser = await startBrowser({ after });
const redirectUri = 'https://reader.example/callback';

const button = (page: Page, name: string) => page.getByRole('button', { name, exact: true });

async function choose(page: Page, name: string, file: { mimeType: string; buffer: Buffer }): Promise<void> {
  const opened = page.waitForEvent('filechooser');
  await button(page, name).click();
  await (await opened).setFiles({ name: 'logo', ...file });
}

/** Returns the URLs of the visible images on the page that have loaded. */
function shownLogos(page: Page): Promise<string[]> {
  return page.evaluate(`Promise.all([...document.images].map(async (image) => {
    await image.decode();
    return new URL(image.src).pathname;
  }))`);
}

for (const [where, options] of storyPlaces) {
  test(`a developer adds a verified app’s logo, users see it on the consent page, it is removed ${where}`, async (t) => {
    const home = await startSubscriber(t, answer(200));
    const redirectUri = `${home.url}/callback`;
    const account = await createTestAccount(server);
    const user = await createConsoleUser(server, { account });
    const made = await user.request('POST', '/apps', {
      json: { client_name: 'Reader', redirect_uris: [redirectUri], scope: 'read:posts' },
    });
    const { client_id: id } = made.body;
    await sql`update clients set verified_at = now() where id = ${id}`.execute(server.db);
    const path = `/console/apps/${id}?tab=settings`;
    const { page, problems, follow } = await openConsole(browser, server, account, path, options);
    for (const [file, message] of [
      [{ mimeType: 'image/svg+xml', buffer: Buffer.from('<svg/>') }, 'Choose a PNG, JPEG or WebP image.'],
      [{ mimeType: 'image/png', buffer: Buffer.alloc(70_000) }, 'The file is 69 KiB. The limit is 64 KiB.'],
      [{ mimeType: 'image/png', buffer: Buffer.from('<html>') }, 'not an image that this browser can show'],
      [{ mimeType: 'image/png', buffer: png(1_025, 2) }, 'The image is 1025 by 2 pixels.'],
    ] as const) {
      await choose(page, 'Upload logo', file);
      await page.getByText(message).waitFor();
    }
    await choose(page, 'Upload logo', { mimeType: 'image/png', buffer: png() });
    await page.getByRole('img', { name: 'New logo' }).waitFor();
    await page.getByText('Saving removes the verification').waitFor();
    assert.deepEqual(await accessibilityErrors(page), []);
    await button(page, 'Save logo').click();
    await page.getByText('Logo saved.').waitFor();
    await page.getByText('Unverified', { exact: true }).waitFor();
    const read = async () => (await user.request('GET', `/apps/${id}`)).body._links.logo?.href;
    const logo = await read();
    assert.match(logo, /^\/logos\//);
    assert.deepEqual(await shownLogos(page), [logo, logo], 'beside the name, and on the card');
    assert.deepEqual(await accessibilityErrors(page), []);
    await follow('/console/apps');
    await page.locator('td img').waitFor();
    assert.deepEqual(await shownLogos(page), [logo]);

    const visitor = await openPage(browser, options);
    const { challenge } = createPkce();
    const url = authorizationUrl(server, { id, redirectUri } as TestClient, {
      scope: 'read:posts',
      code_challenge: challenge,
      code_challenge_method: 'S256',
    });
    await visitor.page.goto(url);
    await signIn(visitor.page, await createTestAccount(server));
    await visitor.page.getByRole('heading', { name: 'Connect Reader?' }).waitFor();
    assert.deepEqual(await shownLogos(visitor.page), [logo]);
    assert.deepEqual(await accessibilityErrors(visitor.page), []);
    await button(visitor.page, 'Allow').click();
    await visitor.page.waitForURL((url) => url.href.startsWith(redirectUri));
    await visitor.page.goto(`${server.baseUrl}/account`);
    await visitor.page.getByText('Reader').first().waitFor();
    assert.deepEqual(await shownLogos(visitor.page), [logo]);
    assert.deepEqual(await accessibilityErrors(visitor.page), []);
    assert.deepEqual(visitor.problems, []);

    await follow(path);
    await button(page, 'Remove').click();
    await page.getByRole('alertdialog').getByRole('button', { name: 'Remove logo' }).click();
    await page.getByText('Logo removed.').waitFor();
    await button(page, 'Upload logo').waitFor();
    assert.equal(await read(), undefined);
    assert.deepEqual(problems, []);
  });
}

test('an administrator sees each app’s logo, and a suspended app’s initial', async () => {
  const owner = await createConsoleUser(server);
  const made = await owner.request('POST', '/apps', {
    json: { client_name: 'Seen by the operator', redirect_uris: [redirectUri] },
  });
  const { client_id: id } = made.body;
  await owner.request('PUT', `/apps/${id}/logo`, {
    headers: { 'content-type': 'image/jpeg' },
    raw: new Uint8Array(jpeg),
  });
  const account = await createTestAccount(server, { isAdmin: true });
  const { page, follow } = await openConsole(browser, server, account, '/console/operator/apps');
  const row = page.getByRole('row').filter({ hasText: 'Seen by the operator' });
  await row.locator('img').waitFor();
  const admin = await createConsoleUser(server, { account, isAdmin: true });
  await admin.request('POST', `/admin/apps/${id}/suspend`);
  await follow('/console/operator/apps');
  await row.getByText('S', { exact: true }).waitFor();
  assert.equal(await row.locator('img').count(), 0);
});

test('a browser displays what is kept of each kind of image', async () => {
  const owner = await createConsoleUser(server);
  const { page } = await openPage(browser);
  for (const [type, content] of [
    ['image/png', png(24, 16)],
    ['image/jpeg', jpeg],
    ['image/webp', webp],
    ['image/webp', transparentWebp],
    ['image/webp', losslessWebp],
  ] as const) {
    const made = await owner.request('POST', '/apps', {
      json: { client_name: 'Reader', redirect_uris: [redirectUri] },
    });
    const uploaded = await owner.request('PUT', `/apps/${made.body.client_id}/logo`, {
      headers: { 'content-type': type },
      raw: new Uint8Array(content),
    });
    // The image opened by itself, which the response's policy sandboxes.
    await page.goto(server.baseUrl + uploaded.body._links.logo.href);
    const size = await page.evaluate('[document.images[0].naturalWidth, document.images[0].naturalHeight]');
    assert.deepEqual(size, [24, 16], type);
  }
});
