/** Attacks on the authorization server: each test tries to take what belongs to another. SECURITY.md lists them. */

import assert from 'node:assert/strict';
import { request as httpRequest } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
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
import { timesAsMuch } from '../support/processor_time.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const victim = await createTestAccount(server);
const attacker = await createTestAccount(server);
const client = await createTestClient(server);
const scopes = ['read:posts'];

function request(parameters: Record<string, string | undefined> = {}, as = client): string {
  const { challenge } = createPkce();
  const defaults = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  return authorizationUrl(server, as, { ...defaults, ...parameters });
}

test('attack: an attacker’s session placed in the victim’s browser does not become the victim’s', async () => {
  const { browser } = await authorize(server, { account: attacker, client, scopes });
  const planted = browser.cookies.filter(({ name }) => name.startsWith('nuncio_session'));
  const victims = new TestBrowser(server.baseUrl);
  for (const { name, value, path } of planted) victims.setCookie(name, value, path);
  // The victim signs in there, while the attacker still has the old cookie.
  const login = await victims.open(request({ prompt: 'login' }));
  let page = await victims.submit(login, { email: victim.email, password: victim.password, action: 'login' });
  for (let step = 0; page.leftTo === null && step < 4; step += 1) {
    const isLogin = page.text.includes('name="password"');
    const isConsent = page.text.includes('value="allow"');
    const values = isLogin
      ? { email: victim.email, password: victim.password, action: 'login' }
      : isConsent
        ? { action: 'allow' }
        : {};
    page = await victims.submit(page, values);
  }
  const attackers = new TestBrowser(server.baseUrl);
  for (const { name, value, path } of planted) attackers.setCookie(name, value, path);
  const tried = await attackers.open(request({ prompt: 'consent' }));
  assert.ok(!tried.text.includes(victim.email), 'the attacker is not signed in as the victim');
});

test('attack: a session cookie with a changed value or without its signature opens no session', async () => {
  const { browser } = await authorize(server, { account: victim, client, scopes });
  const session = browser.cookies.find(({ name }) => name === 'nuncio_session');
  assert.ok(session);
  const unsigned = new TestBrowser(server.baseUrl);
  unsigned.setCookie('nuncio_session', session.value);
  assert.match((await unsigned.open(request())).text, /name="password"/);
  const { rows } = await sql<{ digest: string }>`
    select encode(digest, 'hex') as digest from login_sessions`.execute(server.db);
  const byDigest = new TestBrowser(server.baseUrl);
  for (const { name, value } of browser.cookies) {
    if (name.startsWith('nuncio_session')) byDigest.setCookie(name, value);
  }
  byDigest.setCookie('nuncio_session', rows[0]?.digest ?? '');
  assert.match((await byDigest.open(request())).text, /name="password"/);
});

test('attack: a forged form (CSRF) answers no question for the victim', async () => {
  const attackers = new TestBrowser(server.baseUrl);
  const fresh = await createTestClient(server);
  let page = await attackers.open(request({}, fresh));
  page = await attackers.submit(page, {
    email: attacker.email,
    password: attacker.password,
    action: 'login',
  });
  assert.match(page.text, /value="allow"/);
  // The signed-in victim submits the attacker's consent form unchanged.
  const { browser: victims } = await authorize(server, { account: victim, client, scopes });
  const answered = await victims.submit(page, { action: 'allow' });
  assert.equal(answered.response.status, 400);
  assert.equal(answered.leftTo, null);
  // The form token of another browser's login form does not confirm the consent.
  const question = await createTestClient(server);
  const login = await new TestBrowser(server.baseUrl).open(request({}, question));
  const consent = await victims.open(request({}, question));
  const token = /name="form_token" value="([^"]+)"/.exec(login.text)?.[1] ?? '';
  const forged = await victims.submit(consent, { action: 'allow', form_token: token });
  assert.equal(forged.response.status, 403);
});

test('attack: an authorization cannot be resumed in another browser', async () => {
  const victims = new TestBrowser(server.baseUrl);
  const login = await victims.open(request({}, await createTestClient(server)));
  const uid = login.url.split('/').pop();
  const resumed = await new TestBrowser(server.baseUrl).open(`${server.baseUrl}/oauth/authorize/${uid}`);
  assert.equal(resumed.response.status, 400);
  const without = await victims.open(`${server.baseUrl}/oauth/authorize/${uid}`);
  assert.equal(without.leftTo?.searchParams.get('code') ?? null, null);
});

test('attack: a stolen code fails without its verifier or at another client, and works for its owner', async () => {
  const other = await createTestClient(server);
  const { code, verifier } = await obtainCode(server, { account: victim, client, scopes });
  const form = { grant_type: 'authorization_code', code, redirect_uri: client.redirectUri };
  const attempts = [
    await postForm(server, '/oauth/token', client, { ...form, code_verifier: 'a'.repeat(43) }),
    await postForm(server, '/oauth/token', client, form),
    await postForm(server, '/oauth/token', other, { ...form, code_verifier: verifier }),
    await postForm(server, '/oauth/token', client, {
      ...form,
      code_verifier: verifier,
      redirect_uri: 'https://evil.example/',
    }),
  ];
  assert.ok(attempts.every(({ status }) => status === 400));
  const owner = await postForm(server, '/oauth/token', client, { ...form, code_verifier: verifier });
  assert.equal(owner.status, 200);
});

test('attack: a mix-up fails: the response names its issuer, and a foreign code is unknown', async () => {
  const { redirect } = await obtainCode(server, { account: victim, client, scopes });
  assert.equal(redirect.searchParams.get('iss'), server.baseUrl);
  const elsewhere = await startTestServer({ after });
  const there = await createTestClient(elsewhere, { id: client.id });
  const { status, body } = await postForm(elsewhere, '/oauth/token', there, {
    grant_type: 'authorization_code',
    code: redirect.searchParams.get('code') ?? '',
    code_verifier: 'a'.repeat(43),
    redirect_uri: client.redirectUri,
  });
  assert.deepEqual([status, body.error], [400, 'invalid_grant']);
});

test('attack: parameters sent twice, or once in query and once in body, are refused', async () => {
  for (const name of [
    'client_id',
    'redirect_uri',
    'scope',
    'state',
    'code_challenge',
    'response_type',
    'prompt',
  ]) {
    const page = await new TestBrowser(server.baseUrl).open(
      `${request({ state: 's' })}&${name}=https://evil.example`,
    );
    const error = page.leftTo?.searchParams.get('error') ?? (page.response.status === 400 ? 'page' : null);
    assert.ok(error !== null, name);
    assert.ok(page.leftTo === null || page.leftTo.href.startsWith(client.redirectUri), name);
  }
  const response = await fetch(
    `${server.baseUrl}/oauth/token?grant_type=client_credentials&scope=write:posts`,
    {
      method: 'POST',
      headers: { authorization: `Basic ${Buffer.from(`${client.id}:${client.secret}`).toString('base64')}` },
      body: new URLSearchParams({ grant_type: 'client_credentials', scope: 'read:posts' }),
    },
  );
  assert.equal(((await response.json()) as Record<string, unknown>).scope, 'read:posts');
  const nested = await fetch(`${server.baseUrl}/oauth/token`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: 'grant_type[]=client_credentials&__proto__[scope]=x&constructor=1&client_id=x',
  });
  assert.ok(nested.status >= 400 && nested.status < 500);
});

test('attack: line breaks in returned values start no header', async () => {
  for (const value of [
    'a\r\nset-cookie: evil=1',
    'a%0d%0aset-cookie:%20evil=1',
    '\u560a\u560dset-cookie: evil=1',
  ]) {
    const page = await new TestBrowser(server.baseUrl).request(request({ state: value, scope: 'no:such' }));
    assert.ok(!page.headers.getSetCookie().some((cookie) => cookie.startsWith('evil')));
    const login = await new TestBrowser(server.baseUrl).open(request({ login_hint: value }));
    assert.equal(login.response.status, 200);
  }
});

test('attack: login, logout and their forms redirect only within this server', async () => {
  const paths = [
    '/oauth/logout?post_logout_redirect_uri=https://evil.example',
    `/oauth/logout?post_logout_redirect_uri=https://evil.example&client_id=${client.id}`,
    '//evil.example/oauth/authorize',
    '/oauth/authorize//evil.example',
    '/interaction/..%2f..%2fevil.example',
  ];
  for (const path of paths) {
    const page = await new TestBrowser(server.baseUrl).open(server.baseUrl + path);
    assert.equal(page.leftTo, null, path);
  }
});

test('attack: another user’s or app’s token is neither shown nor revoked', async () => {
  const mine = await authorize(server, { account: victim, client, scopes });
  const other = await createTestClient(server);
  for (const token of [mine.accessToken, mine.refreshToken]) {
    assert.deepEqual((await postForm(server, '/oauth/introspect', other, { token })).body, { active: false });
    await postForm(server, '/oauth/revoke', other, { token });
  }
  const { status } = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: mine.refreshToken,
  });
  assert.equal(status, 200);
});

test('attack: a narrowed token cannot be widened', async () => {
  const got = await authorize(server, { account: victim, client, scopes });
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: got.refreshToken,
    scope: 'read:posts write:posts',
  });
  assert.deepEqual([status, body.error], [400, 'invalid_scope']);
  const machine = await postForm(server, '/oauth/token', client, {
    grant_type: 'client_credentials',
    scope: 'write:events',
  });
  assert.deepEqual([machine.status, machine.body.error], [400, 'invalid_scope']);
});

test('attack: responses do not reveal whether an account exists', async () => {
  const texts: string[] = [];
  for (const email of [victim.email, 'nobody@example.com']) {
    const browser = new TestBrowser(server.baseUrl);
    const login = await browser.open(request());
    const page = await browser.submit(login, { email, password: 'not the password', action: 'login' });
    texts.push(
      `${page.response.status} ${page.text.replaceAll(email, '').replace(/form_token" value="[^"]*/g, '')}`,
    );
  }
  assert.equal(texts[0], texts[1]);
});

test('attack: hostile hosts and oversized or odd input get a 4xx and never a 5xx', async () => {
  const odd: [string, string, Record<string, string>, string | undefined][] = [
    ['GET', '/oauth/authorize?%00', {}, undefined],
    ['GET', `/oauth/authorize?${'a=1&'.repeat(2_000)}`, {}, undefined],
    ['GET', '/oauth/authorize?client_id=%ff%fe&redirect_uri=%00', {}, undefined],
    ['GET', `/oauth/authorize?client_id=${'x'.repeat(5_000)}`, {}, undefined],
    ['POST', '/oauth/token', { 'content-type': 'application/x-www-form-urlencoded' }, '%'],
    [
      'POST',
      '/oauth/token',
      { 'content-type': 'application/x-www-form-urlencoded' },
      '\u0000=\u0000&client_id=\u0000',
    ],
    ['POST', '/oauth/token', { authorization: 'Basic ====' }, ''],
    [
      'POST',
      '/oauth/token',
      { authorization: `Basic ${Buffer.from('\u0000:\u0000').toString('base64')}` },
      '',
    ],
    [
      'POST',
      '/oauth/revoke',
      { 'content-type': 'application/x-www-form-urlencoded' },
      'token=\u0000&client_id=x',
    ],
    ['POST', '/device', { 'content-type': 'application/x-www-form-urlencoded' }, 'user_code=\u0000'],
    ['GET', '/device?user_code=%00', {}, undefined],
    ['GET', '/interaction/%00', {}, undefined],
    [
      'GET',
      `${new URL(request({ state: '\u0000' })).pathname}${new URL(request({ state: '\u0000' })).search}`,
      {},
      undefined,
    ],
    [
      'GET',
      `${new URL(request()).pathname}${new URL(request({ scope: 'openid', nonce: '\u0000' })).search}`,
      {},
      undefined,
    ],
    [
      'GET',
      `/oauth/authorize${new URL(request({ scope: 'openid', claims: '{"id_token":{"sub":{"value":"\\ud800"}}}' })).search}`,
      {},
      undefined,
    ],
    ['GET', '/oauth/logout?state=%00', {}, undefined],
    ['POST', '/interaction/x', { 'content-type': 'application/json' }, '{}'],
    ['POST', '/oauth/authorize', { 'content-type': 'application/json' }, '{}'],
  ];
  for (const [method, path, headers, body] of odd) {
    const status = await new Promise<number>((resolve, reject) => {
      const call = httpRequest(server.baseUrl + path, {
        method,
        headers: { ...headers, host: 'evil.example' },
      });
      call.on('response', (response) => {
        response.resume();
        resolve(response.statusCode ?? 0);
      });
      call.on('error', reject);
      call.end(body);
    });
    assert.ok(status < 500, `${method} ${path.slice(0, 80)}: ${status}`);
  }
});

test('attack: a session that was signed out, or whose account was disabled, opens nothing', async () => {
  const { browser } = await authorize(server, { account: attacker, client, scopes });
  await sql`update accounts set disabled_at = now() where id = ${attacker.id}`.execute(server.db);
  const page = await browser.open(request());
  assert.equal(page.leftTo, null);
  assert.match(page.text, /name="password"/);
  await sql`update accounts set disabled_at = null where id = ${attacker.id}`.execute(server.db);
  const redirect = await passPages(
    new TestBrowser(server.baseUrl),
    await new TestBrowser(server.baseUrl).open(request()),
    attacker,
  ).catch(() => null);
  assert.equal(redirect, null, 'a page of one browser cannot be answered by another');
});

test('attack: a token request with thousands of scopes and hundreds of resources takes little longer', async () => {
  const app = await createTestClient(server, { grantTypes: ['client_credentials'], scopes });
  const ask = async (count: number) => {
    const form = new URLSearchParams({ client_id: app.id, client_secret: app.secret ?? '' });
    form.set('grant_type', 'client_credentials');
    form.set('scope', Array.from({ length: count }, () => 'read:posts').join(' '));
    for (let resource = 0; resource < 400; resource += 1) form.append('resource', server.baseUrl);
    const response = await fetch(`${server.baseUrl}/oauth/token`, { method: 'POST', body: form });
    const { scope } = (await response.json()) as Record<string, unknown>;
    assert.deepEqual([response.status, scope], [200, 'read:posts']);
  };
  await ask(1);
  const ratio = await timesAsMuch(
    () => ask(2_000),
    () => ask(1),
  );
  assert.ok(ratio < 4, `${ratio} times as long`);
});
