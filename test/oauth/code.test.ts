/** The authorization code flow over HTTP: what an app and a user see on success and on every refusal. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { digest } from '../../src/crypto/digest.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCode,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const publicClient = await createTestClient(server, {
  authMethod: 'none',
  grantTypes: ['authorization_code', 'refresh_token'],
});
const scopes = ['read:posts'];

/** Opens an authorization request without a user, and returns where it leads. */
async function ask(parameters: Record<string, string | undefined>, as = client) {
  const { challenge } = createPkce();
  const browser = new TestBrowser(server.baseUrl);
  const defaults = { code_challenge: challenge, code_challenge_method: 'S256' };
  return browser.open(authorizationUrl(server, as, { ...defaults, ...parameters }));
}

function exchange(form: Record<string, string>, as = client) {
  return postForm(server, '/oauth/token', as, {
    grant_type: 'authorization_code',
    redirect_uri: as.redirectUri,
    ...form,
  });
}

test('openid-client completes the code flow with PKCE, refreshes and revokes', async () => {
  const config = await openid.discovery(new URL(server.baseUrl), client.id, client.secret ?? '', undefined, {
    execute: [openid.allowInsecureRequests],
  });
  const verifier = openid.randomPKCECodeVerifier();
  const state = openid.randomState();
  const nonce = openid.randomNonce();
  const url = openid.buildAuthorizationUrl(config, {
    redirect_uri: client.redirectUri,
    scope: 'openid read:profile read:posts',
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    state,
    nonce,
  });
  const browser = new TestBrowser(server.baseUrl);
  const redirect = await passPages(browser, await browser.open(url.href), account);
  const tokens = await openid.authorizationCodeGrant(config, redirect, {
    pkceCodeVerifier: verifier,
    expectedState: state,
    expectedNonce: nonce,
    idTokenExpected: true,
  });
  assert.equal(tokens.expires_in, 900);
  assert.equal(tokens.token_type, 'bearer');
  assert.equal(tokens.claims()?.sub, account.id);
  const info = await openid.fetchUserInfo(config, tokens.access_token, account.id);
  assert.equal(info.email, account.email);
  const refreshed = await openid.refreshTokenGrant(config, tokens.refresh_token ?? '');
  assert.notEqual(refreshed.refresh_token, tokens.refresh_token);
  await openid.tokenRevocation(config, refreshed.refresh_token ?? '');
  await assert.rejects(openid.refreshTokenGrant(config, refreshed.refresh_token ?? ''), {
    error: 'invalid_grant',
  });
});

test('oauth 5: a token response is JSON with no-store and a numeric expires_in', async () => {
  const { code, verifier } = await obtainCode(server, { account, client, scopes });
  const { status, headers, body } = await exchange({ code, code_verifier: verifier });
  assert.equal(status, 200);
  assert.match(headers.get('content-type') ?? '', /^application\/json/);
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.equal(body.expires_in, 900);
  assert.equal(body.token_type, 'Bearer');
  assert.equal(typeof body.access_token, 'string');
});

test('oauth 6: a token response names the scope, also when it is the client’s default', async () => {
  const { code, verifier } = await obtainCode(server, { account, client, scopes: [] });
  const { body } = await exchange({ code, code_verifier: verifier });
  const granted = String(body.scope).split(' ').sort();
  assert.deepEqual(granted, client.scopes.filter((scope) => scope.includes(':')).sort());
});

test('oauth 18: the authorization endpoint accepts GET and a form', async () => {
  const { challenge } = createPkce();
  const form = {
    client_id: client.id,
    redirect_uri: client.redirectUri,
    response_type: 'code',
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    state: 'by form',
  };
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${server.baseUrl}/oauth/authorize`, {
    method: 'POST',
    body: new URLSearchParams(form),
  });
  const redirect = await passPages(browser, page, account);
  assert.ok(redirect.searchParams.get('code'));
  assert.equal(redirect.searchParams.get('state'), 'by form');
});

test('oauth 19: a missing, unknown or disabled client gets a page and no redirect', async () => {
  const disabled = await createTestClient(server);
  await sql`update clients set disabled_at = now() where id = ${disabled.id}`.execute(server.db);
  for (const clientId of [undefined, '', 'unknown', disabled.id]) {
    const page = await ask({ client_id: clientId });
    assert.equal(page.response.status, 400, String(clientId));
    assert.equal(page.response.headers.get('location'), null);
    assert.match(page.response.headers.get('content-type') ?? '', /^text\/html/);
  }
});

test('oauth 20: a request does not redirect when redirect_uri is unregistered, malformed or repeated', async () => {
  for (const redirect_uri of [
    'https://evil.example/callback',
    'not a uri',
    'javascript:alert(1)',
    '//evil.example',
  ]) {
    const page = await ask({ redirect_uri });
    assert.equal(page.response.status, 400, redirect_uri);
    assert.equal(page.leftTo, null);
  }
  const url = `${authorizationUrl(server, client, {})}&redirect_uri=https://evil.example/`;
  const repeated = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(repeated.response.status, 400);
  assert.equal(repeated.leftTo, null);
});

test('oauth 21: redirect_uri matches as an exact string', async () => {
  const exact = await createTestClient(server, { redirectUris: ['https://app.example/a/callback'] });
  const near = [
    'https://app.example/a/callback?x=1',
    'https://app.example/a/callback/',
    'https://app.example/A/callback',
    'https://app.example/a/b/%2e%2e/callback',
    'https://app.example/a/b/../callback',
    'https://user@app.example/a/callback',
    'https://app.example:443/a/callback',
    'https://app.example:8443/a/callback',
    'https://sub.app.example/a/callback',
    'https://app.example/a/callback#',
    'http://app.example/a/callback',
  ];
  for (const redirect_uri of near) {
    const page = await ask({ redirect_uri }, exact);
    assert.equal(page.response.status, 400, redirect_uri);
    assert.equal(page.leftTo, null, redirect_uri);
  }
});

test('oauth 22: a loopback redirect accepts any port on its own host only', async () => {
  const loopback = await createTestClient(server, {
    redirectUris: ['http://127.0.0.1/cb', 'http://[::1]/cb', 'https://app.example/cb'],
    authMethod: 'none',
  });
  for (const redirect_uri of ['http://127.0.0.1:51004/cb', 'http://[::1]:51004/cb', 'http://127.0.0.1/cb']) {
    const parameters = { redirect_uri };
    const { code } = await obtainCode(server, { account, client: loopback, scopes, parameters });
    assert.ok(code, redirect_uri);
  }
  const refused = [
    'http://localhost:51004/cb',
    'http://127.0.0.2:51004/cb',
    'http://127.0.0.1:51004/other',
    'http://127.0.0.1:51004/cb?x',
    'http://127.0.0.1:99999/cb',
    'http://127.0.0.1:1@evil.example/cb',
    'http://127.0.0.1.evil.example/cb',
    'http://127.0.0.1:51004/cb\\@evil.example',
    'https://127.0.0.1:51004/cb',
    'https://app.example:51004/cb',
  ];
  for (const redirect_uri of refused) {
    const page = await ask({ redirect_uri }, loopback);
    assert.equal(page.response.status, 400, redirect_uri);
    assert.equal(page.leftTo, null, redirect_uri);
  }
});

test('oauth 22: a registered localhost redirect accepts any port, and no address instead', async () => {
  const local = await createTestClient(server, {
    redirectUris: ['http://localhost/cb', 'http://localhost:8080/fixed'],
    authMethod: 'none',
  });
  const taken = ['http://localhost/cb', 'http://localhost:51004/cb', 'http://localhost:51004/fixed'];
  for (const redirect_uri of taken) {
    const parameters = { redirect_uri };
    const { code } = await obtainCode(server, { account, client: local, scopes, parameters });
    assert.ok(code, redirect_uri);
  }
  const refused = [
    'http://127.0.0.1:51004/cb',
    'http://[::1]:51004/cb',
    'https://localhost:51004/cb',
    'http://localhost.evil.example:51004/cb',
    'http://localhost:51004/cb/',
    'http://LOCALHOST:51004/cb',
  ];
  for (const redirect_uri of refused) {
    const page = await ask({ redirect_uri }, local);
    assert.equal(page.response.status, 400, redirect_uri);
    assert.equal(page.leftTo, null, redirect_uri);
  }
});

test('oauth 23: a request without redirect_uri shows a page, also when one is registered', async () => {
  const page = await ask({ redirect_uri: undefined });
  assert.equal(page.response.status, 400);
  assert.equal(page.leftTo, null);
});

test('oauth 24: a request redirects with an error when response_type is missing, unknown or not allowed', async () => {
  const machine = await createTestClient(server, { grantTypes: ['client_credentials'] });
  const cases: [Record<string, string | undefined>, string, typeof client][] = [
    [{ response_type: undefined }, 'invalid_request', client],
    [{ response_type: 'nonsense' }, 'unsupported_response_type', client],
    [{ response_type: 'token' }, 'unsupported_response_type', client],
    [{ response_type: 'code' }, 'unauthorized_client', machine],
  ];
  for (const [parameters, error, as] of cases) {
    const { leftTo } = await ask({ ...parameters, state: 's' }, as);
    // A response to `token` is in the fragment, including errors.
    const answer = new URLSearchParams(leftTo?.search || leftTo?.hash.slice(1));
    assert.equal(answer.get('error'), error, JSON.stringify(parameters));
    assert.equal(answer.get('state'), 's');
  }
});

test('oauth 25: an error redirect carries error, iss and state as sent', async () => {
  const state = 'a b+c/=&"<é';
  const { leftTo } = await ask({ scope: 'no:such', state });
  assert.equal(leftTo?.searchParams.get('error'), 'invalid_scope');
  assert.equal(leftTo?.searchParams.get('state'), state);
  assert.equal(leftTo?.searchParams.get('iss'), server.baseUrl);
  const names = [...(leftTo?.searchParams.keys() ?? [])].sort();
  assert.deepEqual(names, ['error', 'error_description', 'iss', 'scope', 'state']);
  const without = await ask({ scope: 'no:such' });
  assert.equal(without.leftTo?.searchParams.has('state'), false);
});

test('oauth 26: a success redirect carries code, iss and state if sent, and keeps the redirect’s query', async () => {
  const withQuery = await createTestClient(server, { redirectUris: ['https://app.example/cb?keep=1'] });
  const parameters = { state: 'xyz' };
  const { redirect } = await obtainCode(server, { account, client: withQuery, scopes, parameters });
  assert.equal(redirect.searchParams.get('keep'), '1');
  assert.equal(redirect.searchParams.get('state'), 'xyz');
  assert.equal(redirect.searchParams.get('iss'), server.baseUrl);
  const bare = await obtainCode(server, { account, client: withQuery, scopes });
  assert.equal(bare.redirect.searchParams.has('state'), false);
});

test('oauth 27: redirects of the authorization endpoint send no-store and no-referrer', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  const first = await browser.request(authorizationUrl(server, client, parameters));
  const refused = await browser.request(
    authorizationUrl(server, client, { ...parameters, scope: 'no:such' }),
  );
  assert.equal(refused.status, 302);
  for (const response of [first, refused]) {
    assert.ok([302, 303].includes(response.status), String(response.status));
    assert.equal(response.headers.get('cache-control'), 'no-store');
    assert.equal(response.headers.get('referrer-policy'), 'no-referrer');
  }
});

test('oauth 28: login and consent pages cannot be framed, and refuse a form without its token', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  const login = await browser.open(authorizationUrl(server, client, parameters));
  const credentials = { email: account.email, password: account.password, action: 'login' };
  const consentClient = await createTestClient(server);
  const consent = await browser.open(authorizationUrl(server, consentClient, parameters));
  for (const page of [login, consent]) {
    assert.match(page.response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
    assert.equal(page.response.headers.get('x-frame-options'), 'DENY');
  }
  for (const token of ['', 'guessed']) {
    const forged = await browser.submit(login, { ...credentials, form_token: token });
    assert.equal(forged.response.status, 403);
  }
  const fromElsewhere = await browser.request(login.url, {
    method: 'POST',
    headers: { origin: 'https://evil.example' },
    body: new URLSearchParams(credentials),
  });
  assert.equal(fromElsewhere.status, 403);
  // Another browser, with the URL of the page but without its cookie.
  const stranger = await new TestBrowser(server.baseUrl).submit(login, credentials);
  assert.equal(stranger.response.status, 400);
});

test('oauth 29: an invalid scope is invalid_scope, and a user’s refusal access_denied', async () => {
  for (const scope of ['no:such', 'write:events', 'read:posts bad"scope']) {
    const { leftTo } = await ask({ scope });
    assert.equal(leftTo?.searchParams.get('error'), 'invalid_scope', scope);
  }
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = {
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    state: 's',
  };
  const login = await browser.open(authorizationUrl(server, await createTestClient(server), parameters));
  const credentials = { email: account.email, password: account.password, action: 'login' };
  const consent = await browser.submit(login, credentials);
  const denied = await browser.submit(consent, { action: 'deny' });
  assert.equal(denied.leftTo?.searchParams.get('error'), 'access_denied');
  assert.equal(denied.leftTo?.searchParams.get('state'), 's');
});

test('oauth 33: state and nonce are optional, and a nonce of 64 characters is returned unchanged', async () => {
  const nonce = 'n'.repeat(64);
  const parameters = { nonce };
  const got = await authorize(server, { account, client, scopes: ['openid'], parameters });
  const claims = JSON.parse(Buffer.from((got.idToken ?? '').split('.')[1] ?? '', 'base64url').toString());
  assert.equal(claims.nonce, nonce);
  assert.ok((await authorize(server, { account, client, scopes: ['openid'] })).idToken);
});

test('oauth 34: form_post is a self-submitting page with no-store', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = {
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    response_mode: 'form_post',
  };
  const login = await browser.open(authorizationUrl(server, client, parameters));
  const credentials = { email: account.email, password: account.password, action: 'login' };
  let page = await browser.submit(login, credentials);
  if (page.text.includes('value="allow"')) page = await browser.submit(page, { action: 'allow' });
  assert.equal(page.response.status, 200);
  assert.equal(page.response.headers.get('cache-control'), 'no-store');
  assert.match(page.text, /name="code"/);
  assert.ok(page.text.includes(client.redirectUri));
});

test('oauth 36: a request redirects with an error when a client sends no code_challenge', async () => {
  for (const as of [publicClient, client]) {
    const { leftTo } = await ask({ code_challenge: undefined, code_challenge_method: undefined }, as);
    assert.equal(leftTo?.searchParams.get('error'), 'invalid_request');
  }
});

test('oauth 37: only a well-formed S256 challenge is accepted', async () => {
  const good = createPkce().challenge;
  const cases = [
    { code_challenge: good, code_challenge_method: 'plain' },
    { code_challenge: good, code_challenge_method: undefined },
    { code_challenge: good, code_challenge_method: 's256' },
    { code_challenge: 'a'.repeat(42), code_challenge_method: 'S256' },
    { code_challenge: 'a'.repeat(129), code_challenge_method: 'S256' },
    { code_challenge: `${'a'.repeat(42)}!`, code_challenge_method: 'S256' },
  ];
  for (const parameters of cases) {
    const { leftTo } = await ask(parameters);
    assert.equal(leftTo?.searchParams.get('error'), 'invalid_request', JSON.stringify(parameters));
  }
});

test('oauth 38: a code is refused when its verifier is missing, wrong or short', async () => {
  const cases: [Record<string, string>, string][] = [
    [{}, 'invalid_grant'],
    [{ code_verifier: createPkce().verifier }, 'invalid_grant'],
    [{ code_verifier: 'short' }, 'invalid_request'],
  ];
  for (const [form, error] of cases) {
    const { code } = await obtainCode(server, { account, client, scopes });
    const { status, body } = await exchange({ code, ...form });
    assert.equal(status, 400);
    assert.equal(body.error, error, JSON.stringify(form));
  }
});

test('oauth 40: a code is refused for another client or redirect_uri', async () => {
  const other = await createTestClient(server);
  const cases: [Record<string, string>, typeof client][] = [
    [{ redirect_uri: client.redirectUri }, other],
    [{ redirect_uri: 'https://other.example/' }, client],
  ];
  for (const [form, as] of cases) {
    const { code, verifier } = await obtainCode(server, { account, client, scopes });
    const { status, body } = await exchange({ code, code_verifier: verifier, ...form }, as);
    assert.equal(status, 400);
    assert.equal(body.error, 'invalid_grant');
  }
  const { code, verifier } = await obtainCode(server, { account, client, scopes });
  const missing = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
  });
  assert.equal(missing.status, 400);
});

test('oauth 41: a second use of a code revokes what the first use issued', async () => {
  const { code, verifier } = await obtainCode(server, { account, client, scopes });
  const form = { code, code_verifier: verifier };
  const first = await exchange(form);
  assert.equal(first.status, 200);
  const second = await exchange(form);
  assert.equal(second.status, 400);
  assert.equal(second.body.error, 'invalid_grant');
  const refreshed = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: String(first.body.refresh_token),
  });
  assert.equal(refreshed.status, 400);
  const info = await fetch(`${server.baseUrl}/oauth/userinfo`, {
    headers: { authorization: `Bearer ${first.body.access_token}` },
  });
  assert.equal(info.status, 401);
  const { rows } = await sql<{ withdrawn_reason: string }>`
    select withdrawn_reason from grants where id = ${grantIdOf(first.body.access_token)}`.execute(server.db);
  assert.equal(rows[0]?.withdrawn_reason, 'code_replayed');
});

test('oauth 42: exactly one of 20 concurrent redemptions of a code succeeds', async () => {
  for (const as of [client, await createTestClient(server, { grantTypes: ['authorization_code'] })]) {
    const { code, verifier } = await obtainCode(server, { account, client: as, scopes });
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => exchange({ code, code_verifier: verifier }, as)),
    );
    assert.equal(answers.filter(({ status }) => status === 200).length, 1);
    const refused = answers.filter(({ status }) => status !== 200);
    assert.ok(refused.every(({ status, body }) => status === 400 && body.error === 'invalid_grant'));
  }
});

test('oauth 43: a code has at least 128 random bits and lives 60 seconds', async () => {
  const { code, verifier } = await obtainCode(server, { account, client, scopes });
  assert.match(code, /^[A-Za-z0-9_-]{43,}$/);
  const { rows } = await sql<{ seconds: number }>`
    select extract(epoch from expires_at - now())::float8 as seconds from authorization_codes
    order by expires_at desc limit 1`.execute(server.db);
  assert.ok((rows[0]?.seconds ?? 99) <= 60);
  await sql`
    update authorization_codes set
      expires_at = now() - interval '1 second',
      payload = payload || jsonb_build_object('exp', floor(extract(epoch from now())) - 1)`.execute(
    server.db,
  );
  const { status, body } = await exchange({ code, code_verifier: verifier });
  assert.equal(status, 400);
  assert.equal(body.error, 'invalid_grant');
});

test('signing in gives the browser a new session and ends the previous one', async () => {
  const sessionOf = (browser: TestBrowser) =>
    browser.cookies.find(({ name }) => name === 'nuncio_session')?.value ?? '';
  const { browser } = await authorize(server, { account, client, scopes });
  const before = sessionOf(browser);
  assert.notEqual(before, '');
  await authorize(server, { account, client, scopes, browser, parameters: { prompt: 'login consent' } });
  const now = sessionOf(browser);
  assert.notEqual(now, before);
  const { rows } = await sql<{ digest: Buffer }>`
    select digest from login_sessions where digest in (${digest(before)}, ${digest(now)})`.execute(server.db);
  assert.deepEqual(
    rows.map((row) => row.digest.toString('hex')),
    [digest(now).toString('hex')],
  );
});

test('a confirmed consent is not asked for again, except for a public client on the user’s own machine', async () => {
  const confirmed = await createTestClient(server);
  const { browser } = await authorize(server, { account, client: confirmed, scopes });
  const { challenge } = createPkce();
  const parameters = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  const again = await browser.open(authorizationUrl(server, confirmed, parameters));
  assert.ok(again.leftTo?.searchParams.get('code'));
  const more = await browser.open(
    authorizationUrl(server, confirmed, { ...parameters, scope: 'read:posts write:posts' }),
  );
  assert.match(more.text, /value="allow"/);

  const installed = await createTestClient(server, {
    authMethod: 'none',
    redirectUris: ['http://127.0.0.1/cb'],
  });
  await authorize(server, { account, client: installed, scopes, browser });
  const asked = await browser.open(authorizationUrl(server, installed, parameters));
  assert.match(asked.text, /value="allow"/);
});

test('sign-in is throttled after wrong passwords, also with the right password', async () => {
  const victim = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  let page = await browser.open(authorizationUrl(server, client, parameters));
  for (let guess = 0; guess < 10; guess += 1) {
    page = await browser.submit(page, { email: victim.email, password: `wrong-${guess}`, action: 'login' });
    assert.equal(page.response.status, 422);
    assert.match(page.text, /role="alert"/);
  }
  page = await browser.submit(page, { email: victim.email, password: victim.password, action: 'login' });
  assert.equal(page.response.status, 429);
  assert.ok(Number(page.response.headers.get('retry-after')) > 0);
  // Another user on the same machine can still sign in.
  const { code } = await obtainCode(server, { account, client, scopes });
  assert.ok(code);
});

test('client metadata is escaped on the consent page', async () => {
  const hostile = await createTestClient(server, { name: '<script>alert(1)</script>"onload=' });
  const browser = new TestBrowser(server.baseUrl);
  const { challenge } = createPkce();
  const parameters = {
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    login_hint: '"><script>alert(2)</script>',
  };
  const login = await browser.open(authorizationUrl(server, hostile, parameters));
  const credentials = { email: account.email, password: account.password, action: 'login' };
  const consent = await browser.submit(login, credentials);
  for (const page of [login, consent]) assert.ok(!page.text.includes('<script>'), page.text);
});

function grantIdOf(accessToken: unknown): string {
  const payload = String(accessToken).split('.')[1] ?? '';
  return JSON.parse(Buffer.from(payload, 'base64url').toString()).grant_id;
}
