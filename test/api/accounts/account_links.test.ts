/** Account links: single-use URLs by which an application sends its users to their account page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createTestAccount,
  createTestClient,
} from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp } from '../../support/webhooks/apps.ts';

const platform = await loadPlatform(null);
const accounts = { ...platform.accounts, returnTo: ['https://app.example.com', 'http://localhost:4000'] };
const server = await startTestServer({ after }, {}, 'dev', { ...platform, accounts });
const { db } = server;
const scopes = ['read:accounts', 'write:accounts', 'write:logins'];
const client = await createTestClient(server, { scopes });
const request = requester(server, await clientToken(server, client, scopes));

async function user(name = 'Ann Example') {
  const externalId = newId();
  const { body } = await request('PUT', `/accounts/external/${externalId}`, { json: { name } });
  const link = async (fields: object = {}) => {
    const json = { account: { external_id: externalId }, ...fields };
    const made = await request('POST', '/account-links', { json });
    assert.equal(made.status, 201, made.text);
    assert.equal(made.headers.get('cache-control'), 'no-store');
    return made.body.url as string;
  };
  return { id: body.id as string, externalId, link };
}

test('a link opens its user’s account page, where the user withdraws an app and returns', async () => {
  const ann = await user();
  const app = await createApp(server, { account: ann });
  const url = await ann.link({ return_to: 'https://app.example.com/settings?tab=apps#top' });
  assert.ok(url.startsWith(`${server.baseUrl}/account/link?code=`));
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(url);
  assert.equal(new URL(page.url).pathname, '/account');
  assert.equal(new URL(page.url).search, '', 'the secret is in no address that stays');
  assert.match(page.text, /Ann Example/);
  assert.match(page.text, /href="https:\/\/app\.example\.com\/settings\?tab=apps#top" rel="noreferrer"/);
  assert.equal(page.response.headers.get('referrer-policy'), 'no-referrer');
  const withdrawn = await browser.submit(page, {});
  assert.match(withdrawn.text, /is disconnected/);
  assert.deepEqual((await request('GET', `/accounts/${ann.id}/grants`)).body.items, []);
  assert.ok(app.grantId);
});

test('a link works once, also when two browsers follow it concurrently', async () => {
  const ann = await user();
  const url = await ann.link();
  const answers = await Promise.all(
    Array.from({ length: 6 }, () => new TestBrowser(server.baseUrl).request(url)),
  );
  assert.deepEqual(answers.map(({ status }) => status).sort(), [303, 400, 400, 400, 400, 400]);
  const again = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(again.response.status, 400);
  assert.match(again.text, /Go back to the previous page/);
  assert.doesNotMatch(again.text, /Ann Example/);
});

test('a link is refused when it is expired, guessed, or its account disabled or deleted', async () => {
  const ann = await user();
  const late = await ann.link();
  await sql`update account_links set expires_at = now() where account_id = ${ann.id}`.execute(db);
  const ofDisabled = await ann.link();
  await sql`update accounts set disabled_at = now() where id = ${ann.id}`.execute(db);
  const bob = await user();
  const ofDeleted = await bob.link();
  assert.equal((await request('DELETE', `/accounts/${bob.id}`)).status, 204);
  for (const url of [
    late,
    ofDisabled,
    ofDeleted,
    `${server.baseUrl}/account/link`,
    `${server.baseUrl}/account/link?code=`,
    `${server.baseUrl}/account/link?code=${'a'.repeat(43)}`,
    `${server.baseUrl}/account/link?code=a&code=b`,
    `${server.baseUrl}/account/link?code=%00`,
  ]) {
    const page = await new TestBrowser(server.baseUrl).open(url);
    assert.equal(page.response.status, 400, url);
    assert.equal(page.response.headers.get('set-cookie'), null, url);
  }
});

test('HEAD and prefetch do not use a link up', async () => {
  const ann = await user();
  const url = await ann.link();
  assert.notEqual((await fetch(url, { method: 'HEAD', redirect: 'manual' })).status, 303);
  for (const purpose of ['prefetch', 'prefetch;prerender']) {
    const ahead = await fetch(url, { headers: { 'sec-purpose': purpose }, redirect: 'manual' });
    assert.equal(ahead.status, 400, purpose);
  }
  assert.equal((await new TestBrowser(server.baseUrl).request(url)).status, 303);
});

test('a link’s session opens the account page and signs nobody in to apps or the console', async () => {
  const ann = await user();
  const browser = new TestBrowser(server.baseUrl);
  await browser.open(await ann.link());
  const app = await createTestClient(server);
  const authorize = authorizationUrl(server, app, {
    scope: 'read:posts',
    code_challenge: 'a'.repeat(43),
    code_challenge_method: 'S256',
  });
  assert.match((await browser.open(authorize)).text, /name="password"/);
  const silent = await browser.open(`${authorize}&prompt=none`);
  assert.equal(silent.leftTo?.searchParams.get('error'), 'login_required');
  const { rows } = await sql`select from login_sessions where account_id = ${ann.id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('a link leaves the browser’s own login unchanged, and leaving the link returns to it', async () => {
  const bob = await createTestAccount(server, { name: 'Bob Local' });
  const ann = await user();
  const browser = new TestBrowser(server.baseUrl);
  const signIn = await browser.open(`${server.baseUrl}/account`);
  assert.match(
    (await browser.submit(signIn, { email: bob.email, password: bob.password })).text,
    /Bob Local/,
  );
  const page = await browser.open(await ann.link());
  assert.match(page.text, /Ann Example/);
  const forged = await browser.request(`${server.baseUrl}/account/leave`, {
    method: 'POST',
    body: new URLSearchParams({ form_token: 'x' }),
  });
  assert.equal(forged.status, 403);
  const left = await browser.submit(page, {});
  assert.match(left.text, /Bob Local/);
  const { rows } = await sql`select from account_links where account_id = ${ann.id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('a link’s cookie is refused after its user is signed out everywhere', async () => {
  const ann = await user();
  const browser = new TestBrowser(server.baseUrl);
  await browser.open(await ann.link());
  await request('PATCH', `/accounts/${ann.id}`, { json: { disabled: true } });
  await request('PATCH', `/accounts/${ann.id}`, { json: { disabled: false } });
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /name="password"/);
});

test('users return to declared origins only', async () => {
  const ann = await user();
  for (const bad of [
    'https://evil.example/',
    'https://app.example.com.evil.example/',
    'https://app.example.com@evil.example/',
    'https://user:word@app.example.com/',
    'https://app.example.com:8443/',
    'http://app.example.com/',
    '//evil.example/',
    '/settings',
    'javascript:alert(1)//https://app.example.com',
    'data:text/html,https://app.example.com',
    'https:\\\\evil.example',
    'blob:https://app.example.com/x',
    `https://app.example.com/${'a'.repeat(2_048)}`,
    '',
    7,
    [],
  ]) {
    const json = { account: { external_id: ann.externalId }, return_to: bad };
    const answer = await request('POST', '/account-links', { json });
    assert.equal(answer.status, 422, `${bad}: ${answer.text}`);
    assert.equal(answer.body.errors[0].pointer, '/return_to', String(bad));
  }
  for (const good of [
    'https://app.example.com',
    'https://app.example.com/a?b=c',
    'http://localhost:4000/x',
  ]) {
    await ann.link({ return_to: good });
  }
});

test('links are created only for the application’s users', async () => {
  const local = await createTestAccount(server);
  const ofLocal = await request('POST', '/account-links', { json: { account: local.id } });
  assert.deepEqual([ofLocal.status, ofLocal.body.code], [409, 'local-account']);
  for (const account of [newId(), { external_id: newId() }]) {
    const unknown = await request('POST', '/account-links', { json: { account } });
    assert.deepEqual([unknown.status, unknown.body.code], [422, 'unknown-account']);
  }
  for (const json of [{}, { account: 7 }, { account: {} }, [], { account: local.id, extra: 1 }]) {
    assert.equal((await request('POST', '/account-links', { json })).status, 422, JSON.stringify(json));
  }
});
