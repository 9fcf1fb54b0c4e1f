/** Sign-in with real upstream providers: oidc-provider and another Nuncio. In a browser, without JavaScript and on a phone. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import Provider from 'oidc-provider';
import type { Page as BrowserPage } from 'playwright-core';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import { openPage, startBrowser } from '../support/browser/chromium.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { freePort, startTestServer } from '../support/servers/server.ts';
import {
  openLoginPage,
  pressButton,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';
import { until } from '../support/webhooks/apps.ts';

const company = await listen();
// A separate host, because browsers share cookies between the ports of a host.
const port = String(await freePort());
const other = await startTestServer({ after }, { PORT: port, NUNCIO_BASE_URL: `http://127.0.0.1:${port}` });
const { db } = other;
const clientSecret = 'a secret of thirty-two characters and more';
// The redirect URI has the port of a server that starts later.
const otherClient = await createTestClient(other, {
  name: 'Upstream',
  scopes: ['openid', 'email', 'profile'],
});
const server = await startServerWithProviders({ after }, [
  {
    id: 'company',
    name: 'Company',
    issuer: company.issuer,
    clientId: 'nuncio',
    clientSecret,
    trustEmail: true,
  },
  {
    id: 'other',
    name: 'Other',
    issuer: other.baseUrl,
    clientId: otherClient.id,
    clientSecret: otherClient.secret ?? '',
  },
]);
company.serve([`${server.baseUrl}/login/company/callback`]);
await sql`
  update clients set redirect_uris = array[${`${server.baseUrl}/login/other/callback`}]
  where id = ${otherClient.id}`.execute(db);
const app = await createTestClient(server, { name: 'Reader' });

/** Starts oidc-provider with its development pages, which sign a user in as any address. */
async function listen() {
  const http = createServer().listen(0, '127.0.0.1');
  await once(http, 'listening');
  after(async () => {
    http.closeAllConnections();
    http.close();
  });
  const issuer = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  return {
    issuer,
    serve(redirectUris: string[]) {
      const provider = new Provider(issuer, {
        clients: [{ client_id: 'nuncio', client_secret: clientSecret, redirect_uris: redirectUris }],
        claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
        findAccount: (_ctx, id) => ({
          accountId: id,
          claims: () => ({ sub: id, email: id, email_verified: true, name: `User ${id}` }),
        }),
        cookies: {
          keys: ['a key for tests'],
          names: { session: 'company_session', interaction: 'company_interaction', resume: 'company_resume' },
        },
      });
      http.on('request', provider.callback());
    },
  };
}

/** Signs in on the pages of oidc-provider. @returns the callback URL */
async function passCompany(url: URL, user: string): Promise<URL> {
  const browser = new TestBrowser(company.issuer);
  let page = await browser.open(url.href);
  for (let step = 0; page.leftTo === null && step < 4; step += 1) {
    const fields = formsOf(page.text)[0]?.fields ?? {};
    page = await browser.submit(page, 'login' in fields ? { login: user, password: 'any' } : {});
  }
  assert.ok(page.leftTo, page.text);
  return page.leftTo;
}

async function signInAtCompany(browser: TestBrowser, login: Page, user: string): Promise<Page> {
  const sent = await pressButton(browser, login, 'company');
  assert.ok(sent.leftTo, sent.text);
  return browser.open((await passCompany(sent.leftTo, user)).href);
}

test('an app gets tokens after a sign-in with oidc-provider and consent', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const { verifier, challenge } = createPkce();
  const login = await openLoginPage(server, browser, app, { code_challenge: challenge });
  const page = await signInAtCompany(browser, login, 'ann@company.example');
  assert.match(page.text, /Connect Reader/);
  assert.match(page.text, /ann@company\.example/);
  const redirect = await passPages(browser, page, await createTestAccount(server));
  const { status, body } = await postForm(server, '/oauth/token', app, {
    grant_type: 'authorization_code',
    code: redirect.searchParams.get('code') ?? '',
    code_verifier: verifier,
    redirect_uri: app.redirectUri,
  });
  assert.equal(status, 200, JSON.stringify(body));
});

test('oidc-provider requires a new sign-in and reports auth_time when the app sends prompt=login or max_age', async () => {
  for (const parameters of [{ prompt: 'login' }, { max_age: '0' }, { max_age: '600' }]) {
    const browser = new TestBrowser(server.baseUrl);
    const login = await openLoginPage(server, browser, app, parameters as Record<string, string>);
    const page = await signInAtCompany(browser, login, 'ann@company.example');
    assert.ok(page.leftTo !== null || /Connect Reader/.test(page.text), page.text);
  }
});

test('a provider signs users in to the console and connects a device', async () => {
  // The console uses its own authorization request.
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const url = authorizationUrl(
    server,
    { id: 'nuncio-console', redirectUri: `${server.baseUrl}/console/callback` },
    { code_challenge: challenge, code_challenge_method: 'S256', scope: 'openid' },
  );
  const callback = await signInAtCompany(browser, await browser.open(url), 'console@company.example');
  assert.match(callback.url, /\/console\/callback\?code=/);

  const device = await createTestClient(server, {
    name: 'Television',
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType, 'refresh_token'],
  });
  const { body } = await postForm(server, '/oauth/device', device, { scope: 'read:posts' });
  const person = new TestBrowser(server.baseUrl);
  const input = await person.open(`${server.baseUrl}/device`);
  const code = await person.submit(input, { user_code: String(body.user_code) });
  const login = await person.submit(code, {});
  const consent = await signInAtCompany(person, login, 'viewer@company.example');
  const done = await person.submit(consent, { action: 'allow' });
  assert.match(done.text, /Device connected/);
});

test('a user of another Nuncio creates an account after a confirmation', async () => {
  const user = await createTestAccount(other, { name: 'Otto' });
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app, { login_hint: user.email });
  const sent = await pressButton(browser, login, 'other');
  const there = new TestBrowser(other.baseUrl);
  const redirect = await passPages(there, await there.open(sent.leftTo?.href ?? ''), user);
  assert.equal(redirect.searchParams.get('iss'), other.baseUrl);
  const page = await browser.open(redirect.href);
  assert.match(page.text, /Create an account/);
  const consent = await browser.submit(page, { action: 'create' });
  assert.match(consent.text, /Connect Reader/);
  const { rows } = await sql<{ name: string; email: string | null; subject: string }>`
    select a.name, a.email, i.subject from upstream_identities i join accounts a on a.id = i.account_id
    where i.provider = 'other'`.execute(server.db);
  assert.deepEqual(rows, [{ name: 'Otto', email: null, subject: user.id }]);
});

test('a user can sign in another way after cancelling at the provider', async () => {
  const user = await createTestAccount(other);
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  const sent = await pressButton(browser, login, 'other');
  const there = new TestBrowser(other.baseUrl);
  const page = await there.open(sent.leftTo?.href ?? '');
  const refusal = await there.submit(page, { action: 'deny' }, 1);
  const back = await browser.open(refusal.leftTo?.href ?? '');
  assert.match(back.text, /You cancelled the sign-in at Other/);
  assert.ok(user);
});

/** Starts the connected app, which shows the parameters of its callback. */
async function startApp(): Promise<string> {
  const http = createServer((request, response) => {
    const { searchParams } = new URL(request.url ?? '/', 'http://app');
    const text = searchParams.has('code') ? 'You are connected' : 'Not connected';
    response.writeHead(200, { 'content-type': 'text/html' }).end(`<title>${text}</title><h1>${text}</h1>`);
  });
  const port = await freePort();
  http.listen(port, '127.0.0.1');
  await once(http, 'listening');
  after(async () => {
    http.closeAllConnections();
    http.close();
  });
  return `http://localhost:${port}/callback`;
}

const looks = [
  { name: 'a phone without JavaScript', width: 390, isScripted: false, colorScheme: 'light' },
  { name: 'a phone at night', width: 390, isScripted: true, colorScheme: 'dark' },
  { name: 'a desktop', width: 1280, isScripted: true, colorScheme: 'light' },
] as const;

/** Waits until a page with this title is there: a click does not always wait for the page that it leads to. */
function titled(page: Pick<BrowserPage, 'title'>, title: RegExp): Promise<string> {
  return until(
    () => page.title().catch(() => ''),
    (text) => title.test(text),
  );
}

for (const { name, width, isScripted, colorScheme } of looks) {
  test(`upstream sign-in, consent and the connected app in a browser: ${name}`, async (t) => {
    const redirectUri = await startApp();
    const client = await createTestClient(server, { name: 'Order watch', redirectUris: [redirectUri] });
    const viewport = { width, height: 844 };
    const browser = await startBrowser(t);
    const { page, problems } = await openPage(browser, {
      viewport,
      javaScriptEnabled: isScripted,
      colorScheme,
    });
    page.setDefaultTimeout(60_000);
    // The pages of oidc-provider load a font from another host.
    const isElsewhere = (url: URL) =>
      !['localhost', '127.0.0.1'].includes(url.hostname) && url.protocol !== 'data:';
    await page.route(isElsewhere, (route) => route.fulfill({ contentType: 'text/css', body: '' }));
    const folder = process.env.SCREENSHOTS;
    const seen = async (title: RegExp) => {
      await titled(page, title);
      const body = await page.locator('main').boundingBox();
      assert.ok(
        body !== null && body.x >= 0 && body.x + body.width <= width,
        `${await page.title()} is too wide`,
      );
      if (folder === undefined) return;
      const file = `${await page.title()}-${width}-${colorScheme}`.replaceAll(/[^a-z0-9]+/gi, '-');
      await page.screenshot({ path: `${folder}/${file}.png`, fullPage: true });
    };
    await page.goto(
      authorizationUrl(server, client, {
        scope: 'openid read:posts',
        code_challenge: createPkce().challenge,
        code_challenge_method: 'S256',
      }),
    );
    await seen(/^Sign in/);
    await page.getByRole('button', { name: 'Continue with Company' }).click();
    await page.locator('input[name="login"]').fill(`${colorScheme}-${width}@company.example`);
    await page.locator('input[name="password"]').fill('any');
    await page.locator('button[type="submit"]').click();
    await page.locator('button[type="submit"]').click();
    await seen(/^Connect Order watch/);
    await page.locator('button[value="allow"]').click();
    await page.getByRole('heading', { name: 'You are connected' }).waitFor();

    // The signed-in user connects a second provider on the account page.
    const user = await createTestAccount(other);
    await page.goto(`${server.baseUrl}/account`);
    await seen(/^Your account/);
    await page.getByRole('button', { name: 'Connect Other' }).click();
    await page.getByLabel('Email address').fill(user.email);
    await page.getByLabel('Password').fill(user.password);
    await page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await page.locator('button[value="allow"]').click();
    await seen(/^Connect Other/);
    await page.getByRole('button', { name: 'Connect Other' }).click();
    await seen(/^Your account/);
    await page.locator('summary', { hasText: 'Disconnect' }).last().click();
    await seen(/^Your account/);

    // A user whose identity is not connected.
    const { page: fresh } = await openPage(browser, { viewport, javaScriptEnabled: isScripted, colorScheme });
    const stranger = await createTestAccount(other);
    await fresh.goto(`${server.baseUrl}/account`);
    await fresh.getByRole('button', { name: 'Continue with Other' }).click();
    await fresh.getByLabel('Email address').fill(stranger.email);
    await fresh.getByLabel('Password').fill(stranger.password);
    await fresh.getByRole('button', { name: 'Sign in', exact: true }).click();
    await fresh.locator('button[value="allow"]').click();
    await titled(fresh, /^Connect your account/);
    if (folder !== undefined) {
      await fresh.screenshot({ path: `${folder}/unknown-${width}-${colorScheme}.png`, fullPage: true });
    }
    await fresh.getByRole('button', { name: 'Create an account' }).click();
    await titled(fresh, /^Your account/);
    assert.deepEqual(problems, []);
  });
}
