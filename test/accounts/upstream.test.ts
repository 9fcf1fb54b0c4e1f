/** Sign-in with an upstream OpenID provider: authorization requests, account resolution and connected identities. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { disableAccount } from '../../src/accounts/account.ts';
import { readAuditLog } from '../../src/audit/audit_log.ts';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import {
  declare,
  openLoginPage,
  pressButton,
  signInAt,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';

const trusted = await startFakeProvider({ after });
const plain = await startFakeProvider({ after });
const server = await startServerWithProviders({ after }, [
  declare('trusted', trusted, { trustEmail: true }),
  declare('plain', plain),
]);
const closed = await startServerWithProviders(
  { after },
  [declare('trusted', trusted, { trustEmail: true }), declare('plain', plain)],
  'off',
);
const { db } = server;
const app = await createTestClient(server, { name: 'Reader' });
const appOfClosed = await createTestClient(closed, { name: 'Reader' });

const accountOf = async (subject: string, where = server) =>
  (
    await sql<{ id: string; email: string | null; email_verified: boolean | null; name: string }>`
      select a.id, a.email, a.email_verified, a.name
      from upstream_identities i join accounts a on a.id = i.account_id where i.subject = ${subject}`.execute(
      where.db,
    )
  ).rows[0];

function signIn(
  provider: 'trusted' | 'plain',
  claims: Record<string, unknown>,
  browser = new TestBrowser(server.baseUrl),
  parameters: Record<string, string> = {},
) {
  return openLoginPage(server, browser, app, parameters).then((page) =>
    signInAt(browser, page, provider, provider === 'trusted' ? trusted : plain, claims),
  );
}

test('the authorization request has response_type=code, PKCE S256, state, nonce and the parameters of the app', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const page = await openLoginPage(server, browser, app, {
    login_hint: 'ann@example.com',
    prompt: 'login',
    max_age: '60',
  });
  const sent = await pressButton(browser, page, 'trusted');
  assert.equal(sent.response.status, 303);
  assert.equal(sent.response.headers.get('referrer-policy'), 'no-referrer');
  const { searchParams: asked, origin, pathname } = sent.leftTo as URL;
  assert.equal(origin + pathname, `${trusted.issuer}/authorize`);
  const { state, nonce, code_challenge: challenge, ...rest } = Object.fromEntries(asked);
  for (const value of [state, nonce, challenge]) assert.match(String(value), /^[A-Za-z0-9_-]{43}$/);
  assert.equal(new Set([state, nonce, challenge]).size, 3);
  assert.deepEqual(rest, {
    client_id: 'nuncio',
    redirect_uri: `${server.baseUrl}/login/trusted/callback`,
    response_type: 'code',
    scope: 'openid email profile',
    code_challenge_method: 'S256',
    login_hint: 'ann@example.com',
    prompt: 'login',
    max_age: '60',
  });
});

test('a login_hint that would make the redirect to the provider too long is left out', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const page = await openLoginPage(server, browser, app, { login_hint: 'x'.repeat(2_000) });
  const { searchParams: asked } = (await pressButton(browser, page, 'trusted')).leftTo as URL;
  assert.equal(asked.has('login_hint'), false);
});

test('a first sign-in creates an account and redirects to the app when a trusted provider verified the address', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const sub = newId();
  const page = await signIn(
    'trusted',
    { sub, email: 'First@Example.com', email_verified: true, name: 'Ann' },
    browser,
  );
  assert.match(page.text, /Connect Reader/);
  const account = await accountOf(sub);
  assert.deepEqual(
    [account?.email, account?.email_verified, account?.name],
    ['first@example.com', true, 'Ann'],
  );
  const redirect = await passPages(browser, page, await createTestAccount(server));
  assert.ok(redirect.searchParams.get('code'));
  // RFC 6749 section 2.3.1: the credentials are form-encoded. RFC 7636: the verifier matches the challenge.
  const [scheme, credentials = ''] = trusted.lastTokenRequest?.authorization?.split(' ') ?? [];
  assert.equal(scheme, 'Basic');
  const decoded = Buffer.from(credentials, 'base64').toString();
  assert.equal(decodeURIComponent(decoded.split(':')[1]?.replaceAll('+', '%20') ?? ''), trusted.clientSecret);
  assert.match(trusted.lastTokenRequest?.form.get('code_verifier') ?? '', /^[A-Za-z0-9_-]{43}$/);
  // The second sign-in uses the same account.
  assert.ok((await signIn('trusted', { sub })).leftTo?.searchParams.has('code'));
  assert.equal((await accountOf(sub))?.id, account?.id);
  const entries = await readAuditLog(db, { account: account?.id, limit: 20 });
  const [linked] = entries.filter(({ kind }) => kind === 'identity.connected');
  assert.deepEqual(linked?.details, { provider: 'trusted', issuer: trusted.issuer });
});

test('a trusted, verified address connects an account only when its address is verified here', async () => {
  const verified = await createTestAccount(server, { email: 'verified@example.com' });
  await sql`update accounts set email_verified = true where id = ${verified.id}`.execute(db);
  const sub = newId();
  await signIn('trusted', { sub, email: 'VERIFIED@example.com', email_verified: true });
  assert.equal((await accountOf(sub))?.id, verified.id);

  // Pre-hijacking: an attacker has registered the victim's address here.
  const squatted = await createTestAccount(server, { email: 'squatted@example.com' });
  const victim = newId();
  const page = await signIn('trusted', { sub: victim, email: 'squatted@example.com', email_verified: true });
  assert.match(page.text, /There is an account with the address squatted@example\.com/);
  assert.doesNotMatch(page.text, /Create an account/);
  assert.equal(await accountOf(victim), undefined);
  const { rows } = await sql`select from upstream_identities where account_id = ${squatted.id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('an address is neither used nor stored when it is unverified or the provider is untrusted', async () => {
  const local = await createTestAccount(server, { email: 'target@example.com' });
  await sql`update accounts set email_verified = true where id = ${local.id}`.execute(db);
  const kelvin = await createTestAccount(server, { email: 'kelvin@example.com' });
  await sql`update accounts set email_verified = true where id = ${kelvin.id}`.execute(db);
  const lies: [provider: 'trusted' | 'plain', claims: Record<string, unknown>][] = [
    ['plain', { email: 'target@example.com', email_verified: true }],
    ['trusted', { email: 'target@example.com', email_verified: false }],
    ['trusted', { email: 'target@example.com', email_verified: 'true' }],
    ['trusted', { email: 'target@example.com' }],
    ['trusted', { email: ['target@example.com'], email_verified: true }],
    ['trusted', { email: 'target@example.com\0', email_verified: true }],
    // The Kelvin sign becomes a `k` in lower case.
    ['trusted', { email: 'kelvin@example.com'.replace('k', '\u212a'), email_verified: true }],
  ];
  for (const [provider, claims] of lies) {
    const browser = new TestBrowser(server.baseUrl);
    const sub = newId();
    const page = await signIn(provider, { sub, ...claims }, browser);
    assert.equal(page.response.status, 200, page.text);
    assert.match(page.text, /Create an account/);
    assert.doesNotMatch(page.text, /There is an account/, 'does not reveal who has an account');
    assert.equal(await accountOf(sub), undefined);
    await browser.submit(page, { action: 'create' });
    const account = await accountOf(sub);
    assert.ok(account);
    assert.notEqual(account.id, local.id);
    assert.deepEqual([account.email, account.email_verified], [null, null]);
  }
});

test('a second identity of a provider requires the password when it reports the address of a connected account', async () => {
  const first = newId();
  const claims = { email: 'reused@example.com', email_verified: true };
  await signIn('trusted', { sub: first, ...claims });
  assert.ok(await accountOf(first));
  // The provider has reassigned the address.
  const second = newId();
  const page = await signIn('trusted', { sub: second, ...claims });
  assert.match(page.text, /There is an account with the address reused@example\.com/);
  assert.equal(await accountOf(second), undefined);
});

test('a local sign-in connects the identity when the password is correct', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const local = await createTestAccount(server);
  const sub = newId();
  let page = await signIn('plain', { sub, email: local.email, email_verified: true }, browser);
  const connect = page.text.indexOf('value="create"') < 0 ? 0 : 1;
  page = await browser.submit(
    page,
    { action: 'connect', email: local.email, password: 'wrong password' },
    connect,
  );
  assert.equal(page.response.status, 422);
  assert.match(page.text, /Incorrect email address or password/);
  assert.equal(await accountOf(sub), undefined);
  page = await browser.submit(
    page,
    { action: 'connect', email: local.email, password: local.password },
    connect,
  );
  assert.match(page.text, /Connect Reader/);
  assert.equal((await accountOf(sub))?.id, local.id);
  // A second submission of the form is rejected.
  assert.match((await signIn('plain', { sub })).text, /Connect Reader/);
});

test('a sign-in creates no account but can connect one when registration is off', async () => {
  const local = await createTestAccount(closed);
  for (const claims of [{ email: 'new@example.com', email_verified: true }, {}]) {
    const browser = new TestBrowser(closed.baseUrl);
    const sub = newId();
    const login = await openLoginPage(closed, browser, appOfClosed);
    let page = await signInAt(browser, login, 'trusted', trusted, { sub, ...claims });
    assert.match(page.text, /If you have no account or password here, contact/);
    assert.doesNotMatch(page.text, /value="create"/);
    // A forged form.
    const forged = await browser.submit(page, { action: 'create' });
    assert.match(forged.text, /If you have no account/);
    assert.equal(await accountOf(sub, closed), undefined);
    page = await browser.submit(page, { action: 'connect', email: local.email, password: local.password });
    assert.match(page.text, /Connect Reader/);
    assert.equal((await accountOf(sub, closed))?.id, local.id);
  }
});

test('a disabled account cannot sign in by its identity or by its address', async () => {
  const sub = newId();
  await signIn('trusted', { sub, email: 'gone@example.com', email_verified: true });
  const account = await accountOf(sub);
  assert.ok(account);
  await disableAccount(db, account.id);
  for (const again of [sub, newId()]) {
    const page = await signIn('trusted', { sub: again, email: 'gone@example.com', email_verified: true });
    assert.equal(page.response.status, 403);
    assert.match(page.text, /The account is disabled/);
  }
  await sql`delete from accounts where id = ${account.id}`.execute(db);
  assert.equal(await accountOf(sub), undefined);
});

test('an external account is never connected by its address', async () => {
  const id = newId();
  await sql`
    insert into accounts (id, external_id, email, email_verified, name)
    values (${id}, ${newId()}, 'external@example.com', true, 'External')`.execute(db);
  const sub = newId();
  await signIn('trusted', { sub, email: 'external@example.com', email_verified: true });
  const account = await accountOf(sub);
  assert.ok(account);
  assert.notEqual(account.id, id);
});

test('subjects are compared byte by byte and rejected when they are invalid', async () => {
  const subjects = [
    'x'.repeat(255),
    `${'x'.repeat(254)}X`,
    `'"; drop table accounts; --`,
    '😀'.repeat(255),
    ' leading and trailing ',
    '<script>alert(1)</script>\n\u0001',
    'É',
    'E\u0301',
    newId(),
    'a@example.com',
  ];
  const ids = new Set<string>();
  for (const sub of subjects) {
    const browser = new TestBrowser(server.baseUrl);
    const page = await signIn('plain', { sub }, browser);
    assert.doesNotMatch(page.text, /<script/);
    await browser.submit(page, { action: 'create' });
    ids.add((await accountOf(sub))?.id ?? '');
    assert.match((await signIn('plain', { sub })).text, /Connect Reader/);
  }
  assert.equal(ids.size, subjects.length);
  for (const sub of ['', 'x'.repeat(256), 'with\0nul', '\ud800']) {
    const page = await signIn('plain', { sub });
    assert.equal(page.response.status, 400, JSON.stringify(sub));
    assert.match(page.text, /could not be verified/);
  }
});

test('concurrent first sign-ins with one identity create one account', async () => {
  const sub = newId();
  const claims = { sub, email: `${sub}@example.com`, email_verified: true };
  const browsers = Array.from({ length: 4 }, () => new TestBrowser(server.baseUrl));
  // Sequential up to the last step, because each ID token has its own nonce.
  const pages = await Promise.all(browsers.map((browser) => openLoginPage(server, browser, app)));
  const lastSteps: string[] = [];
  for (const [index, browser] of browsers.entries()) {
    const sent = await pressButton(browser, pages[index] as (typeof pages)[number], 'trusted');
    const asked = (sent.leftTo as URL).searchParams;
    trusted.idToken = () => trusted.sign({ nonce: asked.get('nonce'), ...claims });
    const callback = `${asked.get('redirect_uri')}?${new URLSearchParams({
      code: 'c',
      state: asked.get('state') ?? '',
      iss: trusted.issuer,
    })}`;
    const back = await browser.request(callback);
    lastSteps.push(new URL(back.headers.get('location') ?? '', server.baseUrl).href);
  }
  const done = await Promise.all(
    browsers.map((browser, index) => browser.request(lastSteps[index] as string)),
  );
  assert.deepEqual(
    done.map(({ status }) => status),
    [303, 303, 303, 303],
  );
  const { rows } = await sql`select from accounts where email = ${claims.email}`.execute(db);
  assert.equal(rows.length, 1);
});

test('the address comes from UserInfo when the ID token has none', async (t) => {
  t.after(() => {
    trusted.userInfo = undefined;
  });
  const provider = await startFakeProvider(t);
  const own = await startServerWithProviders(t, [declare('own', provider, { trustEmail: true })]);
  const client = await createTestClient(own);
  const sub = newId();
  provider.userInfo = { sub, email: 'told@example.com', email_verified: true, name: 'Told' };
  const browser = new TestBrowser(own.baseUrl);
  await signInAt(browser, await openLoginPage(own, browser, client), 'own', provider, { sub });
  const account = await accountOf(sub, own);
  assert.deepEqual([account?.email, account?.name], ['told@example.com', 'Told']);
  // A UserInfo response with a different `sub` is rejected (OpenID Connect Core section 5.3.2).
  const other = new TestBrowser(own.baseUrl);
  const stranger = newId();
  const page = await signInAt(other, await openLoginPage(own, other, client), 'own', provider, {
    sub: stranger,
  });
  assert.equal(page.response.status, 400);
  assert.equal(await accountOf(stranger, own), undefined);
});

test('max_age and prompt=login are not satisfied when the provider’s auth_time is too old, missing or in the future', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const sub = newId();
  await signIn('trusted', { sub, email: `${sub}@example.com`, email_verified: true });
  const refused = async (claims: Record<string, unknown>, parameters: Record<string, string>) => {
    const page = await signIn('trusted', { sub, ...claims }, new TestBrowser(server.baseUrl), parameters);
    assert.equal(page.response.status, 403, page.text);
    assert.match(page.text, /does not confirm that you have just signed in/);
  };
  await refused({}, { max_age: '300' });
  await refused({ auth_time: now - 900 }, { max_age: '300' });
  await refused({ auth_time: now - 900 }, { prompt: 'login' });
  await refused({}, { prompt: 'login' });
  await refused({ auth_time: now + 86_400 }, { max_age: '300' });
  const page = await signIn('trusted', { sub, auth_time: now - 100 }, new TestBrowser(server.baseUrl), {
    max_age: '300',
  });
  assert.match(page.text, /Connect Reader/);
});

test('an id_token has the auth_time of the provider, and none when the provider reports none', async () => {
  const authTime = Math.floor(Date.now() / 1_000) - 100;
  const cases: [Record<string, unknown>, number | undefined][] = [
    [{ auth_time: authTime }, authTime],
    [{}, undefined],
  ];
  const client = await createTestClient(server, { metadata: { require_auth_time: true } });
  for (const [claims, expected] of cases) {
    const browser = new TestBrowser(server.baseUrl);
    const { verifier, challenge } = createPkce();
    const login = await openLoginPage(server, browser, client, { code_challenge: challenge });
    const sub = newId();
    const all = { sub, email: `${sub}@example.com`, email_verified: true, ...claims };
    const page = await signInAt(browser, login, 'trusted', trusted, all);
    const redirect = await passPages(browser, page, await createTestAccount(server));
    const { body } = await postForm(server, '/oauth/token', client, {
      grant_type: 'authorization_code',
      code: redirect.searchParams.get('code') ?? '',
      code_verifier: verifier,
      redirect_uri: client.redirectUri,
    });
    assert.equal(decodeJwt(String(body.id_token)).auth_time, expected);
  }
});

test('the name of a new account has no control characters and a maximum of 200 characters', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const sub = newId();
  const page = await signIn('plain', { sub, name: `\u202eAnn\n<b>${'x'.repeat(500)}` }, browser);
  assert.doesNotMatch(page.text, /<b>/);
  await browser.submit(page, { action: 'create' });
  const { name } = (await accountOf(sub)) ?? { name: '' };
  assert.ok(name.startsWith('Ann<b>x'), name);
  assert.equal(name.length, 200);
});

test('GET /admin/accounts/<id> lists the identities of the account', async () => {
  const sub = newId();
  await signIn('trusted', { sub, email: `${sub}@example.com`, email_verified: true });
  const admin = await createTestClient(server, { scopes: ['admin'] });
  const request = requester(server, await clientToken(server, admin, ['admin']));
  const { status, body } = await request('GET', `/admin/accounts/${(await accountOf(sub))?.id}`);
  assert.equal(status, 200);
  const [{ created_at: _created, last_used_at: _used, ...identity }] = body.identities;
  assert.deepEqual(identity, {
    provider: 'trusted',
    issuer: trusted.issuer,
    subject: sub,
    label: `${sub}@example.com`,
  });
});
