/** The user's account page: connected apps, and how users disconnect them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { signInToConsole } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server, { name: 'A <b>bold</b> app' });

async function signedIn(): Promise<TestBrowser> {
  const browser = new TestBrowser(server.baseUrl);
  const form = await browser.open(`${server.baseUrl}/account`);
  const page = await browser.submit(form, { email: account.email, password: account.password });
  assert.match(page.text, /Connected apps/);
  return browser;
}

test('oauth 98: the account page shows each app with its scopes, first and last use, and disconnects it', async () => {
  const first = await authorize(server, { account, client, scopes: ['openid', 'read:posts'] });
  const second = await authorize(server, { account, client, scopes: ['read:posts', 'read:profile'] });
  const browser = await signedIn();
  const page = await browser.open(`${server.baseUrl}/account`);
  assert.ok(page.text.includes('A &lt;b&gt;bold&lt;/b&gt; app'));
  assert.match(page.text, /read your articles/);
  assert.match(page.text, /see your profile/);
  assert.match(
    page.text,
    /Connected <time datetime="\d{4}-\d\d-\d\d">\w+ \d+, \d{4}<\/time>, last used <time datetime="\d{4}-\d\d-\d\d">/,
  );
  const after = await browser.submit(page, {});
  assert.match(after.text, /No apps are connected to your account/);
  for (const { refreshToken } of [first, second]) {
    const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
    const { status, body } = await postForm(server, '/oauth/token', client, form);
    assert.deepEqual([status, body.error], [400, 'invalid_grant']);
  }
  const seen = await postForm(server, '/oauth/introspect', client, { token: first.accessToken });
  assert.deepEqual(seen.body, { active: false });
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  const headers = { authorization: `Bearer ${first.accessToken}` };
  assert.equal((await fetch(`${server.baseUrl}/api`, { headers })).status, 401);
});

test('the account page does not list the server’s own apps', async () => {
  const user = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  await signInToConsole(server, user, {}, browser);
  const page = await browser.open(`${server.baseUrl}/account`);
  assert.match(page.text, /No apps are connected to your account/);
});

test('the account page uses the session in which apps are allowed', async () => {
  const browser = await signedIn();
  const { challenge } = createPkce();
  const parameters = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  const page = await browser.open(authorizationUrl(server, client, parameters));
  assert.match(page.text, /value="allow"/);
});

test('attack: form tokens and headers keep others from withdrawing, signing in or framing', async () => {
  await authorize(server, { account, client, scopes: ['read:posts'] });
  const browser = await signedIn();
  const page = await browser.open(`${server.baseUrl}/account`);
  assert.match(page.response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  const forged = await browser.submit(page, { form_token: 'guessed' });
  assert.equal(forged.response.status, 403);
  const other = await createTestAccount(server);
  const others = new TestBrowser(server.baseUrl);
  const form = await others.open(`${server.baseUrl}/account`);
  const theirs = await others.submit(form, { email: other.email, password: other.password });
  assert.match(theirs.text, /No apps are connected to your account/);
  const crossed = await others.submit(page, {});
  assert.equal(crossed.response.status, 403);
  const stranger = await new TestBrowser(server.baseUrl).submit(form, {
    email: account.email,
    password: account.password,
  });
  assert.equal(stranger.response.status, 403);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /A &lt;b&gt;bold/);
});

test('signing out ends the session and no grant', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const browser = await signedIn();
  const question = await browser.open(`${server.baseUrl}/oauth/logout`);
  assert.match(question.text, /Sign out\?/);
  const out = await browser.submit(question, { logout: 'yes' });
  assert.match(out.text, /signed out/);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /name="password"/);
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', client, form)).status, 200);
});

test('behind https every cookie is Secure, HttpOnly and SameSite, and every URL is https', async (context) => {
  const secure = await startTestServer(context, { NUNCIO_BASE_URL: 'https://nuncio.example' });
  const app = await createTestClient(secure);
  const { challenge } = createPkce();
  const url = new URL(
    authorizationUrl({ baseUrl: 'https://nuncio.example' }, app, {
      scope: 'read:posts',
      code_challenge: challenge,
      code_challenge_method: 'S256',
    }),
  );
  const response = await fetch(secure.running.address + url.pathname + url.search, { redirect: 'manual' });
  assert.equal(response.status, 303);
  assert.match(response.headers.get('location') ?? '', /^(https:\/\/nuncio\.example)?\/interaction\//);
  const cookies = response.headers.getSetCookie();
  assert.ok(cookies.length > 0);
  for (const cookie of cookies) {
    assert.match(cookie, /^__(Secure|Host)-nuncio_/);
    assert.match(cookie, /; secure/i);
    assert.match(cookie, /; httponly/i);
    assert.match(cookie, /; samesite=lax/i);
  }
});
