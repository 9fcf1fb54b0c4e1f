/** The pages in a real browser: they work with mouse and keyboard without JavaScript, and fit a phone. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { createPlatform } from '../../src/platform.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server, { name: 'Ada Lovelace', email: 'ada@example.com' });
const browser = await startBrowser({ after });
/** The app that the server redirects the browser to. */
const app = createServer((_request, response) => void response.end('the app')).listen(0, '127.0.0.1');
await once(app, 'listening');
after(() => app.close());
const callback = `http://127.0.0.1:${(app.address() as AddressInfo).port}/callback`;
/** Optional folder for screenshots of the pages. */
const pictures = process.env.TEST_PICTURES;

const notesApi = { url: 'https://notes.example.com', name: 'Notes' };
const plainApi = 'https://an-api-with-a-rather-long-host-name.internal.example.com/v1/some/where';
const sizes = { desktop: { width: 1_100, height: 800 }, phone: { width: 360, height: 700 } };

for (const [name, viewport] of Object.entries(sizes)) {
  for (const javaScriptEnabled of [true, false]) {
    test(`login, consent and the account page work on a ${name} with JavaScript ${javaScriptEnabled ? 'on' : 'off'}`, async () => {
      const client = await createTestClient(server, {
        name: 'Weekend Reader',
        redirectUris: [callback],
      });
      const colorScheme = javaScriptEnabled ? 'light' : 'dark';
      const { page, problems } = await openPage(browser, { viewport, javaScriptEnabled, colorScheme });
      const shoot = async (what: string) => {
        if (pictures !== undefined) {
          await page.screenshot({ path: `${pictures}/${what}-${name}-${colorScheme}.png`, fullPage: true });
        }
        const { width } = await page.locator('main').evaluate((main) => ({
          width: (main as unknown as { scrollWidth: number }).scrollWidth,
        }));
        assert.ok(width <= viewport.width, `${what} is wider than the screen`);
      };
      const { challenge } = createPkce();
      const url = authorizationUrl(server, client, {
        scope: 'openid read:profile read:posts write:posts write:webhooks',
        code_challenge: challenge,
        code_challenge_method: 'S256',
        state: 'abc',
      });
      await page.goto(url);
      await shoot('login');
      await page.getByLabel('Email address').fill(account.email);
      await page.getByLabel('Password').fill('not the password');
      await page.keyboard.press('Enter');
      await page.getByRole('alert').waitFor();
      await shoot('login-refused');
      await page.getByLabel('Password').fill(account.password);
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('heading', { name: 'Connect Weekend Reader?' }).waitFor();
      await shoot('consent');
      await page.getByRole('button', { name: 'Allow' }).click();
      await page.waitForURL(`${callback}**`);
      const answer = new URL(page.url());
      assert.ok(answer.searchParams.get('code'));
      assert.equal(answer.searchParams.get('state'), 'abc');

      await page.goto(`${server.baseUrl}/account`);
      await page.getByText('Weekend Reader').first().waitFor();
      await shoot('account');
      const app = page.getByRole('listitem').filter({ hasText: 'Weekend Reader' }).first();
      await app.locator('summary', { hasText: 'Disconnect' }).click();
      await shoot('account-withdraw');
      await app.getByRole('button', { name: 'Disconnect Weekend Reader' }).click();
      await page.getByRole('status').getByText('Weekend Reader').waitFor();
      const policy = problems.filter((problem) => /Content Security Policy/.test(problem));
      assert.deepEqual(policy, []);
    });
  }
}

test('a device’s complete link leads to the question, and the confirmation to success', async () => {
  const client = await createTestClient(server, {
    name: 'Living Room TV',
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType],
  });
  const { body } = await postForm(server, '/oauth/device', client, { scope: 'read:posts' });
  const { page, problems } = await openPage(browser, { viewport: sizes.phone });
  await page.goto(String(body.verification_uri_complete));
  await page.getByRole('heading', { name: 'Is this your device?' }).waitFor();
  if (pictures !== undefined)
    await page.screenshot({ path: `${pictures}/device-confirm.png`, fullPage: true });
  await page.getByRole('button', { name: 'Yes, continue' }).click();
  await page.getByLabel('Email address').fill(account.email);
  await page.getByLabel('Password').fill(account.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Allow' }).click();
  await page.getByRole('heading', { name: 'Device connected' }).waitFor();
  if (pictures !== undefined) await page.screenshot({ path: `${pictures}/device-done.png`, fullPage: true });
  assert.deepEqual(
    problems.filter((problem) => /Content Security Policy/.test(problem)),
    [],
  );
});

for (const [name, width] of Object.entries({ phone: 390, desktop: 1_440 })) {
  test(`the page before a redirect and consent with APIs and links fit a ${name} without a script`, async () => {
    const own = await startTestServer(
      { after },
      {},
      'dev',
      createPlatform({ oauth: { resources: [notesApi, plainApi] } }),
    );
    const user = await createTestAccount(own, { email: `${name}@example.com` });
    const viewport = { width, height: 900 };
    const { page, problems } = await openPage(browser, { viewport, javaScriptEnabled: name === 'desktop' });
    const shoot = async (what: string) => {
      if (pictures !== undefined)
        await page.screenshot({ path: `${pictures}/${what}-${width}.png`, fullPage: true });
      const overflow = await page
        .locator('html')
        .evaluate((html) => (html as unknown as { scrollWidth: number }).scrollWidth);
      assert.ok(overflow <= width, `${what} is wider than the screen: ${overflow}`);
    };
    const metadata = {
      policy_uri: 'https://app.example/privacy',
      tos_uri: 'https://legal-department-with-a-long-name.app.example/terms',
      post_logout_redirect_uris: [callback],
    };
    const app = await createTestClient(own, {
      origin: 'registration',
      name: 'Weekend Reader',
      redirectUris: [callback],
      metadata,
    });
    const { challenge } = createPkce();
    const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
    const ask = (more: Record<string, string>) =>
      authorizationUrl(own, app, { scope: 'read:profile', ...pkce, ...more });
    for (const response_mode of ['query', 'form_post']) {
      await page.goto(ask({ prompt: 'none', response_mode }));
      await shoot(`leave-${response_mode}`);
      const way = response_mode === 'query' ? 'link' : 'button';
      await page.getByRole(way, { name: `Continue to ${new URL(callback).host}` }).click();
      await page.waitForURL(`${callback}**`);
    }
    const logout = new URLSearchParams({ client_id: app.id, post_logout_redirect_uri: callback });
    await page.goto(`${own.baseUrl}/oauth/logout?${logout}`);
    await shoot('leave-logout');
    await page.goto(
      `${ask({})}&${new URLSearchParams([
        ['resource', notesApi.url],
        ['resource', plainApi],
      ])}`,
    );
    await page.getByLabel('Email address').fill(user.email);
    await page.getByLabel('Password').fill(user.password);
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByText('Notes').first().waitFor();
    await shoot('consent-apis');
    await page.getByRole('button', { name: 'Allow' }).click();
    await page.waitForURL(`${callback}?code=**`);
    assert.deepEqual(
      problems.filter((problem) => /Content Security Policy/.test(problem)),
      [],
    );
  });
}
