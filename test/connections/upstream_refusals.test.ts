/** What traces say about sign-ins with an upstream provider that are refused, during the authorization request of an app. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { generateKeyPair } from 'jose';
import { sql } from 'kysely';
import { readConnections } from '../../src/connections/connection_store.ts';
import { newId } from '../../src/crypto/ids.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createTestAccount,
  createTestClient,
  passPages,
} from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import {
  callbackOf,
  declare,
  openLoginPage,
  pressButton,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';
import { until } from '../support/webhooks/apps.ts';

const one = await startFakeProvider({ after });
const broken = await startFakeProvider({ after });
broken.overrides.set('/.well-known/openid-configuration', (request) => request.socket.destroy());
const server = await startServerWithProviders(
  { after },
  [
    declare('one', one, { name: 'Example ID', trustEmail: true }),
    declare('broken', broken, { name: 'Broken ID' }),
  ],
  'open',
  { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' },
);
const { db } = server;
const connectionOf = await createTraceReader(server);
const requestOf = ({ response }: Page) => response.headers.get('request-id');

/** A browser of its own for an app of its own, on the way to the provider. */
async function begin(parameters: Record<string, string> = {}) {
  const client = await createTestClient(server, { authMethod: 'none' });
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, client, parameters);
  const sent = await pressButton(browser, login, 'one');
  const authorize = sent.leftTo as URL;
  const sub = newId();
  const sign = (claims: object = {}) =>
    one.sign({ nonce: authorize.searchParams.get('nonce'), sub, ...claims });
  one.idToken = () => sign();
  const callback = (parameters_: Record<string, string> = {}) =>
    callbackOf(authorize, { iss: one.issuer, ...parameters_ });
  return { client, browser, login, authorize, sign, callback, sub };
}

/** Asserts the step, in the connection of the app. @returns its explanation */
async function explanationOf(page: Page, clientId: string, error: string): Promise<string> {
  assert.ok(page.response.status >= 400, page.text);
  const connection = await connectionOf(requestOf(page));
  assert.equal(connection.client, clientId);
  assert.equal(connection.outcome, 'refused');
  assert.deepEqual(
    connection.steps.map(({ name, outcome }) => `${name} ${outcome}`),
    ['authorize ok', 'sign-in refused'],
  );
  assert.equal(connection.refused.error, error);
  return connection.refused.explanation ?? '';
}

function errorUrl(callback: string, error: string, more: Record<string, string> = {}): string {
  const url = new URL(callback);
  url.searchParams.delete('code');
  for (const [name, value] of Object.entries({ error, ...more })) url.searchParams.set(name, value);
  return url.href;
}

test('an error of the provider is a refused sign-in of the app, without the text of the provider', async () => {
  const secret = 'text-of-the-provider';
  const cancelled = await begin();
  const denied = await cancelled.browser.open(
    errorUrl(cancelled.callback(), 'access_denied', { error_description: secret }),
  );
  assert.match(
    await explanationOf(denied, cancelled.client.id, 'upstream-cancelled'),
    /^Example ID returned the error access_denied: .*Nothing is wrong with the request of the app\. The user can try again/,
  );
  for (const [sent, shown] of [
    ['unauthorized_client', 'the error unauthorized_client'],
    [secret, 'an error'],
  ] as const) {
    const { browser, callback, client } = await begin();
    const page = await browser.open(errorUrl(callback(), sent, { error_description: secret }));
    const explanation = await explanationOf(page, client.id, 'upstream-refused');
    assert.match(
      explanation,
      new RegExp(`^Example ID returned ${shown} instead of a code\\. .*accounts\\.upstream`),
    );
    // The operator finds the step by what the page shows.
    assert.match(page.text, new RegExp(`upstream-refused.*${requestOf(page)}`));
  }
  const { rows } = await sql`select from connections where strpos(steps::text, ${secret}) > 0`.execute(db);
  assert.equal(rows.length, 0);
});

test('a provider that rejects the code, or cannot be reached, is named with what to compare', async (t) => {
  const rejected = await begin();
  one.overrides.set('/token', (_request, response) =>
    response
      .writeHead(401, { 'content-type': 'application/json' })
      .end(JSON.stringify({ error: 'invalid_client', error_description: 'text-of-the-provider' })),
  );
  t.after(() => one.overrides.delete('/token'));
  const page = await rejected.browser.open(rejected.callback());
  const explanation = await explanationOf(page, rejected.client.id, 'upstream-refused');
  assert.match(explanation, /rejected the code with the error invalid_client\. .*clientId, its secret/);
  assert.doesNotMatch(explanation, /text-of/);

  const client = await createTestClient(server, { authMethod: 'none' });
  const browser = new TestBrowser(server.baseUrl);
  const unreachable = await pressButton(browser, await openLoginPage(server, browser, client), 'broken');
  assert.match(
    await explanationOf(unreachable, client.id, 'upstream-unavailable'),
    /^Broken ID could not be reached.*The log of the server says more\. Nothing is wrong with the request of the app\.$/,
  );
  // Nothing of the operator's network.
  assert.doesNotMatch(JSON.stringify(await connectionOf(requestOf(unreachable))), /127\.0\.0\.1:\d|ECONN/);
});

test('an ID token that is not valid says which check failed and what to do', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const { privateKey } = await generateKeyPair('RS256');
  const cases: [claims: object, key: typeof privateKey | undefined, expected: RegExp][] = [
    [{ nonce: 'another' }, undefined, /"nonce" claim value\. Expected the nonce of this sign-in/],
    [{ aud: 'another' }, undefined, /"aud" .*Expected the issuer and the clientId of accounts\.upstream/],
    [{ exp: now - 600, iat: now - 900 }, undefined, /"exp" .*Synchronize the clocks/],
    [{ iat: now + 600, exp: now + 900 }, undefined, /in the future\. Synchronize the clocks/],
    [{}, privateKey, /signature verification failed\. Expected a signature by a key/],
  ];
  for (const [claims, key, expected] of cases) {
    const { browser, authorize, sub, callback, client } = await begin();
    const nonce = authorize.searchParams.get('nonce');
    one.idToken = () => one.sign({ nonce, sub, ...claims }, {}, key);
    const page = await browser.open(callback());
    assert.match(await explanationOf(page, client.id, 'upstream-invalid'), expected);
  }
});

test('a response without its state or cookie is a refused sign-in, and the sign-in can be repeated', async () => {
  const account = await createTestAccount(server);
  const { browser, callback, client, login } = await begin();
  // The browser lost its cookie, or it is another one.
  const elsewhere = await new TestBrowser(server.baseUrl).open(callback());
  assert.match(
    await explanationOf(elsewhere, client.id, 'upstream-expired'),
    /works once, within ten minutes, and only in the browser where it began\. Start again/,
  );
  const url = new URL(callback());
  url.searchParams.set('state', 'x'.repeat(43));
  const wrong = await browser.open(url.href);
  assert.equal((await connectionOf(requestOf(wrong))).client, null);
  url.searchParams.delete('state');
  const missing = await browser.open(url.href);
  assert.equal((await connectionOf(requestOf(missing))).refused.error, 'upstream-expired');
  // The password is still possible.
  assert.ok((await passPages(browser, await browser.open(login.url), account)).searchParams.get('code'));
  const [found] = await until(
    () => readConnections(db, { clientId: client.id }, 9),
    ([first]) => first?.steps.some(({ name }) => name === 'code') === true,
  );
  assert.equal(found?.outcome, 'open');
});

test('attack: a callback that is replayed adds one step to its connection and none to others', async () => {
  const { browser, callback, client } = await begin();
  const other = await begin();
  const denied = errorUrl(callback(), 'access_denied');
  const from = (address: string) => ({ headers: { 'x-forwarded-for': address } });
  await browser.open(denied, from('192.0.2.1'));
  let last: Page | undefined;
  for (let count = 0; count < 20; count += 1) last = await browser.open(denied, from('192.0.2.1'));
  // The state of one sign-in with the cookie of another.
  await other.browser.open(denied, from('192.0.2.1'));
  const marker = await fetch(`${server.baseUrl}/login/one/callback`, from('192.0.2.2'));
  await connectionOf(marker.headers.get('request-id'));
  assert.equal(last?.response.status, 400);
  const [own, ...more] = await readConnections(db, { clientId: client.id }, 9);
  assert.deepEqual(
    own?.steps.map(({ name, error }) => `${name} ${error}`),
    ['authorize null', 'sign-in upstream-cancelled', 'sign-in upstream-expired'],
  );
  assert.deepEqual(more, []);
  const [others] = await readConnections(db, { clientId: other.client.id }, 9);
  assert.deepEqual(
    others?.steps.map(({ name }) => name),
    ['authorize'],
  );
});

test('an identity that may not sign in, and a sign-in that is too old, are explained', async () => {
  const old = await begin({ max_age: '60' });
  one.idToken = () => old.sign({ auth_time: Math.floor(Date.now() / 1_000) - 4_000 });
  const tooOld = await old.browser.open(old.callback());
  // openid-client refuses it, because it has sent max_age, or the last step does.
  const shown = (await connectionOf(requestOf(tooOld))).refused;
  assert.equal(shown.name, 'sign-in');
  assert.match(shown.explanation ?? '', /max_age|Synchronize the clocks/);

  const { browser, callback, client, sign, sub } = await begin();
  one.idToken = () => sign({ email: `${sub}@example.com`, email_verified: true });
  await browser.open(callback());
  const { rows } = await sql`
    update accounts set disabled_at = now() where id = (select account_id from upstream_identities where subject = ${sub})
    returning id`.execute(db);
  assert.equal(rows.length, 1);
  const again = new TestBrowser(server.baseUrl);
  const sent = await pressButton(again, await openLoginPage(server, again, client), 'one');
  const nonce = (sent.leftTo as URL).searchParams.get('nonce');
  one.idToken = () => one.sign({ nonce, sub });
  const refused = await again.open(callbackOf(sent.leftTo as URL, { iss: one.issuer }));
  assert.match(
    await explanationOf(refused, client.id, 'upstream-disabled'),
    /account of the user is disabled\. Only the operator/,
  );
});

test('the last step without a form token, and a wrong password there, are refused sign-ins', async () => {
  const { browser, callback, client } = await begin();
  const choice = await browser.open(callback());
  const index = formsOf(choice.text).findIndex(({ buttons }) =>
    buttons.some(([, value]) => value === 'connect'),
  );
  assert.notEqual(index, -1, choice.text);
  const forged = await browser.submit(choice, { form_token: 'forged', action: 'create' });
  assert.match(await explanationOf(forged, client.id, 'form-token'), /no valid token of its page/);
  const account = await createTestAccount(server);
  const wrong = await browser.submit(
    choice,
    { email: account.email, password: 'not the password', action: 'connect' },
    index,
  );
  assert.equal(wrong.response.status, 422);
  const { refused } = await connectionOf(requestOf(wrong));
  assert.equal(refused.error, 'sign-in-refused');
});

test('the last step without a sign-in, and more sign-ins than a request may begin, are refused sign-ins', async () => {
  const { browser, client, login } = await begin();
  const lost = await browser.open(`${login.url}/upstream?login=${'x'.repeat(16)}`);
  assert.match(await explanationOf(lost, client.id, 'upstream-expired'), /Start again in one browser/);
  let page = await pressButton(browser, login, 'one');
  for (let count = 0; count < 20 && page.leftTo !== null; count += 1)
    page = await pressButton(browser, login, 'one');
  assert.equal(page.response.status, 429);
  const { refused } = await connectionOf(requestOf(page));
  assert.equal(refused.error, 'upstream-too-many-attempts');
  assert.match(refused.explanation ?? '', /as many sign-ins with a provider as it may/);
});

test('sign-ins of the account page belong to no app', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${server.baseUrl}/account`);
  const sent = await pressButton(browser, page, 'one');
  const denied = errorUrl(callbackOf(sent.leftTo as URL, { iss: one.issuer }), 'access_denied');
  const requests = [requestOf(await browser.open(denied)), requestOf(await browser.open(denied))];
  const own = await browser.open(
    authorizationUrl(server, await createTestClient(server), { redirect_uri: 'https://x.example/' }),
  );
  // Steps are written in their order.
  await connectionOf(requestOf(own));
  for (const requestId of requests)
    assert.deepEqual(await readConnections(db, { requestId }, 1), [], String(requestId));
});
