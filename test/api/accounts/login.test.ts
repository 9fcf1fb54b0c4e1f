/** Sign-in on the application's own page: what the application learns, how it may respond, and which browser may finish. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { createPlatform, loadPlatform, PlatformError } from '../../../src/platform.ts';
import { type Page, TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';

const loginUrl = 'https://app.example.com/login?from=nuncio';
const platform = await loadPlatform(null);
const accounts = {
  ...platform.accounts,
  login: { url: loginUrl, acrValues: ['urn:example:two'], administrators: false },
};
const server = await startTestServer({ after }, {}, 'dev', { ...platform, accounts });
const { db } = server;
const machine = await createTestClient(server, { scopes: ['write:logins'] });
const request = requester(server, await clientToken(server, machine, ['write:logins']));
const app = await createTestClient(server, {
  name: 'Reader',
  scopes: ['openid', 'profile', 'email', 'read:posts'],
});

interface Begun {
  browser: TestBrowser;
  id: string;
  verifier: string;
}

/** Sends a browser to the server with an app's request. The server hands the sign-in over. */
async function begin(
  parameters: Record<string, string> = {},
  browser = new TestBrowser(server.baseUrl),
  client: TestClient = app,
): Promise<Begun> {
  const { verifier, challenge } = createPkce();
  const url = authorizationUrl(server, client, {
    scope: 'openid read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
  const page = await browser.open(url);
  return { browser, id: loginRequestOf(page), verifier };
}

function loginRequestOf(page: Page): string {
  assert.ok(page.leftTo?.href.startsWith(`${loginUrl}&login_request=`), `${page.leftTo} ${page.text}`);
  assert.equal(page.response.headers.get('referrer-policy'), 'no-referrer');
  return page.leftTo?.searchParams.get('login_request') as string;
}

async function accept(id: string, fields: object = {}): Promise<string> {
  const json = { account: { external_id: newId(), name: 'Ann' }, ...fields };
  const answer = await request('POST', `/login-requests/${id}/accept`, { json });
  assert.equal(answer.status, 200, answer.text);
  return answer.body.redirect_to;
}

const now = () => Math.floor(Date.now() / 1_000);

/** The browser returns and consents, and the app gets its tokens. */
async function finish({ browser, verifier }: Begun, redirectTo: string, client: TestClient = app) {
  let page = await browser.open(redirectTo);
  for (let count = 0; page.leftTo === null && count < 3; count += 1) {
    assert.equal(page.response.status, 200, page.text);
    page = await browser.submit(page, { action: 'allow' });
  }
  const code = page.leftTo?.searchParams.get('code');
  assert.ok(code, String(page.leftTo));
  const form = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  };
  const { status, body } = await postForm(server, '/oauth/token', client, form);
  assert.equal(status, 200, JSON.stringify(body));
  return { idToken: decodeJwt(String(body.id_token)), accessToken: String(body.access_token) };
}

test('the application signs a user in, and account, auth_time, amr and acr reach the app', async () => {
  const externalId = newId();
  const begun = await begin({ scope: 'openid profile email read:posts', login_hint: 'ann@example.com' });
  const told = await request('GET', `/login-requests/${begun.id}`);
  assert.equal(told.status, 200);
  const { client, scopes, scope_descriptions: words, login_hint: hint, prompt, max_age: maxAge } = told.body;
  assert.deepEqual(client, { client_id: app.id, client_name: 'Reader', client_uri: null });
  assert.deepEqual(scopes, ['openid', 'profile', 'email', 'read:posts']);
  assert.equal(words['read:posts'], 'read your articles and comments, drafts included');
  assert.deepEqual([hint, prompt, maxAge, told.body.acr_values], ['ann@example.com', null, null, []]);
  const authTime = now() - 1_000;
  const redirectTo = await accept(begun.id, {
    account: { external_id: externalId, email: 'Ann@example.com', email_verified: true, name: 'Ann' },
    auth_time: authTime,
    amr: ['pwd', 'otp'],
    acr: 'urn:example:two',
  });
  const { idToken, accessToken } = await finish(begun, redirectTo);
  const { rows } = await sql<{ id: string; email: string; name: string; password_hash: string | null }>`
    select id, email, name, password_hash from accounts where external_id = ${externalId}`.execute(db);
  assert.deepEqual(rows, [{ id: idToken.sub, email: 'ann@example.com', name: 'Ann', password_hash: null }]);
  assert.deepEqual(
    [idToken.auth_time, idToken.amr, idToken.acr],
    [authTime, ['pwd', 'otp'], 'urn:example:two'],
  );
  const claims = (await requester(server, accessToken)('GET', '/oauth/userinfo')).body;
  assert.deepEqual(claims, { sub: idToken.sub, name: 'Ann', email: 'ann@example.com', email_verified: true });
});

test('the response to an acceptance names the account that signs in, as the tokens do', async () => {
  const externalId = newId();
  const begun = await begin();
  const json = { account: { external_id: externalId } };
  const { status, body } = await request('POST', `/login-requests/${begun.id}/accept`, { json });
  assert.equal(status, 200);
  const { idToken, accessToken } = await finish(begun, body.redirect_to);
  assert.deepEqual(body.account, { id: idToken.sub, external_id: externalId });
  assert.equal(decodeJwt(accessToken).external_id, externalId);
  assert.equal(idToken.external_id, undefined);
});

test('a signed-in user is not handed over again unless the app asks for it', async () => {
  const begun = await begin();
  const account = { external_id: newId() };
  await finish(begun, await accept(begun.id, { account }));
  const { browser } = begun;
  const again = authorizationUrl(server, app, {
    scope: 'openid read:posts',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  });
  assert.ok((await browser.open(`${again}&prompt=none`)).leftTo?.searchParams.has('code'));
  const asked = await begin({ prompt: 'login' }, browser);
  assert.equal((await request('GET', `/login-requests/${asked.id}`)).body.prompt, 'login');
  const withoutTime = await request('POST', `/login-requests/${asked.id}/accept`, { json: { account } });
  assert.deepEqual([withoutTime.status, withoutTime.body.errors[0].pointer], [422, '/auth_time']);
  const old = await request('POST', `/login-requests/${asked.id}/accept`, {
    json: { account, auth_time: now() - 600 },
  });
  assert.deepEqual([old.status, old.body.code], [422, 'login-too-old']);
  const authTime = now();
  const { idToken } = await finish(asked, await accept(asked.id, { account, auth_time: authTime }));
  assert.equal(idToken.auth_time, authTime);
});

test('max_age is passed on and enforced, and prompt=none never hands over', async () => {
  const begun = await begin({ max_age: '300', acr_values: 'urn:a urn:b' });
  const told = (await request('GET', `/login-requests/${begun.id}`)).body;
  assert.deepEqual([told.max_age, told.acr_values], [300, ['urn:a', 'urn:b']]);
  const account = { external_id: newId() };
  const old = await request('POST', `/login-requests/${begun.id}/accept`, {
    json: { account, auth_time: now() - 500 },
  });
  assert.equal(old.body.code, 'login-too-old');
  const { idToken } = await finish(begun, await accept(begun.id, { account, auth_time: now() - 200 }));
  assert.ok((idToken.auth_time as number) <= now() - 200);
  const silent = await new TestBrowser(server.baseUrl).open(
    `${authorizationUrl(server, app, { scope: 'openid', code_challenge: 'a'.repeat(43), code_challenge_method: 'S256' })}&prompt=none`,
  );
  assert.equal(silent.leftTo?.searchParams.get('error'), 'login_required');
});

test('an essential acr is refused when the application cannot or did not reach it', async () => {
  const claims = (acr: string) => JSON.stringify({ id_token: { acr: { essential: true, value: acr } } });
  const impossible = await new TestBrowser(server.baseUrl).open(
    authorizationUrl(server, app, {
      scope: 'openid',
      code_challenge: 'a'.repeat(43),
      code_challenge_method: 'S256',
      claims: claims('urn:other'),
    }),
  );
  assert.equal(impossible.leftTo?.searchParams.get('error'), 'unmet_authentication_requirements');
  const begun = await begin({ claims: claims('urn:example:two') });
  const missed = await begun.browser.open(await accept(begun.id, { acr: 'urn:example:one' }));
  assert.equal(missed.leftTo?.searchParams.get('error'), 'unmet_authentication_requirements');
  const other = await begin({ claims: claims('urn:example:two') });
  const { idToken } = await finish(other, await accept(other.id, { acr: 'urn:example:two' }));
  assert.equal(idToken.acr, 'urn:example:two');
});

test('a user other than the id_token_hint’s is an error and not a loop', async () => {
  const first = await begin();
  const externalId = newId();
  const { idToken } = await finish(first, await accept(first.id, { account: { external_id: externalId } }));
  const claims = JSON.stringify({ id_token: { sub: { value: idToken.sub } } });
  const begun = await begin({ claims });
  const page = await begun.browser.open(await accept(begun.id));
  assert.equal(page.leftTo?.searchParams.get('error'), 'login_required', page.text);
});

test('the app learns why the application refused', async () => {
  const begun = await begin();
  const { body } = await request('POST', `/login-requests/${begun.id}/reject`, {
    json: { error: 'access_denied', error_description: 'The user cancelled' },
  });
  const page = await begun.browser.open(body.redirect_to);
  assert.equal(page.leftTo?.searchParams.get('error'), 'access_denied');
  assert.equal(page.leftTo?.searchParams.get('error_description'), 'The user cancelled');
  const silent = await begin();
  const rejected = await request('POST', `/login-requests/${silent.id}/reject`);
  assert.equal(rejected.status, 200, rejected.text);
});

async function refused(browser: TestBrowser, url: string): Promise<void> {
  const page = await browser.open(url);
  assert.equal(page.response.status, 400, page.text);
  assert.equal(page.leftTo, null);
  assert.match(page.text, /start again/);
}

test('a sign-in finishes once', async () => {
  const begun = await begin();
  const redirectTo = await accept(begun.id);
  const answers = await Promise.all(Array.from({ length: 5 }, () => begun.browser.request(redirectTo)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [303, 400, 400, 400, 400]);
  await refused(begun.browser, redirectTo);
});

test('only the browser that began a sign-in finishes it', async () => {
  // The attacker begins a sign-in and sends the victim to finish it. The victim's browser has no cookie for it.
  const attack = await begin();
  const toVictim = await accept(attack.id);
  await refused(new TestBrowser(server.baseUrl), toVictim);
  // The cookies of the victim's own request do not help.
  const victim = await begin();
  await refused(victim.browser, toVictim);
  // The attacker's browser has the cookies but not the verifier, so it must sign in again.
  const { pathname } = new URL(toVictim);
  const uid = pathname.split('/')[2] as string;
  assert.notEqual(
    loginRequestOf(await attack.browser.open(`${server.baseUrl}/interaction/${uid}`)),
    attack.id,
  );
  await refused(attack.browser, `${server.baseUrl}/interaction/${uid}/continue`);
  await refused(attack.browser, `${server.baseUrl}/interaction/${uid}/continue?login_verifier=${attack.id}`);
  // The engine's cookies, planted in a browser that has begun no sign-in.
  const planted = new TestBrowser(server.baseUrl);
  for (const { name, value, path } of attack.browser.cookies) {
    if (!name.includes('nuncio_login_')) planted.setCookie(name, value, path);
  }
  await refused(planted, toVictim);
  const { rows } =
    await sql`select from login_requests where used_at is not null and interaction_uid = ${uid}`.execute(db);
  assert.equal(rows.length, 0, 'nothing was used up');
  // The browser with both continues.
  assert.match((await attack.browser.open(toVictim)).text, /Connect Reader|Reader/);
});

test('the response to one request finishes no other request of the same browser', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const other = await createTestClient(server, { name: 'Other', scopes: ['openid', 'read:posts'] });
  const one = await begin({}, browser);
  const two = await begin({}, browser, other);
  const uidOf = (url: string) => new URL(url).pathname.split('/')[2] as string;
  const ofOne = await accept(one.id);
  const ofTwo = await accept(two.id);
  await refused(browser, ofOne.replace(uidOf(ofOne), uidOf(ofTwo)));
  await refused(browser, ofOne.replace(/\/interaction\/[^/]+/, '/account'));
  assert.equal((await browser.open(ofTwo)).response.status, 200, 'each still finishes its own');
});

test('a sign-in that takes longer than ten minutes is refused at every step', async () => {
  const late = await begin();
  const expire = (id: string) =>
    sql`update login_requests set expires_at = now() where digest = sha256(${Buffer.from(id)})`.execute(db);
  await expire(late.id);
  assert.equal((await request('GET', `/login-requests/${late.id}`)).status, 404);
  const json = { account: { external_id: newId() } };
  assert.equal((await request('POST', `/login-requests/${late.id}/accept`, { json })).status, 404);
  assert.equal((await request('POST', `/login-requests/${late.id}/reject`)).status, 404);
  const answered = await begin();
  const redirectTo = await accept(answered.id);
  await expire(answered.id);
  await refused(answered.browser, redirectTo);
});

test('a request is answered once, by any machine client', async () => {
  const begun = await begin();
  const second = await createTestClient(server, { scopes: ['write:logins'] });
  const other = requester(server, await clientToken(server, second, ['write:logins']));
  const path = `/login-requests/${begun.id}/accept`;
  const externalIds = Array.from({ length: 6 }, () => newId());
  const answers = await Promise.all(
    externalIds.map((externalId, index) =>
      (index % 2 === 0 ? request : other)('POST', path, { json: { account: { external_id: externalId } } }),
    ),
  );
  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 409, 409, 409, 409, 409]);
  const { rows } = await sql`select from accounts where external_id = any(${externalIds}::text[])`.execute(
    db,
  );
  assert.equal(rows.length, 1, 'the rejected response created no account');
  assert.equal((await request('GET', `/login-requests/${begun.id}`)).body.code, 'login-request-answered');
  assert.equal((await request('POST', `/login-requests/${begun.id}/reject`)).status, 409);
});

test('every caller but a machine client with the scope is refused and learns nothing', async () => {
  const begun = await begin();
  const without = await createTestClient(server, { scopes: ['write:events', 'admin'] });
  const strangers = [requester(server, await clientToken(server, without, ['write:events', 'admin']))];
  const done = await begin();
  const { accessToken } = await finish(done, await accept(done.id));
  strangers.push(requester(server, accessToken));
  for (const ask of strangers) {
    for (const [method, action] of [
      ['GET', ''],
      ['POST', '/accept'],
      ['POST', '/reject'],
    ] as const) {
      const [known, unknown] = await Promise.all(
        [begun.id, 'a'.repeat(43)].map((id) => ask(method, `/login-requests/${id}${action}`)),
      );
      assert.deepEqual([known?.status, unknown?.status], [403, 403], action);
      assert.equal(known?.body.detail, unknown?.body.detail);
    }
  }
  assert.equal((await requester(server)('GET', `/login-requests/${begun.id}`)).status, 401);
  for (const id of ['x', 'a'.repeat(43), newId(), '%00', '..%2faccounts']) {
    assert.equal((await request('GET', `/login-requests/${id}`)).status, 404, id);
  }
});

test('an invalid response from the application is refused, and the request stays open', async () => {
  const begun = await begin();
  const account = { external_id: 'u-1' };
  const future = now() + 3_600;
  for (const [json, pointer] of [
    [undefined, '/account'],
    [[], ''],
    [{}, '/account'],
    [{ account: 'u-1' }, '/account'],
    [{ account: {} }, '/account/external_id'],
    [{ account: { external_id: '' } }, '/account/external_id'],
    [{ account: { ...account, disabled: false } }, '/account/disabled'],
    [{ account: { ...account, email: 'nobody' } }, '/account/email'],
    [{ account, auth_time: future }, '/auth_time'],
    [{ account, auth_time: '1' }, '/auth_time'],
    [{ account, auth_time: -1 }, '/auth_time'],
    [{ account, amr: 'pwd' }, '/amr'],
    [{ account, amr: Array.from({ length: 11 }, () => 'pwd') }, '/amr'],
    [{ account, acr: 'with space' }, '/acr'],
    [{ account, is_admin: true }, '/is_admin'],
  ] as const) {
    const answer = await request(
      'POST',
      `/login-requests/${begun.id}/accept`,
      json === undefined ? {} : { json },
    );
    assert.equal(answer.status, 422, `${JSON.stringify(json)}: ${answer.text}`);
    assert.equal(answer.body.errors[0].pointer, pointer, JSON.stringify(json));
  }
  for (const json of [{ error: 'server_is_mine' }, { error_description: 'a"b' }, { other: 1 }]) {
    assert.equal((await request('POST', `/login-requests/${begun.id}/reject`, { json })).status, 422);
  }
  assert.equal((await request('GET', `/login-requests/${begun.id}`)).status, 200);
});

test('a disabled account is not signed in, before or after the response', async () => {
  const externalId = newId();
  const disable = () =>
    sql`update accounts set disabled_at = now() where external_id = ${externalId}`.execute(db);
  const first = await begin();
  const redirectTo = await accept(first.id, { account: { external_id: externalId } });
  await disable();
  await refused(first.browser, redirectTo);
  const second = await begin();
  const json = { account: { external_id: externalId } };
  const answer = await request('POST', `/login-requests/${second.id}/accept`, { json });
  assert.deepEqual([answer.status, answer.body.code], [409, 'account-disabled']);
  // The request stays open, so the application can send the user back to the app with an error.
  const rejected = await request('POST', `/login-requests/${second.id}/reject`, { json: {} });
  assert.equal(rejected.status, 200, rejected.text);
});

test('the application may send its integer user id', async () => {
  const begun = await begin();
  const redirectTo = await accept(begun.id, { account: { external_id: 4711 } });
  const { idToken } = await finish(begun, redirectTo);
  const { rows } = await sql<{ id: string }>`select id from accounts where external_id = '4711'`.execute(db);
  assert.deepEqual(rows, [{ id: idToken.sub }]);
});

test('an external account with a local account’s address is separate, and a new address is unverified', async () => {
  const local = await createTestAccount(server);
  const externalId = newId();
  const begun = await begin();
  const account = { external_id: externalId, email: local.email, email_verified: true };
  const { idToken } = await finish(begun, await accept(begun.id, { account }));
  assert.notEqual(idToken.sub, local.id);
  const again = await begin();
  const changed = { external_id: externalId, email: 'victim@example.com' };
  await finish(again, await accept(again.id, { account: changed }));
  const { rows } = await sql`
    select email, email_verified from accounts where external_id = ${externalId}`.execute(db);
  assert.deepEqual(rows, [{ email: 'victim@example.com', email_verified: null }]);
});

test('the account page hands over too, and local sign-in is off', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const id = loginRequestOf(await browser.open(`${server.baseUrl}/account`));
  const told = await request('GET', `/login-requests/${id}`);
  assert.deepEqual([told.body.client, told.body.scopes], [null, []]);
  const redirectTo = await accept(id);
  await refused(new TestBrowser(server.baseUrl), redirectTo);
  assert.match((await browser.open(redirectTo)).text, /<h1>Ann<\/h1>/);
  await refused(browser, redirectTo);
  const refusedId = loginRequestOf(await new TestBrowser(server.baseUrl).open(`${server.baseUrl}/account`));
  assert.ok(refusedId);
  const other = new TestBrowser(server.baseUrl);
  const rejectedId = loginRequestOf(await other.open(`${server.baseUrl}/account`));
  const { body } = await request('POST', `/login-requests/${rejectedId}/reject`);
  const page = await other.open(body.redirect_to);
  assert.deepEqual([page.response.status, page.leftTo], [403, null]);
  const local = await createTestAccount(server);
  const credentials = new URLSearchParams({ email: local.email, password: local.password, action: 'login' });
  const signIn = await fetch(`${server.baseUrl}/account/sign-in`, { method: 'POST', body: credentials });
  assert.equal(signIn.status, 404);
});

test('the consent page lets another user sign in at the application’s page', async () => {
  const begun = await begin();
  const consent = await begun.browser.open(await accept(begun.id));
  const page = await begun.browser.submit(consent, { action: 'switch' });
  const id = loginRequestOf(page);
  assert.equal((await request('GET', `/login-requests/${id}`)).body.prompt, 'select_account');
  const externalId = newId();
  let next = await begun.browser.open(
    await accept(id, { account: { external_id: externalId, name: 'Bob' } }),
  );
  // A form that submits itself ends the previous session.
  if (!next.text.includes('Bob')) next = await begun.browser.submit(next, {});
  assert.match(next.text, /Signed in as <strong>Bob/);
});

test('a device’s code is confirmed after the same hand-over', async () => {
  const device = await createTestClient(server, {
    authMethod: 'none',
    grantTypes: ['urn:ietf:params:oauth:grant-type:device_code'],
    scopes: ['openid', 'read:posts'],
  });
  const started = await postForm(server, '/oauth/device', device, { scope: 'read:posts' });
  const browser = new TestBrowser(server.baseUrl);
  const confirm = await browser.open(String(started.body.verification_uri_complete));
  const page = await browser.submit(await browser.submit(confirm, {}), {});
  const id = loginRequestOf(page);
  assert.equal((await request('GET', `/login-requests/${id}`)).body.client.client_id, device.id);
  const consent = await browser.open(await accept(id));
  const done = await browser.submit(consent, { action: 'allow' });
  assert.equal(done.response.status, 200, done.text);
  const form = {
    grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
    device_code: String(started.body.device_code),
  };
  assert.equal((await postForm(server, '/oauth/token', device, form)).status, 200);
});

test('open requests of one authorization are limited', async () => {
  const { browser } = await begin();
  const uid = browser.cookies.find(({ path }) => path.startsWith('/interaction/'))?.path.split('/')[2];
  let status = 303;
  for (let count = 0; count < 25 && status === 303; count += 1) {
    ({ status } = await browser.request(`${server.baseUrl}/interaction/${uid}`));
  }
  assert.equal(status, 429);
});

test('an invalid setting is refused with its place', () => {
  for (const [declared, place] of [
    [{ login: { url: 'http://app.example.com/login' } }, 'accounts.login.url'],
    [{ login: { url: '/login' } }, 'accounts.login.url'],
    [{ login: { url: 'https://u:p@app.example.com/' } }, 'accounts.login.url'],
    [{ login: { url: 'javascript:alert(1)' } }, 'accounts.login.url'],
    [{ login: null }, 'accounts.login'],
    [{ login: { url: 'https://app.example.com/', other: 1 } }, 'accounts.login.other'],
    [{ login: { url: 'https://app.example.com/', acrValues: ['a b'] } }, 'accounts.login.acrValues'],
    [{ returnTo: ['https://app.example.com/'] }, 'accounts.returnTo'],
    [{ returnTo: ['http://app.example.com'] }, 'accounts.returnTo'],
    [{ returnTo: 'https://app.example.com' }, 'accounts.returnTo'],
    [{ signIn: true }, 'accounts.signIn'],
  ] as const) {
    assert.throws(
      () => createPlatform({ accounts: declared as never }),
      (error) => error instanceof PlatformError && error.problems[0]?.startsWith(place) === true,
      JSON.stringify(declared),
    );
  }
  const both = { accounts: { login: { url: loginUrl } }, oauth: { password: true } };
  assert.throws(() => createPlatform(both), /oauth.password/);
  assert.equal(
    createPlatform({ accounts: { login: { url: 'http://localhost:4000/login' } } }).accounts.login?.url,
    'http://localhost:4000/login',
  );
});
