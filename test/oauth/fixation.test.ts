/**
 * Interactions planted in another browser. Each test has two cookie jars, the attacker's and the victim's. A
 * sibling host can set cookies without the prefix `__Host-` in the victim's browser, and over http any port
 * can.
 */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
  type TestAccount,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const victim = await createTestAccount(server);
const attacker = await createTestAccount(server);
const client = await createTestClient(server);

function ask(parameters: Record<string, string> = {}): string {
  return authorizationUrl(server, client, {
    scope: 'read:posts',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
}

/** The cookies that a sibling host can set: all without the prefix `__Host-`. */
function plant(from: TestBrowser, into: TestBrowser, prefix: string): void {
  const plantable = from.cookies.filter(({ name }) => name.startsWith(prefix) && !name.startsWith('__Host-'));
  assert.ok(plantable.length > 0, `no cookie ${prefix}`);
  for (const { name, value, path } of plantable) into.setCookie(name, value, path);
}

function logIn(browser: TestBrowser, page: Page, account: TestAccount): Promise<Page> {
  return browser.submit(page, { email: account.email, password: account.password, action: 'login' });
}

/** Submits a form without following the redirect. */
async function answer(browser: TestBrowser, page: Page, values: Record<string, string>): Promise<URL> {
  const body = new URLSearchParams({ ...formsOf(page.text)[0]?.fields, ...values });
  const response = await browser.request(page.url, { method: 'POST', body });
  assert.equal(response.status, 303, await response.text());
  return new URL(response.headers.get('location') ?? '', page.url);
}

function credentials({ email, password }: TestAccount): Record<string, string> {
  return { email, password, action: 'login' };
}

async function accountOf(browser: TestBrowser): Promise<string | undefined> {
  const { text } = await browser.open(`${server.baseUrl}/account`);
  return [victim, attacker].find(({ email }) => text.includes(email))?.email;
}

/** Asserts that the response has neither a session nor a code. */
async function assertNothing(browser: TestBrowser, resumed: Page, before?: string): Promise<void> {
  assert.equal(resumed.response.status, 400);
  assert.equal(resumed.leftTo, null);
  assert.doesNotMatch(resumed.text, new RegExp(victim.email));
  assert.equal(await accountOf(browser), before);
}

test('attack: the attacker cannot resume an interaction planted before the victim signed in', async () => {
  const attackers = new TestBrowser(server.baseUrl);
  const victims = new TestBrowser(server.baseUrl);
  const login = await attackers.open(ask());
  plant(attackers, victims, 'nuncio_interaction');
  const resume = await answer(victims, await victims.open(login.url), credentials(victim));
  await assertNothing(attackers, await attackers.open(resume.href));
  // Over http the attacker can set a cookie of any name, but does not know the value.
  const own = victims.cookies.find(({ name }) => name.startsWith('nuncio_result_'));
  assert.ok(own);
  attackers.setCookie(own.name, 'a'.repeat(43));
  await assertNothing(attackers, await attackers.open(resume.href));
  // The rejected attempt consumed nothing: the browser with the cookie can continue.
  plant(attackers, victims, 'nuncio_resume');
  assert.match((await victims.open(resume.href)).text, /value="allow"/);
});

test('attack: a consent planted in the victim’s browser gives the attacker neither session nor code', async () => {
  const attackers = new TestBrowser(server.baseUrl);
  const victims = new TestBrowser(server.baseUrl);
  await logIn(victims, await victims.open(ask()), victim);
  const consent = await logIn(attackers, await attackers.open(ask()), attacker);
  assert.match(consent.text, /value="allow"/);
  plant(attackers, victims, 'nuncio_interaction');
  const planted = await victims.open(consent.url);
  assert.match(planted.text, new RegExp(attacker.email));
  const allowed = await answer(victims, planted, { action: 'allow' });
  await assertNothing(attackers, await attackers.open(allowed.href), attacker.email);
  // The victim selects "Not you?" and signs in.
  const login = await victims.submit(planted, { action: 'switch' }, 1);
  const switched = await answer(victims, login, credentials(victim));
  await assertNothing(attackers, await attackers.open(switched.href), attacker.email);
});

test('attack: a planted interaction of the device page connects no device of the attacker', async () => {
  const device = await createTestClient(server, {
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType],
  });
  const { body } = await postForm(server, '/oauth/device', device, { scope: 'read:posts' });
  const attackers = new TestBrowser(server.baseUrl);
  const victims = new TestBrowser(server.baseUrl);
  const input = await attackers.open(`${server.baseUrl}/device`);
  const confirmation = await attackers.submit(input, { user_code: String(body.user_code) });
  const login = await attackers.submit(confirmation, {});
  plant(attackers, victims, 'nuncio_interaction');
  const resume = await answer(victims, await victims.open(login.url), credentials(victim));
  assert.match(resume.pathname, /^\/device\//);
  const resumed = await attackers.open(resume.href);
  assert.doesNotMatch(resumed.text, /value="allow"/);
  assert.doesNotMatch(resumed.text, new RegExp(victim.email));
  assert.equal(await accountOf(attackers), undefined);
  const poll = { grant_type: deviceCodeGrantType, device_code: String(body.device_code) };
  const { status } = await postForm(server, '/oauth/token', device, poll);
  assert.equal(status, 400);
});

test('attack: the attacker’s planted login does not sign the victim in as the attacker', async () => {
  const attackers = new TestBrowser(server.baseUrl);
  const victims = new TestBrowser(server.baseUrl);
  const login = await attackers.open(ask());
  const resume = await answer(attackers, login, credentials(attacker));
  plant(attackers, victims, 'nuncio_resume');
  plant(attackers, victims, 'nuncio_interaction');
  await assertNothing(victims, await victims.open(resume.href));
});

test('attack: a sibling host’s form with planted cookies is refused', async () => {
  const attackers = new TestBrowser(server.baseUrl);
  const victims = new TestBrowser(server.baseUrl);
  const login = await attackers.open(ask());
  plant(attackers, victims, 'nuncio_interaction');
  const body = new URLSearchParams({ ...formsOf(login.text)[0]?.fields, ...credentials(attacker) });
  for (const site of ['same-site', 'cross-site']) {
    const headers = { origin: 'null', 'sec-fetch-site': site };
    assert.equal((await victims.request(login.url, { method: 'POST', body, headers })).status, 403, site);
  }
  const headers = { origin: 'null', 'sec-fetch-site': 'same-origin' };
  assert.equal((await attackers.request(login.url, { method: 'POST', body, headers })).status, 303);
});

test('a form sent twice and two concurrent requests continue only in the browser that sent them', async () => {
  const browser = new TestBrowser(server.baseUrl);
  const [one, two] = [await browser.open(ask()), await browser.open(ask())];
  const [first, second] = [
    await answer(browser, one, credentials(victim)),
    await answer(browser, two, credentials(victim)),
  ];
  const consent = await browser.open(first.href);
  assert.match(consent.text, /value="allow"/);
  assert.match((await browser.open(second.href)).text, /value="allow"/);
  await Promise.all([
    answer(browser, consent, { action: 'allow' }),
    answer(browser, consent, { action: 'allow' }),
  ]);
  const resume = await answer(browser, consent, { action: 'allow' });
  const { leftTo } = await browser.open(resume.href);
  assert.ok(leftTo?.searchParams.get('code'));
  // Used cookies are deleted; cookies of replaced results expire.
  const left = browser.cookies.filter(({ name }) => name.startsWith('nuncio_result_'));
  assert.equal(left.length, 2);
});

test('under https the interaction cookie is required and bound to this host by its name', async (t: TestContext) => {
  const secure = await startTestServer(t, { NUNCIO_BASE_URL: 'https://auth.example' });
  const local = `http://127.0.0.1:${secure.config.port}`;
  const account = await createTestAccount(secure);
  const app = await createTestClient(secure);
  const browser = new TestBrowser(local);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const login = await browser.open(
    authorizationUrl({ baseUrl: local }, app, { scope: 'read:posts', ...pkce }),
  );
  const body = new URLSearchParams({ ...formsOf(login.text)[0]?.fields, ...credentials(account) });
  const response = await browser.request(login.url, { method: 'POST', body });
  const cookie = response.headers.getSetCookie().find((line) => line.includes('nuncio_result_'));
  assert.match(
    cookie ?? '',
    /^__Host-nuncio_result_[\w-]{16}=[\w-]{43}; Path=\/; HttpOnly; SameSite=Lax; Max-Age=600; Secure$/,
  );
  const { pathname } = new URL(response.headers.get('location') ?? '');
  // A sibling host sets every cookie that it can, which excludes the prefix `__Host-`.
  const victims = new TestBrowser(local);
  for (const name of ['__Secure-nuncio_resume', '__Secure-nuncio_interaction']) plant(browser, victims, name);
  const value = /=([\w-]{43});/.exec(cookie ?? '')?.[1] ?? '';
  const bare = (cookie ?? '').split('=')[0]?.replace('__Host-', '') ?? '';
  victims.setCookie(bare, value);
  assert.equal((await victims.request(local + pathname)).status, 400);
  assert.equal((await browser.request(local + pathname)).status, 303);
});
