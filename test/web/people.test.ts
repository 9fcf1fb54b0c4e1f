/** Pages that users see off the main path: errors, mistyped addresses, outdated pages, another account, denied consent. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server, { name: 'Weekend Reader' });

/** The `Accept` header that a browser sends when a user follows a link. */
const asBrowser = { headers: { accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8' } };

function ask(parameters: Record<string, string | undefined> = {}) {
  const { verifier, challenge } = createPkce();
  const url = authorizationUrl(server, client, {
    scope: 'openid read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
  return { verifier, url };
}

function assertPage(page: Page, status: number, heading: RegExp): void {
  assert.equal(page.response.status, status);
  assert.match(page.response.headers.get('content-type') ?? '', /^text\/html/);
  assert.match(page.response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
  assert.match(page.text, heading);
}

test('an unknown address is a page for a browser and a problem for a program', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${server.baseUrl}/acount`, asBrowser);
  assertPage(page, 404, /<h1>Page not found<\/h1>[\s\S]*<a href="\/">/);
  for (const accept of ['*/*', 'application/json', 'application/json, text/html']) {
    const response = await fetch(`${server.baseUrl}/acount`, { headers: { accept } });
    assert.equal(response.status, 404);
    assert.equal(response.headers.get('content-type'), 'application/problem+json');
  }
  const posted = await fetch(`${server.baseUrl}/acount`, { method: 'POST', ...asBrowser });
  assert.equal(posted.headers.get('content-type'), 'application/problem+json');
});

test('an expired form shows a page that says so, with the request id', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(ask().url);
  const page = await browser.submit(login, { form_token: 'old', action: 'login' });
  assertPage(page, 403, /This form has expired or came from another site/);
  const requestId = page.response.headers.get('request-id') ?? 'none';
  assert.ok(page.text.includes(`request <code>${requestId}</code>`));
});

test('a refused authorization request tells the user why and the developer what was sent', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const wrong = await browser.open(ask({ redirect_uri: 'https://evil.example/"><b>' }).url);
  assertPage(wrong, 400, /asked to send you to an address that is not registered/);
  assert.match(
    wrong.text,
    /app sent the redirect_uri <code>https:\/\/evil\.example\/&quot;&gt;&lt;b&gt;<\/code>/,
  );
  assert.match(wrong.text, /<code>invalid_redirect_uri<\/code>, request <code>[0-9a-f-]{36}<\/code>/);
  assert.doesNotMatch(wrong.text, /Redirect_uri/);
  const unknown = await browser.open(ask({ client_id: 'nobody' }).url);
  assertPage(unknown, 400, /is not registered[\s\S]*app sent the client_id <code>nobody<\/code>/);
  const none = await browser.open(ask({ client_id: undefined }).url);
  assertPage(none, 400, /Missing required parameter &#39;client_id&#39;\./);
});

test('an answered interaction shows a page that says so at each of its addresses', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(ask().url);
  await passPages(browser, login, account);
  assertPage(await browser.open(login.url), 400, /expired[\s\S]*Request <code>[0-9a-f-]{36}<\/code>/);
  const resumed = login.url.replace('/interaction/', '/oauth/authorize/');
  assertPage(
    await browser.open(resumed, asBrowser),
    400,
    /expired[\s\S]*Request <code>[0-9a-f-]{36}<\/code>/,
  );
});

test('a reader who is not the signed-in user signs in and answers for themselves', async () => {
  const { browser } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const other = await createTestAccount(server);
  const { url, verifier } = ask({ prompt: 'consent' });
  const question = await browser.open(url);
  assert.ok(question.text.includes(account.email));
  const back = await browser.submit(await browser.submit(question, { action: 'switch' }), { action: 'back' });
  assert.ok(back.text.includes(account.email));
  const form = await browser.submit(question, { action: 'switch' });
  const credentials = { action: 'login', email: other.email, password: other.password };
  const refused = await browser.submit(form, { ...credentials, password: 'not the password' });
  assertPage(refused, 422, /role="alert"[\s\S]*value="back"/);
  // First, a form signs the browser out. It submits itself if scripts run.
  const between = await browser.submit(form, credentials);
  assert.match(between.text, /<link rel="stylesheet"[\s\S]*<noscript>[\s\S]*<button/);
  const again = await browser.submit(between, {});
  assert.ok(again.text.includes(other.email));
  assert.ok(!again.text.includes(account.email));
  const { leftTo } = await browser.submit(again, { action: 'allow' });
  const { body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: leftTo?.searchParams.get('code') ?? '',
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  });
  assert.equal(decodeJwt(String(body.access_token)).sub, other.id);
});

test('"Stay signed in" does not claim a sign-out', async () => {
  const { browser } = await authorize(server, { account, client, scopes: ['openid'] });
  const stayed = await browser.submit(await browser.open(`${server.baseUrl}/oauth/logout`), {});
  assertPage(stayed, 200, /<h1>You are still signed in<\/h1>/);
  const left = await browser.submit(await browser.open(`${server.baseUrl}/oauth/logout`), { logout: 'yes' });
  assertPage(left, 200, /<h1>You are signed out<\/h1>/);
});

test('refusing a device is no error, and its question names no redirect', async () => {
  const device = await createTestClient(server, {
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType],
  });
  const { body } = await postForm(server, '/oauth/device', device, { scope: 'read:posts' });
  const browser = new TestBrowser(server.baseUrl);
  const input = await browser.open(`${server.baseUrl}/device`);
  const confirmation = await browser.submit(input, { user_code: String(body.user_code) });
  const login = await browser.submit(confirmation, {});
  const credentials = { action: 'login', email: account.email, password: account.password };
  const question = await browser.submit(login, credentials);
  assert.match(question.text, /value="allow"/);
  assert.doesNotMatch(question.text, /will be sent to/);
  const refused = await browser.submit(question, { action: 'deny' });
  assert.match(refused.text, /<h1>Device not connected<\/h1>/);
  assert.doesNotMatch(refused.text, /role="alert"/);
});

test('the account page names only the app that was just disconnected', async () => {
  const second = await createTestClient(server, { name: 'Second App' });
  const { browser } = await authorize(server, { account, client, scopes: ['read:posts'] });
  await authorize(server, { account, client: second, scopes: ['read:posts'], browser });
  const page = await browser.open(`${server.baseUrl}/account`);
  assert.match(page.text, /Disconnect Second App/);
  const withdrawn = await browser.submit(page, { client_id: second.id });
  assert.match(withdrawn.text, /role="status"><strong>Second App<\/strong> is disconnected/);
  for (const id of [client.id, 'nobody']) {
    const other = await browser.open(`${server.baseUrl}/account?withdrawn=${id}`);
    assert.doesNotMatch(other.text, /is disconnected/);
  }
});
