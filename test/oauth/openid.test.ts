/** OpenID Connect: id_tokens, userinfo, and the parameters that ask for a fresh login or none. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createRemoteJWKSet, decodeJwt, decodeProtectedHeader, jwtVerify } from 'jose';
import { sql } from 'kysely';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  type AuthorizeOptions,
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
const client = await createTestClient(server);
const scopes = ['openid', 'read:profile'];

/** Sends another authorization request of a browser without submitting a page. */
async function ask(browser: TestBrowser, parameters: Record<string, string | undefined>): Promise<Page> {
  const url = authorizationUrl(server, client, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: scopes.join(' '),
    ...parameters,
  });
  return browser.open(url);
}

async function errorOf(browser: TestBrowser, parameters: Record<string, string | undefined>) {
  const page = await ask(browser, parameters);
  return page.leftTo?.searchParams.get('error') ?? page.text;
}

async function claimsOf(options: Partial<AuthorizeOptions> = {}) {
  const got = await authorize(server, { account, client, scopes, ...options });
  return { ...got, claims: decodeJwt(got.idToken ?? '') as Record<string, unknown> };
}

function bearer(token: string): RequestInit {
  return { headers: { authorization: `Bearer ${token}` } };
}

function userinfo(token: string | null, init: RequestInit = {}) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  return fetch(`${server.baseUrl}/oauth/userinfo`, { headers, ...init });
}

test('oauth 90: an id_token names subject, issuer, audience and expiry, signed with RS256 or ES256', async () => {
  const keys = createRemoteJWKSet(new URL(`${server.baseUrl}/oauth/jwks`));
  const byEs256 = await createTestClient(server, { metadata: { id_token_signed_response_alg: 'ES256' } });
  for (const [app, alg] of [
    [client, 'RS256'],
    [byEs256, 'ES256'],
  ] as const) {
    const { idToken } = await authorize(server, { account, client: app, scopes });
    const verified = await jwtVerify(idToken ?? '', keys, { issuer: server.baseUrl, audience: app.id });
    assert.equal(verified.protectedHeader.alg, alg);
    assert.equal(verified.payload.sub, account.id);
    assert.equal(Number(verified.payload.exp) - Number(verified.payload.iat), 3_600);
    // OpenID Connect Core section 3.1.3.6: at_hash is optional in id_tokens of the token endpoint.
    assert.equal(verified.payload.at_hash, undefined);
  }
});

test('oauth 90: a token response has no id_token without the scope openid', async () => {
  assert.equal((await authorize(server, { account, client, scopes: ['read:profile'] })).idToken, null);
});

test('oauth 91: userinfo returns the id_token’s sub by GET and POST', async () => {
  const { accessToken, claims } = await claimsOf();
  const form = new URLSearchParams({ access_token: accessToken });
  for (const response of [
    await userinfo(accessToken),
    await userinfo(accessToken, { method: 'POST', headers: { authorization: `Bearer ${accessToken}` } }),
    await userinfo(null, { method: 'POST', body: form }),
  ]) {
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('cache-control'), 'no-store');
    const body = (await response.json()) as Record<string, unknown>;
    assert.deepEqual(body, { sub: claims.sub, name: account.name, email: account.email });
  }
});

test('oauth 91: userinfo is a signed JWT when the client registered an algorithm for it', async () => {
  const keys = createRemoteJWKSet(new URL(`${server.baseUrl}/oauth/jwks`));
  for (const alg of ['RS256', 'ES256']) {
    const app = await createTestClient(server, { metadata: { userinfo_signed_response_alg: alg } });
    const { accessToken } = await authorize(server, { account, client: app, scopes });
    const response = await userinfo(accessToken);
    assert.match(response.headers.get('content-type') ?? '', /^application\/jwt/);
    const options = { issuer: server.baseUrl, audience: app.id };
    const { payload, protectedHeader } = await jwtVerify(await response.text(), keys, options);
    assert.equal(protectedHeader.alg, alg);
    assert.deepEqual([payload.sub, payload.name], [account.id, account.name]);
    assert.equal(
      (await fetch(`${server.baseUrl}/api`, bearer(await (await userinfo(accessToken)).text()))).status,
      401,
    );
  }
});

test('oauth 91: userinfo returns only what the scopes allow', async () => {
  const { accessToken } = await claimsOf({ scopes: ['openid'] });
  assert.deepEqual(await (await userinfo(accessToken)).json(), { sub: account.id });
});

test('oauth 91: userinfo is refused without a token, with an invalid token and without openid', async () => {
  const none = await userinfo(null);
  assert.equal(none.status, 401);
  assert.match(none.headers.get('www-authenticate') ?? '', /^Bearer/);
  assert.doesNotMatch(none.headers.get('www-authenticate') ?? '', /error=/);
  const bad = await userinfo('made-up');
  assert.equal(bad.status, 401);
  assert.match(bad.headers.get('www-authenticate') ?? '', /^Bearer.*error="invalid_token"/);
  const { accessToken } = await authorize(server, { account, client, scopes: ['read:profile'] });
  const without = await userinfo(accessToken);
  assert.equal(without.status, 403);
  assert.match(without.headers.get('www-authenticate') ?? '', /error="insufficient_scope"/);
  assert.match(without.headers.get('www-authenticate') ?? '', /scope="openid"/);
  const query = await fetch(`${server.baseUrl}/oauth/userinfo?access_token=${accessToken}`);
  assert.equal(query.status, 400);
});

test('oauth 30: prompt=none shows no page and returns the error for the page it would need', async () => {
  assert.equal(await errorOf(new TestBrowser(server.baseUrl), { prompt: 'none' }), 'login_required');
  const other = await createTestClient(server);
  const { browser } = await authorize(server, { account, client: other, scopes });
  assert.equal(await errorOf(browser, { prompt: 'none', scope: 'openid write:posts' }), 'consent_required');
  await authorize(server, { account, client, scopes, browser });
  const silent = await ask(browser, { prompt: 'none' });
  assert.ok(silent.leftTo?.searchParams.get('code'), silent.text);
});

test('oauth 30: prompt=none beside another value, and an unknown prompt, are invalid_request', async () => {
  const browser = new TestBrowser(server.baseUrl);
  for (const prompt of ['none login', 'none consent', 'guess']) {
    assert.equal(await errorOf(browser, { prompt }), 'invalid_request', prompt);
  }
});

test('oauth 31: prompt=login asks for the password again and renews auth_time', async () => {
  const first = await claimsOf({ parameters: { max_age: '1000' } });
  await sleep(1_100);
  const page = await ask(first.browser, { prompt: 'login' });
  assert.match(page.text, /name="password"/);
  const again = await claimsOf({ browser: first.browser, parameters: { prompt: 'login' } });
  assert.ok(Number(again.claims.auth_time) > Number(first.claims.auth_time));
  // Another user may be at the browser: a sign-in to a different account does not renew this session.
  const other = await createTestAccount(server);
  const switched = await authorize(server, {
    account: other,
    client,
    scopes,
    browser: first.browser,
    parameters: { prompt: 'login' },
  }).then(({ idToken }) => decodeJwt(idToken ?? '').sub, String);
  assert.ok(switched === other.id || /nowhere|neither/.test(String(switched)), String(switched));
});

test('oauth 31: prompt=consent asks again for confirmed scopes', async () => {
  const { browser } = await authorize(server, { account, client, scopes });
  assert.ok((await ask(browser, {})).leftTo?.searchParams.get('code'));
  const page = await ask(browser, { prompt: 'consent' });
  assert.match(page.text, /value="allow"/);
  const redirect = await passPages(browser, page, account);
  assert.ok(redirect.searchParams.get('code'));
});

test('oauth 31: max_age=1 asks for the password again after two seconds', async () => {
  const first = await claimsOf({ parameters: { max_age: '1000' } });
  assert.equal(typeof first.claims.auth_time, 'number');
  assert.ok((await ask(first.browser, { max_age: '1000' })).leftTo);
  await sleep(2_100);
  assert.equal(await errorOf(first.browser, { max_age: '1', prompt: 'none' }), 'login_required');
  const again = await claimsOf({ browser: first.browser, parameters: { max_age: '1' } });
  assert.ok(Number(again.claims.auth_time) > Number(first.claims.auth_time));
  for (const max_age of ['-1', 'soon', '1.5']) {
    assert.equal(await errorOf(first.browser, { max_age }), 'invalid_request', max_age);
  }
});

test('oauth 32: prompt=none with another user’s id_token_hint is login_required', async () => {
  const other = await createTestAccount(server);
  const { idToken: foreign } = await authorize(server, { account: other, client, scopes });
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  const silent = (hint: string | null) => ask(browser, { prompt: 'none', id_token_hint: hint ?? '' });
  assert.equal((await silent(foreign)).leftTo?.searchParams.get('error'), 'login_required');
  assert.ok((await silent(idToken)).leftTo?.searchParams.get('code'));
  const forged = `${idToken?.slice(0, -6)}AAAAAA`;
  assert.equal((await silent(forged)).leftTo?.searchParams.get('error'), 'invalid_request');
});

test('oauth 51: a refreshed id_token keeps iss, sub, aud and auth_time', async () => {
  const first = await claimsOf({ parameters: { max_age: '1000', nonce: 'n'.repeat(64) } });
  await sleep(1_100);
  const form = { grant_type: 'refresh_token', refresh_token: first.refreshToken };
  const { body } = await postForm(server, '/oauth/token', client, form);
  const refreshed = decodeJwt(String(body.id_token));
  for (const name of ['iss', 'sub', 'aud', 'auth_time']) {
    assert.deepEqual(refreshed[name], first.claims[name], name);
  }
  assert.ok(Number(refreshed.iat) > Number(first.claims.iat));
});

test('oauth 51: offline_access requires consent', async () => {
  const asked = ['openid', 'offline_access', 'read:profile'];
  const plain = await authorize(server, { account, client, scopes: asked });
  assert.ok(!plain.scope.includes('offline_access'));
  const parameters = { prompt: 'consent' };
  const consented = await authorize(server, { account, client, scopes: asked, parameters });
  assert.ok(consented.scope.includes('offline_access'));
});

test('individually requested claims are returned as far as the scopes allow', async () => {
  const claims = JSON.stringify({ id_token: { email: null, auth_time: { essential: true } } });
  const allowed = await claimsOf({ parameters: { claims, prompt: 'consent' } });
  assert.equal(allowed.claims.email, account.email);
  assert.equal(typeof allowed.claims.auth_time, 'number');
  // Requesting a claim by name returns nothing that the user did not consent to.
  for (const target of ['id_token', 'userinfo']) {
    const alone = JSON.stringify({ [target]: { email: { essential: true }, name: null } });
    const got = await claimsOf({ scopes: ['openid'], parameters: { claims: alone, prompt: 'consent' } });
    assert.equal(got.claims.email, undefined);
    assert.deepEqual(await (await userinfo(got.accessToken)).json(), { sub: account.id });
  }
  for (const bad of ['{', '[]', '{"userinfo":[]}']) {
    assert.equal(await errorOf(new TestBrowser(server.baseUrl), { claims: bad }), 'invalid_request', bad);
  }
});

test('an id_token is refused as an access token, and an access token as an id_token', async () => {
  const { idToken, accessToken } = await authorize(server, { account, client, scopes });
  assert.equal(decodeProtectedHeader(accessToken).typ, 'at+jwt');
  assert.equal((await userinfo(idToken)).status, 401);
  const api = await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${idToken}` } });
  assert.equal(api.status, 401);
  const { browser } = await authorize(server, { account, client, scopes });
  assert.equal(await errorOf(browser, { prompt: 'none', id_token_hint: accessToken }), 'invalid_request');
});

const passwordAcr = 'urn:oasis:names:tc:SAML:2.0:ac:classes:Password';

test('oauth 90: acr names the sign-in method when it is requested', async () => {
  const metadata = await fetch(`${server.baseUrl}/.well-known/openid-configuration`);
  const { acr_values_supported: values, claims_supported: claims } = (await metadata.json()) as Record<
    string,
    string[]
  >;
  assert.deepEqual(values, [passwordAcr]);
  assert.ok(claims?.includes('acr'));
  const essential = (acr: object) => JSON.stringify({ id_token: { acr: { essential: true, ...acr } } });
  for (const parameters of [
    { acr_values: passwordAcr },
    { acr_values: 'urn:other also:other' },
    { claims: JSON.stringify({ id_token: { acr: null } }) },
    { claims: essential({}) },
    { claims: essential({ value: passwordAcr }) },
    { claims: essential({ values: ['urn:other', passwordAcr] }) },
  ]) {
    const got = await claimsOf({ parameters });
    assert.equal(got.claims.acr, passwordAcr, JSON.stringify(parameters));
    const { body } = await postForm(server, '/oauth/token', client, {
      grant_type: 'refresh_token',
      refresh_token: got.refreshToken,
    });
    assert.equal(decodeJwt(String(body.id_token)).acr, passwordAcr, 'refreshed');
  }
  assert.ok(!('acr' in (await claimsOf()).claims));
});

test('oauth 90: an essential acr that is unreachable is an error, not an endless login', async () => {
  const { browser } = await claimsOf();
  for (const acr of [
    { value: 'urn:other' },
    { values: ['urn:other'] },
    { values: [] },
    { value: passwordAcr, values: ['urn:other'] },
    { values: 'urn:other' },
  ]) {
    const claims = JSON.stringify({ id_token: { acr: { essential: true, ...acr } } });
    assert.equal(await errorOf(browser, { claims }), 'unmet_authentication_requirements', claims);
  }
});

test('oauth 90: a login without acr is repeated when acr is essential', async () => {
  const { browser } = await claimsOf();
  await sql`update login_sessions set payload = payload - 'acr'`.execute(server.db);
  const claims = JSON.stringify({ id_token: { acr: { essential: true, value: passwordAcr } } });
  assert.equal(await errorOf(browser, { claims, prompt: 'none' }), 'login_required');
  const got = await claimsOf({ browser, parameters: { claims } });
  assert.equal(got.claims.acr, passwordAcr);
});
