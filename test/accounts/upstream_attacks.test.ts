/** Attacks on sign-in with an upstream OpenID provider: CSRF, replay, mix-up, forged tokens and faulty providers. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { generateKeyPair } from 'jose';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import {
  callbackOf,
  declare,
  openLoginPage,
  pressButton,
  signInAt,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';
import { until } from '../support/webhooks/apps.ts';

const one = await startFakeProvider({ after });
const two = await startFakeProvider({ after });
const server = await startServerWithProviders({ after }, [
  declare('one', one, { trustEmail: true }),
  declare('two', two, { trustEmail: true, name: '<b>Two</b>' }),
]);
const { db } = server;
const app = await createTestClient(server, { name: 'Reader' });

interface Begun {
  browser: TestBrowser;
  authorize: URL;
  /** Subject of the ID token for the next code. */
  sub: string;
}

/** Redirects a browser to a provider that will sign in a new user. */
async function begin(
  provider: 'one' | 'two' = 'one',
  browser = new TestBrowser(server.baseUrl),
): Promise<Begun> {
  const sent = await pressButton(browser, await openLoginPage(server, browser, app), provider);
  const authorize = sent.leftTo as URL;
  const sub = newId();
  const fake = provider === 'one' ? one : two;
  fake.idToken = () =>
    fake.sign({
      nonce: authorize.searchParams.get('nonce'),
      sub,
      email: `${sub}@example.com`,
      email_verified: true,
    });
  return { browser, authorize, sub };
}

const callback = ({ authorize }: Begun, parameters: Record<string, string> = {}) =>
  callbackOf(authorize, { iss: one.issuer, ...parameters });

async function isConnected(sub: string): Promise<boolean> {
  const { rows } = await sql`select from upstream_identities where subject = ${sub}`.execute(db);
  return rows.length > 0;
}

function assertRefused(page: Page, message: RegExp, status = 400): void {
  assert.equal(page.response.status, status, page.text);
  assert.equal(page.leftTo, null);
  assert.match(page.text, message);
  assert.match(page.text, /start again|[Tt]ry again|another way/);
}

const unfinished = /This sign-in cannot be finished/;
const unverified = /could not be verified/;

test('the callback is rejected when another browser began the sign-in', async () => {
  const attack = await begin();
  const requests = one.requests.get('/token');
  // Login CSRF: the attacker sends the victim to the callback of the attacker's sign-in.
  assertRefused(await new TestBrowser(server.baseUrl).open(callback(attack)), unfinished);
  const victim = await begin();
  assertRefused(await victim.browser.open(callback(attack)), unfinished);
  // The victim's secret in a cookie with the name of the attacker's sign-in.
  const planted = new TestBrowser(server.baseUrl);
  const secretOf = ({ browser }: Begun) => browser.cookies.find(({ name }) => name.includes('upstream'));
  planted.setCookie(secretOf(attack)?.name ?? '', secretOf(victim)?.value ?? '');
  assertRefused(await planted.open(callback(attack)), unfinished);
  assert.equal(one.requests.get('/token'), requests, 'the code goes nowhere');
  // The rejected requests have not used up the sign-in.
  const own = await begin('one', attack.browser);
  assert.match((await own.browser.open(callback(own))).text, /Connect Reader/);
});

test('the callback is rejected when it is replayed or ten minutes have passed', async () => {
  const begun = await begin();
  const answers = await Promise.all(Array.from({ length: 5 }, () => begun.browser.request(callback(begun))));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [303, 400, 400, 400, 400]);
  assertRefused(await begun.browser.open(callback(begun)), unfinished);
  const late = await begin();
  const expire = sql`update upstream_logins set expires_at = now()`;
  await expire.execute(db);
  assertRefused(await late.browser.open(callback(late)), unfinished);
  // The sign-in expires between the callback and the last step.
  const slow = await begin();
  const back = await slow.browser.request(callback(slow));
  await expire.execute(db);
  const last = new URL(back.headers.get('location') ?? '', server.baseUrl).href;
  assertRefused(await slow.browser.open(last), unfinished);
  assert.equal(await isConnected(slow.sub), false);
});

test('the last step is rejected when it is replayed or the browser or authorization request differs', async () => {
  const begun = await begin();
  const back = await begun.browser.request(callback(begun));
  const last = new URL(back.headers.get('location') ?? '', server.baseUrl);
  // Another authorization request of the same browser.
  const other = await openLoginPage(server, begun.browser, app);
  assertRefused(await begun.browser.open(`${other.url}/upstream${last.search}`), unfinished);
  assertRefused(await begun.browser.open(`${server.baseUrl}/account/upstream${last.search}`), unfinished);
  for (const search of ['', '?login=', '?login=x', '?login=a&login=b', `?login=${'a'.repeat(16)}`]) {
    assertRefused(await begun.browser.open(`${other.url}/upstream${search}`), unfinished);
  }
  // Without the cookie of the sign-in.
  const without = new TestBrowser(server.baseUrl);
  for (const { name, value, path } of begun.browser.cookies) {
    if (!name.includes('upstream')) without.setCookie(name, value, path);
  }
  assertRefused(await without.open(last.href), unfinished);
  const answers = await Promise.all([1, 2, 3].map(() => begun.browser.request(last.href)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [303, 400, 400]);
});

test('the callback is rejected when it comes from another provider or issuer (mix-up)', async () => {
  const begun = await begin();
  const requests = () => [one.requests.get('/token') ?? 0, two.requests.get('/token') ?? 0];
  const before = requests();
  assertRefused(await begun.browser.open(callback(begun).replace('/login/one/', '/login/two/')), unfinished);
  assertRefused(await begun.browser.open(callback(begun).replace('/login/one/', '/login/none/')), unfinished);
  assertRefused(await begun.browser.open(callback(begun, { iss: two.issuer })), unverified);
  assert.deepEqual(requests(), before, 'no code is sent to a token endpoint');
  // The metadata says that responses always have `iss`.
  const missing = await begin();
  assertRefused(await missing.browser.open(callbackOf(missing.authorize)), unverified);
  const twice = await begin();
  assertRefused(
    await twice.browser.open(`${callback(twice)}&iss=${encodeURIComponent(one.issuer)}`),
    unverified,
  );
  assert.deepEqual(requests(), before);
});

test('the callback is rejected when state is missing, repeated or unknown, or code is missing', async () => {
  for (const change of [
    (url: URL) => url.searchParams.delete('state'),
    (url: URL) => url.searchParams.append('state', 'x'),
    (url: URL) => url.searchParams.set('state', 'x'.repeat(43)),
    (url: URL) => url.searchParams.delete('code'),
  ]) {
    const begun = await begin();
    const url = new URL(callback(begun));
    change(url);
    const page = await begun.browser.open(url.href);
    assert.equal(page.response.status, 400, page.text);
    assert.equal(await isConnected(begun.sub), false);
  }
});

test('an ID token is rejected when it is not for this sign-in', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const foreign = await generateKeyPair('RS256');
  const unsigned = (claims: object) =>
    ['{"alg":"none"}', JSON.stringify(claims), '']
      .map((part) => Buffer.from(part).toString('base64url'))
      .join('.');
  const valid = { iss: one.issuer, aud: 'nuncio', iat: now, exp: now + 300 };
  const tokens: Record<string, (claims: { nonce: string; sub: string }) => Promise<string>> = {
    nonce: (claims) => one.sign({ ...claims, nonce: 'another' }),
    'no nonce': ({ sub }) => one.sign({ sub }),
    issuer: (claims) => one.sign({ ...claims, iss: two.issuer }),
    audience: (claims) => one.sign({ ...claims, aud: 'another' }),
    'authorized party': (claims) => one.sign({ ...claims, aud: ['nuncio', 'another'], azp: 'another' }),
    expired: (claims) => one.sign({ ...claims, iat: now - 900, exp: now - 600 }),
    'issued in the future': (claims) => one.sign({ ...claims, iat: now + 120, exp: now + 420 }),
    'no expiry': (claims) => one.sign({ ...claims, exp: undefined as never }),
    'signature of another key': (claims) => one.sign(claims, {}, foreign.privateKey),
    'unknown key': (claims) => one.sign(claims, { kid: 'two' }, foreign.privateKey),
    none: async (claims) => unsigned({ ...valid, ...claims }),
    'no subject': ({ nonce }) => one.sign({ nonce, sub: undefined as never }),
    'a number as subject': ({ nonce }) => one.sign({ nonce, sub: 7 as never }),
    'not a token': async () => 'token',
  };
  for (const [name, make] of Object.entries(tokens)) {
    const begun = await begin();
    const claims = { nonce: begun.authorize.searchParams.get('nonce') ?? '', sub: begun.sub };
    one.idToken = () => make(claims);
    assertRefused(await begun.browser.open(callback(begun)), unverified);
    assert.equal(await isConnected(begun.sub), false, name);
  }
});

test('alg none and HS256 are rejected when the provider’s metadata allows them', async (t) => {
  const provider = await startFakeProvider(t);
  provider.metadata = { id_token_signing_alg_values_supported: ['none', 'HS256', 'RS256'] };
  const own = await startServerWithProviders(t, [declare('own', provider, { trustEmail: true })]);
  const client = await createTestClient(own);
  const { createHmac } = await import('node:crypto');
  for (const alg of ['none', 'HS256']) {
    const browser = new TestBrowser(own.baseUrl);
    const sent = await pressButton(browser, await openLoginPage(own, browser, client), 'own');
    const now = Math.floor(Date.now() / 1_000);
    const claims = { iss: provider.issuer, aud: 'nuncio', sub: alg, iat: now, exp: now + 300 };
    provider.idToken = async () => {
      const nonce = sent.leftTo?.searchParams.get('nonce');
      const body = [{ alg }, { ...claims, nonce }].map((part) =>
        Buffer.from(JSON.stringify(part)).toString('base64url'),
      );
      const mac = createHmac('sha256', provider.clientSecret).update(body.join('.')).digest('base64url');
      return [...body, alg === 'none' ? '' : mac].join('.');
    };
    const page = await browser.open(callbackOf(sent.leftTo as URL, { iss: provider.issuer }));
    assert.equal(page.response.status, 400, page.text);
  }
});

test('a provider error shows a page without the provider’s text', async () => {
  const hostile = '"><script>alert(1)</script> call 555-0199';
  for (const error of ['access_denied', 'server_error', hostile]) {
    const begun = await begin();
    const url = new URL(
      callback(begun, { error, error_description: hostile, error_uri: 'https://evil.example' }),
    );
    url.searchParams.delete('code');
    const page = await begun.browser.open(url.href);
    assertRefused(page, error === 'access_denied' ? /You cancelled the sign-in/ : /refused the sign-in/);
    assert.doesNotMatch(page.text, /<script|555-0199|evil/);
    const back = /href="(\/interaction\/[^"]+)"/.exec(page.text)?.[1];
    assert.match((await begun.browser.open(`${server.baseUrl}${back}`)).text, /Continue with/);
  }
});

test('the names of providers and users are escaped', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  assert.match(login.text, /Continue with &lt;b&gt;Two&lt;\/b&gt;/);
  const page = await signInAt(browser, login, 'two', two, { sub: '<i>sub</i>', email: '<u>a@b' });
  assert.doesNotMatch(page.text, /<b>|<i>|<u>/);
});

test('redirects go only to a configured provider and back to the page of the sign-in', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  for (const provider of ['https://evil.example', 'none', '__proto__', '']) {
    assertRefused(await browser.submit(login, { action: 'upstream', provider }), unfinished);
  }
  const begun = await begin();
  const back = await begun.browser.request(
    callback(begun, { login: 'x', return_to: 'https://evil.example' }),
  );
  const to = new URL(back.headers.get('location') ?? '', server.baseUrl);
  assert.equal(to.origin, server.baseUrl);
  assert.match(to.pathname, /^\/interaction\/[^/]+\/upstream$/);
});

test('a sign-in begins only with the form of the page, and HEAD neither begins nor finishes one', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  const send = (headers: Record<string, string>, body: Record<string, string>) =>
    browser.request(login.url, { method: 'POST', headers, body: new URLSearchParams(body) });
  assert.equal((await send({}, { action: 'upstream', provider: 'one' })).status, 403);
  const token = /name="form_token" value="([^"]+)"/.exec(login.text)?.[1] ?? '';
  const fields = { action: 'upstream', provider: 'one', form_token: token };
  assert.equal((await send({ 'sec-fetch-site': 'cross-site' }, fields)).status, 403);
  assert.equal((await send({ origin: 'https://evil.example' }, fields)).status, 403);
  const account = `${server.baseUrl}/account/sign-in`;
  assert.equal(
    (await browser.request(account, { method: 'POST', body: new URLSearchParams(fields) })).status,
    403,
  );
  const begun = await begin();
  assert.equal((await begun.browser.request(callback(begun), { method: 'HEAD' })).status, 405);
  const back = await begun.browser.request(callback(begun));
  const last = new URL(back.headers.get('location') ?? '', server.baseUrl).href;
  assert.equal((await begun.browser.request(last, { method: 'HEAD' })).status, 405);
  assert.equal((await begun.browser.request(last)).status, 303);
});

test('the form token of the last step is rejected in another browser', async () => {
  const question = async (browser: TestBrowser) => {
    const login = await openLoginPage(server, browser, app);
    return signInAt(browser, login, 'one', one, { sub: newId() });
  };
  const [mine, theirs] = [new TestBrowser(server.baseUrl), new TestBrowser(server.baseUrl)];
  const [own, foreign] = [await question(mine), await question(theirs)];
  const token = /name="form_token" value="([^"]+)"/.exec(foreign.text)?.[1] ?? '';
  const page = await mine.submit(own, { action: 'create', form_token: token });
  assert.equal(page.response.status, 403);
});

test('wrong passwords count towards the limit of the account', async () => {
  const local = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  let page = await signInAt(browser, login, 'one', one, { sub: newId() });
  for (let guess = 0; guess < 11; guess += 1) {
    page = await browser.submit(
      page,
      { action: 'connect', email: local.email, password: 'wrong password' },
      1,
    );
  }
  assert.equal(page.response.status, 429);
  assert.ok(page.response.headers.get('retry-after'));
});

test('sign-ins are limited for each client address and each authorization request', async (t) => {
  const browser = new TestBrowser(server.baseUrl);
  const login = await openLoginPage(server, browser, app);
  const statuses: number[] = [];
  for (let press = 0; press < 21; press += 1) {
    statuses.push((await pressButton(browser, login, 'one')).response.status);
  }
  assert.deepEqual([statuses.at(19), statuses.at(20)], [303, 429]);
  const limited = await startServerWithProviders(t, [declare('one', one)], 'open', {
    NUNCIO_RATE_LIMIT: '3',
  });
  const client = await createTestClient(limited);
  const other = new TestBrowser(limited.baseUrl);
  const page = await openLoginPage(limited, other, client);
  const codes: number[] = [];
  for (let press = 0; press < 4; press += 1)
    codes.push((await pressButton(other, page, 'one')).response.status);
  assert.deepEqual([codes.at(0), codes.at(-1)], [303, 429]);
});

test('a faulty provider shows an error page, and the user can sign in with a password', async (t) => {
  const discovery = '/.well-known/openid-configuration';
  type Override = Parameters<typeof one.overrides.set>[1];
  const json = (body: string, status = 200): Override => {
    return (_request, response) =>
      response.writeHead(status, { 'content-type': 'application/json' }).end(body);
  };
  const faults: Record<string, (issuer: string) => Override> = {
    closed: () => (request) => request.socket.destroy(),
    failing: () => json('<html>secret stack</html>', 500),
    redirect: () => (_request, response) =>
      response.writeHead(302, { location: `${one.issuer}${discovery}` }).end(),
    unreadable: () => json('{'),
    another: () => json(JSON.stringify({ issuer: one.issuer })),
    script: (issuer) => json(JSON.stringify({ issuer, authorization_endpoint: 'javascript:alert(1)' })),
    large: () => json(`"${'x'.repeat(100_000)}"`),
  };
  const declared = [];
  for (const [id, fault] of Object.entries(faults)) {
    const provider = await startFakeProvider(t);
    provider.overrides.set(discovery, fault(provider.issuer));
    declared.push(declare(id, provider));
  }
  const own = await startServerWithProviders(t, declared);
  const client = await createTestClient(own);
  const browser = new TestBrowser(own.baseUrl);
  let login = await openLoginPage(own, browser, client);
  for (const id of Object.keys(faults)) {
    const page = await pressButton(browser, login, id);
    assertRefused(page, /cannot be reached at the moment/, 503);
    assert.doesNotMatch(page.text, /secret stack|ECONN|javascript/, id);
    const back = /href="(\/interaction\/[^"]+)"/.exec(page.text)?.[1];
    login = await browser.open(`${own.baseUrl}${back}`);
  }
  const { email, password } = await createTestAccount(own);
  const signedIn = await browser.submit(login, { email, password, action: 'login' }, 1);
  assert.match(signedIn.text, /Connect Test App/);
});

test('discovery and token requests fail when the provider does not respond in time', async (t) => {
  const provider = await startFakeProvider(t);
  const own = await startServerWithProviders(t, [declare('own', provider)]);
  const client = await createTestClient(own);
  const browser = new TestBrowser(own.baseUrl);
  const login = await openLoginPage(own, browser, client);
  const sent = await pressButton(browser, login, 'own');
  const asked = Promise.withResolvers<void>();
  // Sends the response byte by byte and never finishes it.
  provider.overrides.set('/token', (_request, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const timer = setInterval(() => response.write(' '), 100);
    void once(response, 'close').then(() => clearInterval(timer));
    asked.resolve();
  });
  const page = await browser.open(callbackOf(sent.leftTo as URL, { iss: provider.issuer }));
  await asked.promise;
  assertRefused(page, /cannot be reached at the moment/, 503);
});

test('cached metadata is used during an outage, and the provider is used again after it', async (t) => {
  const provider = await startFakeProvider(t);
  const own = await startServerWithProviders(t, [declare('own', provider)]);
  const client = await createTestClient(own);
  const browser = new TestBrowser(own.baseUrl);
  const login = await openLoginPage(own, browser, client);
  const discovery = '/.well-known/openid-configuration';
  provider.overrides.set(discovery, (request) => request.socket.destroy());
  assert.equal((await pressButton(browser, login, 'own')).response.status, 503);
  provider.overrides.delete(discovery);
  let status = 503;
  while (status === 503) {
    await new Promise((resolve) => setTimeout(resolve, 500));
    ({ status } = (await pressButton(browser, login, 'own')).response);
  }
  assert.equal(status, 303);
  const reads = provider.requests.get(discovery);
  provider.overrides.set(discovery, (request) => request.socket.destroy());
  assert.equal((await pressButton(browser, login, 'own')).response.status, 303);
  assert.equal(provider.requests.get(discovery), reads, 'the cached metadata is used');
});

test('a rejected code shows a page without the provider’s response', async () => {
  const begun = await begin();
  one.overrides.set('/token', (_request, response) =>
    response
      .writeHead(400, { 'content-type': 'application/json' })
      .end(JSON.stringify({ error: 'invalid_grant', error_description: '<script>' })),
  );
  const page = await begun.browser.open(callback(begun));
  one.overrides.delete('/token');
  assertRefused(page, /refused the sign-in/);
  assert.doesNotMatch(page.text, /invalid_grant|<script>/);
});

test('the database stores no secret of a sign-in', async () => {
  const begun = await begin();
  const state = begun.authorize.searchParams.get('state') ?? '';
  const nonce = begun.authorize.searchParams.get('nonce') ?? '';
  const secret = begun.browser.cookies.find(({ name }) => name.includes('upstream'))?.value ?? '';
  const { rows } = await sql<{ row: string }>`select l::text as row from upstream_logins l`.execute(db);
  const text = rows.map(({ row }) => row).join('\n');
  for (const value of [state, nonce, secret]) {
    assert.ok(value.length === 43);
    assert.ok(!text.includes(value));
    assert.ok(!text.includes(Buffer.from(value).toString('hex')));
  }
});

test('sign-ins that wait for a provider that hangs keep no places from others', async (t) => {
  // One network gets three of the places of each class.
  const limits = { NUNCIO_CONCURRENT_REQUESTS: '8' };
  const crowded = await startServerWithProviders(t, [declare('one', one)], 'open', limits);
  const reader = await createTestClient(crowded);
  const open: ServerResponse[] = [];
  one.overrides.set('/token', (_request, response) => open.push(response));
  t.after(() => one.overrides.delete('/token'));
  const returning: Promise<Page>[] = [];
  for (let count = 1; count <= 3; count += 1) {
    const browser = new TestBrowser(crowded.baseUrl);
    const { leftTo } = await pressButton(browser, await openLoginPage(crowded, browser, reader), 'one');
    returning.push(browser.open(callbackOf(leftTo as URL, { iss: one.issuer })));
    await until(
      async () => open.length,
      (length) => length === count,
    );
  }
  assert.equal((await fetch(`${crowded.baseUrl}/account`)).status, 200);
  assert.equal((await fetch(`${crowded.baseUrl}/nothing`)).status, 404);
  assert.ok(
    open.every(({ destroyed }) => !destroyed),
    'others are served meanwhile',
  );
  for (const response of open) response.destroy();
  await Promise.all(returning);
});

test('codes of one network that a provider is slow to refuse hold up no sign-in of another', async (t) => {
  const behindProxy = { NUNCIO_TRUST_PROXY: '127.0.0.1' };
  const flooded = await startServerWithProviders(t, [declare('one', one)], 'open', behindProxy);
  const reader = await createTestClient(flooded);
  const open: ServerResponse[] = [];
  one.overrides.set('/token', (_request, response) => open.push(response));
  t.after(() => one.overrides.delete('/token'));
  const from = (network: string) => ({ headers: { 'x-forwarded-for': network } });
  const press = async () => {
    const browser = new TestBrowser(flooded.baseUrl);
    const { leftTo } = await pressButton(browser, await openLoginPage(flooded, browser, reader), 'one');
    return { browser, authorize: leftTo as URL };
  };
  const answer = ({ browser, authorize }: Awaited<ReturnType<typeof press>>, network: string) =>
    browser.request(callbackOf(authorize, { iss: one.issuer }), from(network));
  const begun = await Promise.all(Array.from({ length: 30 }, press));
  const returning = begun.map((each) => answer(each, '192.0.2.1'));
  await until(
    async () => open.length,
    (length) => length === 7,
  );
  one.overrides.delete('/token');
  const other = await press();
  one.idToken = () => one.sign({ nonce: other.authorize.searchParams.get('nonce'), sub: newId() });
  assert.equal((await answer(other, '192.0.2.2')).status, 303);
  assert.equal(open.length, 7);
  for (const response of open) response.destroy();
  for (const response of await Promise.all(returning)) await response.text();
});
