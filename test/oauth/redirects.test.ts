/**
 * Redirects to apps: always 302, and never to a self-registered app before the user acts (RFC 9700 section
 * 4.11.2).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { loadPlatform } from '../../src/platform.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const platform = await loadPlatform(null);
const server = await startTestServer({ after }, {}, 'dev', {
  ...platform,
  oauth: { ...platform.oauth, implicit: true },
});
const account = await createTestAccount(server);
const client = await createTestClient(server);
const scopes = ['openid', 'read:posts'];
const signedOutUri = 'https://app.example/signed-out';

type Parameters = Record<string, string | undefined>;

function parametersOf(parameters: Parameters = {}): Parameters {
  const { challenge } = createPkce();
  return { scope: scopes.join(' '), code_challenge: challenge, code_challenge_method: 'S256', ...parameters };
}

function ask(parameters: Parameters = {}, app: TestClient = client): string {
  return authorizationUrl(server, app, parametersOf(parameters));
}

async function push(parameters: Parameters = {}, app: TestClient = client): Promise<string> {
  const all = {
    client_id: app.id,
    redirect_uri: app.redirectUri,
    response_type: 'code',
    ...parametersOf(parameters),
  };
  const { body } = await postForm(server, '/oauth/par', app, JSON.parse(JSON.stringify(all)));
  const query = new URLSearchParams({ client_id: app.id, request_uri: String(body.request_uri) });
  return `${server.baseUrl}/oauth/authorize?${query}`;
}

/** An app that the operator did not register. */
function selfMade(): Promise<TestClient> {
  return createTestClient(server, {
    origin: 'registration',
    name: 'Free Prizes',
    metadata: { post_logout_redirect_uris: [signedOutUri] },
  });
}

function assertLeft(page: Page, what: string): void {
  assert.equal(page.response.status, 302, what);
  assert.ok(
    /^https:\/\/app(-\d+)?\.example\/callback[?#]/.test(page.leftTo?.href ?? ''),
    `${what}: ${page.leftTo?.href}`,
  );
  assert.equal(page.response.headers.get('cache-control'), 'no-store', what);
  assert.equal(page.response.headers.get('referrer-policy'), 'no-referrer', what);
}

async function logIn(browser: TestBrowser, page: Page): Promise<Page> {
  return browser.submit(page, { email: account.email, password: account.password, action: 'login' });
}

test('oauth 27: every redirect to a redirect_uri is 302 with no-store and no-referrer', async () => {
  for (const [how, start] of Object.entries({ directly: ask, pushed: push })) {
    for (const mode of ['query', 'fragment']) {
      const parameters = { response_mode: mode, state: 's' };
      const app = await createTestClient(server);
      const url = (more: Parameters = {}) => Promise.resolve(start({ ...parameters, ...more }, app));
      const what = (path: string) => `${path}, ${how}, ${mode}`;
      const browser = new TestBrowser(server.baseUrl);
      // Signed out, with prompt=none.
      assertLeft(await browser.open(await url({ prompt: 'none' })), what('login_required'));
      // After login, and after consent.
      const consent = await logIn(browser, await browser.open(await url()));
      assert.match(consent.text, /value="allow"/);
      assertLeft(await browser.submit(consent, { action: 'allow' }), what('after consent'));
      // With an earlier consent: no page is shown or requested.
      assertLeft(await browser.open(await url()), what('without a page'));
      assertLeft(await browser.open(await url({ prompt: 'none' })), what('prompt=none'));
      // After login only.
      const login = await browser.open(await url({ prompt: 'login' }));
      assertLeft(await logIn(browser, login), what('after login'));
      // The user cancels the login, and denies the consent.
      const again = await browser.open(await url({ prompt: 'login' }));
      assertLeft(await browser.submit(again, { action: 'deny' }, 1), what('cancelled'));
      const asked = await browser.open(await url({ prompt: 'consent' }));
      assertLeft(await browser.submit(asked, { action: 'deny' }), what('denied'));
      if (how === 'directly')
        assertLeft(await browser.open(await url({ scope: 'write:events' })), what('invalid_scope'));
    }
  }
  const used = await push();
  const browser = new TestBrowser(server.baseUrl);
  await passPages(browser, await browser.open(used), account);
  // A used pushed request has no redirect URI any more.
  assert.equal((await browser.open(used)).response.status, 400);
  const implicit = await createTestClient(server, { grantTypes: ['implicit'] });
  const token = {
    response_type: 'id_token token',
    nonce: 'n',
    code_challenge: undefined,
    code_challenge_method: undefined,
  };
  assertLeft(await browser.open(ask({ ...token, prompt: 'none' }, implicit)), 'implicit error');
  assertLeft(await browser.submit(await browser.open(ask(token, implicit)), { action: 'allow' }), 'implicit');
});

/** The page that replaces a redirect. */
function assertHeld(page: Page, what: string): void {
  assert.equal(page.leftTo, null, what);
  assert.equal(page.response.headers.get('location'), null, what);
  assert.match(page.response.headers.get('content-type') ?? '', /^text\/html/, what);
  assert.match(page.response.headers.get('content-security-policy') ?? '', /script-src;/, what);
  assert.doesNotMatch(page.text, /<script|http-equiv/, what);
  assert.match(page.text, /Continue to app(-\d+)?\.example</, what);
}

function linkOf(page: Page): URL {
  return new URL((/<a class="button" href="([^"]+)"/.exec(page.text)?.[1] ?? '').replaceAll('&amp;', '&'));
}

const unprompted: Record<string, Parameters> = {
  invalid_scope: { scope: 'write:events' },
  login_required: { prompt: 'none' },
  invalid_request: { max_age: 'x' },
  unsupported_response_type: { response_type: 'no-such' },
  invalid_target: { resource: 'https://no.example' },
};

test('attack: a self-registered app redirects nobody before they act', async () => {
  const app = await selfMade();
  for (const [error, parameters] of Object.entries(unprompted)) {
    for (const response_mode of ['query', 'fragment', 'form_post']) {
      const what = `${error}, ${response_mode}`;
      const browser = new TestBrowser(server.baseUrl);
      const page = await browser.open(ask({ ...parameters, response_mode, state: 's' }, app));
      assertHeld(page, what);
      assert.equal(page.response.status, 400, what);
      const [form] = formsOf(page.text);
      const url = form === undefined ? linkOf(page) : null;
      const answer =
        form?.fields ??
        Object.fromEntries(
          response_mode === 'query' ? (url as URL).searchParams : new URLSearchParams(url?.hash.slice(1)),
        );
      assert.ok((form?.action ?? url?.href ?? '').startsWith(app.redirectUri), what);
      assert.deepEqual([answer.error, answer.state, answer.iss], [error, 's', server.baseUrl], what);
    }
  }
  const pushed = await new TestBrowser(server.baseUrl).open(await push({ prompt: 'none' }, app));
  assertHeld(pushed, 'pushed');
});

test('attack: a self-registered app cannot redirect by an expired authorization’s address', async () => {
  const app = await selfMade();
  const query = new URLSearchParams({ client_id: app.id, redirect_uri: app.redirectUri, state: 's' });
  const browser = new TestBrowser(server.baseUrl);
  assertHeld(await browser.open(`${server.baseUrl}/oauth/authorize/none?${query}`), 'no interaction');
  const login = await browser.open(ask({}, app));
  const resume = `${server.baseUrl}/oauth/authorize/${login.url.split('/').pop()}?${query}`;
  const page = await browser.open(resume);
  assert.equal(page.response.status, 400);
  assertHeld(page, 'not answered');
});

test('a self-registered app gets its response by redirect once the user acts', async () => {
  const app = await selfMade();
  const browser = new TestBrowser(server.baseUrl);
  const refused = await browser.submit(await browser.open(ask({}, app)), { action: 'deny' }, 1);
  assertLeft(refused, 'cancelled');
  assert.equal(refused.leftTo?.searchParams.get('error'), 'access_denied');
  const consent = await logIn(browser, await browser.open(ask({}, app)));
  const allowed = await browser.submit(consent, { action: 'allow' });
  assertLeft(allowed, 'allowed');
  assert.ok(allowed.leftTo?.searchParams.get('code'));
  // Signed in with an earlier consent.
  assertLeft(await browser.open(ask({}, app)), 'confirmed');
  assertLeft(await browser.open(ask({ prompt: 'none' }, app)), 'confirmed, prompt=none');
  // The next request is separate: actions for this one do not count.
  assertHeld(await browser.open(ask({ scope: 'write:events' }, app)), 'another request');
});

test('attack: /oauth/logout does not redirect a signed-out browser to a self-registered app', async () => {
  const app = await selfMade();
  const url = (of: TestClient) =>
    `${server.baseUrl}/oauth/logout?${new URLSearchParams({
      client_id: of.id,
      post_logout_redirect_uri: signedOutUri,
      state: 'a b',
    })}`;
  const page = await new TestBrowser(server.baseUrl).open(url(app));
  assertHeld(page, 'logout');
  assert.equal(linkOf(page).href, `${signedOutUri}?state=a+b`);
  // Signed in: the user submits the form and is redirected.
  const { browser } = await authorize(server, { account, client: app, scopes });
  const left = await browser.submit(await browser.open(url(app)), { logout: 'yes' });
  assert.equal(left.leftTo?.href, `${signedOutUri}?state=a+b`);
  // For an app of the operator, the engine's behavior is unchanged.
  const own = await createTestClient(server, { metadata: { post_logout_redirect_uris: [signedOutUri] } });
  const form = await new TestBrowser(server.baseUrl).open(url(own));
  assert.match(form.text, /<script>/);
});

test('oauth 35: every listed response mode works for a code', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/openid-configuration`);
  const { response_modes_supported: modes } = (await response.json()) as {
    response_modes_supported: string[];
  };
  assert.deepEqual(modes, ['query', 'fragment', 'form_post']);
  const { browser } = await authorize(server, { account, client, scopes });
  for (const mode of modes) {
    const page = await browser.open(ask({ response_mode: mode }));
    const text = `${page.leftTo?.search}${page.leftTo?.hash}${page.text}`;
    assert.match(text, /code["=]/, mode);
  }
});

test('attack: a self-registered app cannot choose a port that leads to this server', async () => {
  const path = '/docs/oauth2-redirect.html';
  const { port } = server.config;
  const register = async (metadata: object) => {
    const response = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ token_endpoint_auth_method: 'none', ...metadata }),
    });
    return (await response.json()) as Record<string, string>;
  };
  for (const host of ['localhost', '127.0.0.1', '[::1]']) {
    const own = `http://${host}:${port}${path}`;
    assert.equal((await register({ redirect_uris: [own] })).error, 'invalid_redirect_uri', own);
    const both = { redirect_uris: ['https://app.example/cb'], post_logout_redirect_uris: [own] };
    assert.equal((await register(both)).error, 'invalid_client_metadata', own);
    const { client_id: id = '' } = await register({ redirect_uris: [`http://${host}${path}`] });
    const at = (redirectUri: string) =>
      new TestBrowser(server.baseUrl).open(authorizationUrl(server, { id, redirectUri }, parametersOf()));
    const refused = await at(own);
    assert.equal(refused.response.status, 400, own);
    assert.match(refused.text, /invalid_redirect_uri/);
    // Any other port can belong to the app.
    assert.match((await at(`http://${host}:${port + 1}${path}`)).text, /name="password"/);
  }
  // The operator can register an app with exactly that URI.
  const { host } = new URL(server.baseUrl);
  const exact = await createTestClient(server, { redirectUris: [`http://${host}/some/page`] });
  assert.match((await new TestBrowser(server.baseUrl).open(ask({}, exact))).text, /name="password"/);
  const loose = await createTestClient(server, { redirectUris: ['http://localhost/some/page'] });
  const redirectUri = `http://localhost:${port}/some/page`;
  const page = await new TestBrowser(server.baseUrl).open(ask({ redirect_uri: redirectUri }, loose));
  assert.match(page.text, /invalid_redirect_uri/);
});

test('attack: a state that is too long for the headers of a redirect is answered with a page', async () => {
  // It is three times as long in a redirect.
  for (const [length, status] of [
    [1_000, 302],
    [8_000, 400],
  ] as const) {
    const asked = await push({ prompt: 'none', state: '!'.repeat(length) });
    const response = await fetch(asked, { redirect: 'manual' });
    assert.equal(response.status, status);
    assert.equal(response.headers.has('location'), status === 302);
    if (status === 400) assert.match(await response.text(), /too long for a redirect/);
  }
});

test('attack: a form whose bytes are longer as a URL is not redirected', async () => {
  const post = (byte: number) =>
    fetch(`${server.baseUrl}/oauth/authorize`, {
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: Buffer.concat([Buffer.from('state='), Buffer.alloc(8_000, byte)]),
      redirect: 'manual',
    });
  const short = await post(0x61);
  assert.equal(short.status, 303);
  assert.equal(short.headers.get('location')?.length, '/oauth/authorize?state='.length + 8_000);
  // No UTF-8: each byte becomes a character of nine.
  const long = await post(0xff);
  assert.equal(long.status, 400);
  assert.equal(long.headers.get('location'), null);
  assert.match(await long.text(), /too long for a redirect/);
});
