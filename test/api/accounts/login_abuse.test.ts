/** Attacks on handed-over sign-in by a hostile app, a stranger or a stale session. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { formsOf, type Page, TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestClient,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp } from '../../support/webhooks/apps.ts';

const platform = await loadPlatform(null);
const login = { url: 'https://app.example.com/login', acrValues: [], administrators: false };
const handedOver = { ...platform, accounts: { ...platform.accounts, login } };
const server = await startTestServer({ after }, {}, 'dev', {
  ...platform,
  accounts: { ...platform.accounts, login, returnTo: ['https://app.example.com'] },
});
const { db } = server;
const machineScopes = ['write:logins', 'read:accounts', 'write:accounts'];
const machine = await createTestClient(server, { scopes: machineScopes });
const request = requester(server, await clientToken(server, machine, machineScopes));
const scopes = ['openid', 'read:posts'];
const app = await createTestClient(server, { scopes });
const hostile = await createTestClient(server, { scopes, origin: 'registration' });

const pkce = createPkce();

function urlOf(client: TestClient, parameters: Record<string, string> = {}, at = server): string {
  return authorizationUrl(at, client, {
    scope: scopes.join(' '),
    code_challenge: pkce.challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
}

function requestOf({ leftTo, text }: Page): string {
  const id = leftTo?.searchParams.get('login_request');
  assert.ok(id, `${leftTo} ${text}`);
  return id;
}

async function accept(id: string, fields: object = {}): Promise<string> {
  const json = { account: { external_id: newId(), name: 'Ann' }, ...fields };
  const answer = await request('POST', `/login-requests/${id}/accept`, { json });
  assert.equal(answer.status, 200, answer.text);
  return answer.body.redirect_to;
}

async function idTokenOf(page: Page, client: TestClient) {
  const code = page.leftTo?.searchParams.get('code') ?? '';
  const form = {
    grant_type: 'authorization_code',
    code,
    code_verifier: pkce.verifier,
    redirect_uri: client.redirectUri,
  };
  const { body } = await postForm(server, '/oauth/token', client, form);
  return decodeJwt(String(body.id_token));
}

async function count(table: string, where: string): Promise<number> {
  const { rows } = await sql<{ n: number }>`
    select count(*)::int as n from ${sql.table(table)} where ${sql.raw(where)}`.execute(db);
  return rows[0]?.n ?? 0;
}

const errorOf = (page: Page) => page.leftTo?.searchParams.get('error');

test('an error does not redirect to an unchecked app when the application signs in without a page', async () => {
  const claims = JSON.stringify({ id_token: { sub: { value: 'nobody' } } });
  for (const answer of ['accept', 'reject']) {
    const browser = new TestBrowser(server.baseUrl);
    const id = requestOf(await browser.open(urlOf(hostile, { claims })));
    const redirectTo =
      answer === 'accept'
        ? await accept(id)
        : (await request('POST', `/login-requests/${id}/reject`)).body.redirect_to;
    const page = await browser.open(redirectTo);
    assert.equal(page.leftTo, null, `${answer}: ${page.leftTo}`);
    assert.equal(page.response.status, 400);
    assert.ok(page.text.includes(new URL(hostile.redirectUri).host), 'the page shows where its link leads');
  }
});

test('an error does not redirect when the last act was a form and the application responds later', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const consent = await browser.open(await accept(requestOf(await browser.open(urlOf(hostile)))));
  const id = requestOf(await browser.submit(consent, { action: 'switch' }));
  const { redirect_to: redirectTo } = (await request('POST', `/login-requests/${id}/reject`)).body;
  assert.equal((await browser.open(redirectTo)).leftTo, null);
});

test('an error still redirects at once when the user refused on the consent page', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const consent = await browser.open(await accept(requestOf(await browser.open(urlOf(hostile)))));
  const page = await browser.submit(consent, { action: 'deny' });
  assert.equal(page.leftTo?.origin, new URL(hostile.redirectUri).origin);
  assert.equal(errorOf(page), 'access_denied');
});

test('HEAD begins no sign-in', async () => {
  const before = await count('login_requests', 'true');
  const account = await fetch(`${server.baseUrl}/account`, { method: 'HEAD', redirect: 'manual' });
  assert.equal(account.status, 405);
  const browser = new TestBrowser(server.baseUrl);
  await browser.open(urlOf(app));
  const uid = browser.cookies.find(({ path }) => path.startsWith('/interaction/'))?.path.split('/')[2];
  const head = await browser.request(`${server.baseUrl}/interaction/${uid}`, { method: 'HEAD' });
  assert.equal(head.status, 405);
  assert.equal(await count('login_requests', 'true'), before + 1);
});

test('an address begins a limited number of sign-ins a minute', async () => {
  const limited = await startTestServer({ after }, { NUNCIO_RATE_LIMIT: '5' }, 'dev', handedOver);
  const client = await createTestClient(limited, { scopes });
  const browser = new TestBrowser(limited.baseUrl);
  const interaction = (await browser.request(urlOf(client, {}, limited))).headers.get('location') ?? '';
  for (const path of ['/account', interaction]) {
    let status = 303;
    // A new minute may begin twice during the loop.
    for (let tries = 0; tries < 16 && status === 303; tries += 1) {
      ({ status } = await browser.request(new URL(path, limited.baseUrl).href));
    }
    assert.equal(status, 429, path);
  }
});

test('answered and expired sign-ins do not count as open', async () => {
  const browser = new TestBrowser(server.baseUrl);
  let id = requestOf(await browser.open(urlOf(app)));
  const uid = browser.cookies.find(({ path }) => path.startsWith('/interaction/'))?.path.split('/')[2];
  for (let tries = 0; tries < 24; tries += 1) {
    if (tries % 2 === 0) await accept(id);
    else
      await sql`update login_requests set expires_at = now() where digest = sha256(${Buffer.from(id)})`.execute(
        db,
      );
    id = requestOf(await browser.open(`${server.baseUrl}/interaction/${uid}`));
  }
});

async function openLink(returnTo?: string) {
  const externalId = newId();
  const { body } = await request('PUT', `/accounts/external/${externalId}`, { json: { name: 'Ann' } });
  await createApp(server, { account: { id: body.id } });
  const json = {
    account: { external_id: externalId },
    ...(returnTo === undefined ? {} : { return_to: returnTo }),
  };
  const link = await request('POST', '/account-links', { json });
  const browser = new TestBrowser(server.baseUrl);
  return { id: body.id as string, browser, page: await browser.open(link.body.url) };
}

async function submit(browser: TestBrowser, page: Page, action: string): Promise<Page> {
  const index = formsOf(page.text).findIndex((form) => form.action === action);
  assert.notEqual(index, -1, page.text);
  return browser.submit(page, {}, index);
}

test('leaving a link’s account page begins no sign-in', async () => {
  const { browser, page } = await openLink('https://app.example.com/settings');
  const before = await count('login_requests', 'true');
  const left = await submit(browser, page, '/account/leave');
  assert.equal(left.leftTo, null, String(left.leftTo));
  assert.match(left.text, /You have left your account/);
  assert.match(left.text, /href="https:\/\/app\.example\.com\/settings"/);
  assert.match((await submit(browser, page, '/account/leave')).text, /You have left your account/);
  assert.equal(await count('login_requests', 'true'), before);
});

test('withdrawing begins no sign-in when the link’s session has ended', async () => {
  const { id, browser, page } = await openLink();
  await sql`update account_links set expires_at = now() where account_id = ${id}`.execute(db);
  const before = await count('login_requests', 'true');
  const late = await submit(browser, page, '/account/withdraw');
  assert.equal(late.leftTo, null, String(late.leftTo));
  assert.equal(late.response.status, 400);
  assert.match(late.text, /expired/);
  assert.equal(await count('login_requests', 'true'), before);
});

test('a sign-in without auth_time satisfies no max_age and appears in no id_token', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const consent = await browser.open(await accept(requestOf(await browser.open(urlOf(app)))));
  const idToken = await idTokenOf(await browser.submit(consent, { action: 'allow' }), app);
  assert.ok(idToken.sub);
  assert.ok(!('auth_time' in idToken), JSON.stringify(idToken));
  assert.ok((await browser.open(urlOf(app, { prompt: 'none' }))).leftTo?.searchParams.has('code'));
  const silent = await browser.open(urlOf(app, { prompt: 'none', max_age: '86400' }));
  assert.equal(errorOf(silent), 'login_required');
  const id = requestOf(await browser.open(urlOf(app, { max_age: '86400' })));
  const json = { account: { external_id: newId() } };
  assert.equal((await request('POST', `/login-requests/${id}/accept`, { json })).status, 422);
});

test('a sign-in at the account page without auth_time satisfies no max_age', async () => {
  const browser = new TestBrowser(server.baseUrl);
  await browser.open(await accept(requestOf(await browser.open(`${server.baseUrl}/account`))));
  const silent = await browser.open(urlOf(app, { prompt: 'none', max_age: '86400' }));
  assert.equal(errorOf(silent), 'login_required');
});

test('the sign-in cookie is deleted when the sign-in finishes', async () => {
  for (const url of [urlOf(app), `${server.baseUrl}/account`]) {
    const browser = new TestBrowser(server.baseUrl);
    const id = requestOf(await browser.open(url));
    const waits = () => browser.cookies.some(({ name }) => name.includes('nuncio_login_'));
    assert.ok(waits());
    const page = await browser.open(await accept(id));
    assert.equal(page.response.status, 200, page.text);
    assert.ok(!waits(), url);
  }
});

test('a sign-in at the account page ends another account’s session and notifies its apps', async () => {
  const told = await createTestClient(server, {
    scopes,
    metadata: { backchannel_logout_uri: 'https://app.invalid/logout' },
  });
  const browser = new TestBrowser(server.baseUrl);
  const first = requestOf(await browser.open(`${server.baseUrl}/account`));
  const second = requestOf(await browser.open(`${server.baseUrl}/account`));
  await browser.open(await accept(first));
  const consent = await browser.open(urlOf(told));
  const { sub } = await idTokenOf(await browser.submit(consent, { action: 'allow' }), told);
  const page = await browser.open(await accept(second, { account: { external_id: newId(), name: 'Bob' } }));
  assert.match(page.text, /<h1>Bob<\/h1>/);
  assert.equal(await count('login_sessions', `account_id = '${sub}'`), 0);
  assert.equal(await count('logout_notices', `account_id = '${sub}' and client_id = '${told.id}'`), 1);
  const { rows } = await sql`
    select from login_sessions s join accounts a on a.id = s.account_id
    where a.name = 'Bob' and s.payload ? 'authorizations'`.execute(db);
  assert.equal(rows.length, 0, 'the other session is deleted');
});
