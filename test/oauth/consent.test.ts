/** What the consent page shows beside scopes: the requested APIs (RFC 8707) and the app's links. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { createPlatform } from '../../src/platform.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const notes = 'https://notes.example';
const plain = 'https://plain.example/api?v=1';
const resources = [{ url: notes, name: 'Notes & more' }, plain];
const server = await startTestServer({ after }, {}, 'dev', createPlatform({ oauth: { resources } }));
const account = await createTestAccount(server);
const scopes = ['read:profile'];

function urlOf(app: { id: string; redirectUri: string }, apis: string[], more: Record<string, string> = {}) {
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const url = new URL(authorizationUrl(server, app, { scope: scopes.join(' '), ...pkce, ...more }));
  for (const api of apis) url.searchParams.append('resource', api);
  return url.href;
}

/** The APIs that a consent page names. */
function apisOf({ text }: Page): string[] {
  assert.match(text, /value="allow"/);
  const list =
    /(?:this API|these APIs):<\/p>\s*<ul class="scopes apis">([\s\S]*?)<\/ul>/.exec(text)?.[1] ?? '';
  return [...list.matchAll(/<li>([\s\S]*?)<\/li>/g)].map(([, item = '']) => item.replaceAll(/<[^>]+>/g, ''));
}

test('oauth 58: consent shows the APIs’ declared names, or their URLs', async () => {
  const app = await createTestClient(server);
  const { browser } = await authorize(server, { account, client: await createTestClient(server), scopes });
  const cases: [apis: string[], names: string[]][] = [
    [[], [`This server ${server.baseUrl}`]],
    [[notes], [`Notes &amp; more ${notes}`]],
    [[plain], [plain]],
    [
      [notes, plain, server.baseUrl],
      [`Notes &amp; more ${notes}`, plain, `This server ${server.baseUrl}`],
    ],
  ];
  for (const [apis, names] of cases) assert.deepEqual(apisOf(await browser.open(urlOf(app, apis))), names);
});

test('oauth 58: a device’s consent names the API', async () => {
  const grantTypes = [deviceCodeGrantType];
  const device = await createTestClient(server, { authMethod: 'none', redirectUris: [], grantTypes });
  const form = { scope: scopes.join(' '), resource: notes };
  const { body } = await postForm(server, '/oauth/device', device, form);
  const browser = new TestBrowser(server.baseUrl);
  const input = await browser.open(`${server.baseUrl}/device`);
  const confirmation = await browser.submit(input, { user_code: String(body.user_code) });
  const { email, password } = account;
  const login = await browser.submit(confirmation, {});
  assert.deepEqual(apisOf(await browser.submit(login, { email, password, action: 'login' })), [
    `Notes &amp; more ${notes}`,
  ]);
});

test('oauth 58: a request that names another API asks for consent again, until it is confirmed', async () => {
  const app = await createTestClient(server);
  const browser = new TestBrowser(server.baseUrl);
  const confirm = async (apis: string[]) => passPages(browser, await browser.open(urlOf(app, apis)), account);
  const isAsked = async (apis: string[]) => {
    const { leftTo } = await browser.open(urlOf(app, apis, { prompt: 'none' }));
    const error = leftTo?.searchParams.get('error') ?? null;
    assert.ok(error === 'consent_required' || leftTo?.searchParams.has('code'), String(error));
    return error !== null;
  };
  await confirm([]);
  assert.deepEqual([await isAsked([]), await isAsked([server.baseUrl])], [false, false]);
  assert.deepEqual([await isAsked([notes]), await isAsked([notes, server.baseUrl])], [true, true]);
  assert.deepEqual(apisOf(await browser.open(urlOf(app, [notes]))), [`Notes &amp; more ${notes}`]);
  await confirm([notes]);
  assert.deepEqual([await isAsked([notes]), await isAsked([notes, server.baseUrl])], [false, false]);
  assert.equal(await isAsked([plain]), true);
  // An older grant without APIs is for this server's own API.
  await sql`update grants set details = details - 'resources' where client_id = ${app.id}`.execute(server.db);
  assert.deepEqual([await isAsked([]), await isAsked([notes])], [false, true]);
});

test('oauth 58: scopes confirmed for one API are not confirmed for another', async () => {
  const app = await createTestClient(server, { scopes: ['openid', 'read:profile'] });
  const browser = new TestBrowser(server.baseUrl);
  for (const [scope, api] of [
    ['openid read:profile', notes],
    ['openid', plain],
  ] as const) {
    await passPages(browser, await browser.open(urlOf(app, [api], { scope })), account);
  }
  const asked = await browser.open(urlOf(app, [plain], { scope: 'openid read:profile' }));
  assert.deepEqual(apisOf(asked), [plain]);
});

test('an API’s name is refused when it cannot be displayed', () => {
  for (const name of ['', ' ', 'a\u202eb', 'a\nb', 'x'.repeat(101), 7]) {
    const oauth = { resources: [{ url: notes, name: name as string }] };
    assert.throws(() => createPlatform({ oauth }), /oauth\.resources/);
  }
});

test('oauth 89: consent links to the app’s policy and terms, and shows no image', async () => {
  const metadata = {
    policy_uri: 'https://app.example/privacy?a="b',
    tos_uri: 'https://legal.example/terms',
    logo_uri: 'https://app.example/logo.png',
  };
  const registered = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: ['https://app.example/cb'], client_name: 'Paper', ...metadata }),
  });
  assert.equal(registered.status, 201);
  const answer = (await registered.json()) as Record<string, string>;
  // RFC 7591 section 3.2.1: the response contains the stored metadata.
  assert.deepEqual(
    [answer.policy_uri, answer.tos_uri, answer.logo_uri],
    [metadata.policy_uri, metadata.tos_uri, undefined],
  );
  const { browser } = await authorize(server, { account, client: await createTestClient(server), scopes });
  const page = await browser.open(
    urlOf({ id: String(answer.client_id), redirectUri: 'https://app.example/cb' }, []),
  );
  const links = [...page.text.matchAll(/<a href="(https:[^"]+)" target="_blank" rel="([^"]+)">([^<]+)</g)];
  assert.deepEqual(
    links.map(([, href, rel, text]) => [href, rel, text]),
    [
      ['https://app.example/privacy?a=%22b', 'noopener noreferrer', 'Privacy policy'],
      ['https://legal.example/terms', 'noopener noreferrer', 'Terms of service'],
    ],
  );
  assert.match(page.text, /\(<span class="host">legal\.example<\/span>\)/);
  assert.doesNotMatch(page.text, /<img|logo/);
  assert.match(page.response.headers.get('content-security-policy') ?? '', /img-src 'self' data:/);
  // An unsafe URL is not a link.
  for (const uri of ['javascript:alert(1)', 'http://app.example/', 'data:text/html,x', 7]) {
    const app = await createTestClient(server, { metadata: { policy_uri: uri } });
    assert.doesNotMatch((await browser.open(urlOf(app, []))).text, /Privacy policy/, String(uri));
  }
});

test('attack: one account’s consent does not count for another account that signs in later', async () => {
  const other = await createTestAccount(server);
  const app = await createTestClient(server);
  const signedIn = await authorize(server, { account, client: await createTestClient(server), scopes });
  const { browser } = signedIn;
  const consent = await browser.open(urlOf(app, [], { max_age: '600', scope: 'openid read:profile' }));
  assert.match(consent.text, /value="allow"/);
  // The sign-in becomes too old for the app while the consent page is open, so the user must sign in again.
  await sql`
    update login_sessions set payload = jsonb_set(payload, '{loginTs}', to_jsonb((payload ->> 'loginTs')::int - 3600))
    where account_id = ${account.id}`.execute(server.db);
  const login = await browser.submit(consent, { action: 'allow' });
  assert.match(login.text, /name="password"/);
  const asked = await browser.submit(login, {
    email: other.email,
    password: other.password,
    action: 'login',
  });
  assert.equal(asked.leftTo, null);
  const isForwarded = formsOf(asked.text)[0]?.fields.logout === 'yes';
  const page = isForwarded ? await browser.submit(asked, {}) : asked;
  assert.equal(page.leftTo, null, String(page.leftTo));
  assert.match(page.text, /value="allow"/);
  assert.match(page.text, new RegExp(other.email));
  const { rows } = await sql`select from grants where account_id = ${other.id}`.execute(server.db);
  assert.equal(rows.length, 0);
});
