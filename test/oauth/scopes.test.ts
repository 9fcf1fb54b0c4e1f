/**
 * Scopes at every endpoint that accepts them: what is ignored, what is refused, and the claims of `profile`
 * and `email` (OpenID Connect Core sections 3.1.2.1 and 5.4).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { clientCreate } from '../../src/commands/client_create.ts';
import { createPlatform } from '../../src/platform.ts';
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
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, {}, 'dev', createPlatform({ oauth: { password: true } }));
const account = await createTestAccount(server, { name: 'Ada Lovelace' });
const redirectUri = 'https://app.example/callback';
const allGrants = [
  'authorization_code',
  'refresh_token',
  'client_credentials',
  'password',
  deviceCodeGrantType,
];
const openid = ['openid', 'profile', 'email'];

async function userinfo(accessToken: string): Promise<Record<string, unknown>> {
  const headers = { authorization: `Bearer ${accessToken}` };
  return (await (await fetch(`${server.baseUrl}/oauth/userinfo`, { headers })).json()) as Record<
    string,
    unknown
  >;
}

function words(scope: unknown): string[] {
  return String(scope).split(' ').sort();
}

/** A client created by the command with the required options only. */
async function createdByCommand(): Promise<TestClient> {
  const lines: string[] = [];
  await clientCreate.run(
    { values: { name: 'App', 'redirect-uri': [redirectUri], json: true }, positionals: [] },
    {
      config: { ...server.config, databaseUrl: server.databaseUrl },
      print: (line) => lines.push(line),
      printError: () => {},
    },
  );
  const { client_id: id, client_secret: secret } = JSON.parse(lines.join('\n'));
  return { id, secret, redirectUri, authMethod: 'client_secret_basic' } as TestClient;
}

/** A self-registered client with the required metadata only. */
async function registered(): Promise<TestClient> {
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: [redirectUri] }),
  });
  const { client_id: id, client_secret: secret } = (await response.json()) as Record<string, string>;
  return { id, secret, redirectUri, authMethod: 'client_secret_basic' } as TestClient;
}

test('openid profile email returns name and address to clients with default settings', async () => {
  for (const client of [await createdByCommand(), await registered()]) {
    const got = await authorize(server, { account, client, scopes: openid });
    assert.deepEqual(words(got.scope), openid.toSorted());
    const claims = { sub: account.id, name: account.name, email: account.email };
    assert.deepEqual(await userinfo(got.accessToken), claims);
    const api = await fetch(`${server.baseUrl}/api`, {
      headers: { authorization: `Bearer ${got.accessToken}` },
    });
    const { scopes } = (await api.json()) as { scopes: string[] };
    assert.deepEqual(scopes.toSorted(), openid.toSorted());
    const { body } = await postForm(server, '/oauth/introspect', client, { token: got.accessToken });
    assert.deepEqual(words(body.scope), openid.toSorted());
  }
});

test('profile returns only the name, email only the address, openid neither', async () => {
  const client = await createdByCommand();
  for (const [scopes, claims] of [
    [['openid'], {}],
    [['openid', 'profile'], { name: account.name }],
    [['openid', 'email'], { email: account.email }],
  ] as const) {
    const { accessToken } = await authorize(server, { account, client, scopes });
    assert.deepEqual(await userinfo(accessToken), { sub: account.id, ...claims });
  }
});

test('an individually requested claim is returned only with one of its scopes', async () => {
  const client = await createdByCommand();
  const claims = JSON.stringify({
    id_token: { name: null, email: null },
    userinfo: { name: null, email: null },
  });
  for (const [scopes, expected] of [
    [['openid'], {}],
    [['openid', 'email'], { email: account.email }],
    [['openid', 'profile'], { name: account.name }],
    [['openid', 'read:profile'], { name: account.name, email: account.email }],
  ] as const) {
    const got = await authorize(server, { account, client, scopes, parameters: { claims } });
    assert.deepEqual(await userinfo(got.accessToken), { sub: account.id, ...expected });
    const { name, email } = decodeJwt(got.idToken ?? '');
    assert.deepEqual(JSON.parse(JSON.stringify({ name, email })), expected);
  }
});

test('a client with pairwise subjects gets the claims with its own sub', async () => {
  const client = await createTestClient(server, { scopes: openid, metadata: { subject_type: 'pairwise' } });
  const { code, verifier } = await obtainCode(server, { account, client, scopes: openid });
  const form = { grant_type: 'authorization_code', code, code_verifier: verifier };
  const { body } = await postForm(server, '/oauth/token', client, {
    ...form,
    redirect_uri: client.redirectUri,
  });
  const { sub } = decodeJwt(String(body.id_token));
  assert.notEqual(sub, account.id);
  const claims = await userinfo(String(body.access_token));
  assert.deepEqual(claims, { sub, name: account.name, email: account.email });
});

test('the consent page describes each scope and no unknown one', async () => {
  const client = await createdByCommand();
  const url = authorizationUrl(server, client, {
    scope: 'openid profile email phone <b>odd</b>',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  });
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(url);
  const credentials = { email: account.email, password: account.password, action: 'login' };
  const consent = await browser.submit(login, credentials);
  for (const text of ['know who you are', 'see your name', 'see your email address']) {
    assert.ok(consent.text.includes(text), text);
  }
  assert.doesNotMatch(consent.text, /phone|odd/);
});

test('discovery lists profile and email with their claims', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/openid-configuration`);
  const metadata = (await response.json()) as Record<string, string[]>;
  for (const scope of openid) assert.ok(metadata.scopes_supported?.includes(scope), scope);
  for (const claim of ['sub', 'name', 'email']) assert.ok(metadata.claims_supported?.includes(claim), claim);
  assert.ok(metadata.claims_supported?.includes('email_verified'));
});

/** The resulting scope at each endpoint, or the error. */
const requests: Record<string, (client: TestClient, scope: string) => Promise<string>> = {
  async authorize(client, scope) {
    const { code, redirect, verifier } = await obtainCode(server, { account, client, scopes: [scope] });
    if (code === '') return redirect.searchParams.get('error') ?? '';
    const form = { grant_type: 'authorization_code', code, code_verifier: verifier };
    return outcome(
      await postForm(server, '/oauth/token', client, { ...form, redirect_uri: client.redirectUri }),
    );
  },
  async pushed(client, scope) {
    const { verifier, challenge } = createPkce();
    const pushed = await postForm(server, '/oauth/par', client, {
      response_type: 'code',
      client_id: client.id,
      redirect_uri: client.redirectUri,
      code_challenge: challenge,
      code_challenge_method: 'S256',
      scope,
    });
    if (pushed.status !== 201) return String(pushed.body.error);
    const query = new URLSearchParams({ client_id: client.id, request_uri: String(pushed.body.request_uri) });
    const browser = new TestBrowser(server.baseUrl);
    const page = await browser.open(`${server.baseUrl}/oauth/authorize?${query}`);
    const code = (await passPages(browser, page, account)).searchParams.get('code') ?? '';
    const form = { grant_type: 'authorization_code', code, code_verifier: verifier };
    return outcome(
      await postForm(server, '/oauth/token', client, { ...form, redirect_uri: client.redirectUri }),
    );
  },
  async device(client, scope) {
    const asked = await postForm(server, '/oauth/device', client, { client_id: client.id, scope });
    if (asked.status !== 200) return String(asked.body.error);
    const browser = new TestBrowser(server.baseUrl);
    let page = await browser.open(String(asked.body.verification_uri_complete));
    const answers: Record<string, string> = { email: account.email, password: account.password };
    for (let pages = 0; pages < 5 && !page.text.includes('<h1>Connected'); pages += 1) {
      const action = /name="action" value="(login|allow)"/.exec(page.text)?.[1];
      if (!page.text.includes('<form')) break;
      page = await browser.submit(page, action === undefined ? {} : { ...answers, action });
    }
    const form = { grant_type: deviceCodeGrantType, device_code: String(asked.body.device_code) };
    return outcome(await postForm(server, '/oauth/token', client, form));
  },
};

/** Grant types without a user who signs in. */
const machineRequests: typeof requests = {
  async clientCredentials(client, scope) {
    return outcome(
      await postForm(server, '/oauth/token', client, { grant_type: 'client_credentials', scope }),
    );
  },
  async password(client, scope) {
    const form = { grant_type: 'password', username: account.email, password: account.password, scope };
    return outcome(await postForm(server, '/oauth/token', client, form));
  },
};

function outcome({ status, body }: { status: number; body: Record<string, unknown> }): string {
  return status === 200 ? words(body.scope).join(' ') : String(body.error);
}

const narrow = { grantTypes: allGrants, scopes: ['openid', 'profile', 'read:posts'] };

for (const [name, request] of Object.entries(requests)) {
  test(`unknown scopes are ignored, and the response names the granted ones (${name})`, async () => {
    for (const [scope, expected] of [
      ['openid profile phone custom:scope', 'openid profile'],
      ['read:posts write:everything', 'read:posts'],
      // A known OpenID Connect scope that the client is not registered for.
      ['openid email read:posts', 'openid read:posts'],
      // A known scope that the client is not registered for: the developer gets an error.
      ['openid write:posts', 'invalid_scope'],
      ['openid write:events', 'invalid_scope'],
      // No scope remains. The default would grant more than requested.
      ['phone', 'invalid_scope'],
      ['email', 'invalid_scope'],
      ['read:posts bad"scope', 'invalid_scope'],
    ] as const) {
      const client = await createTestClient(server, narrow);
      assert.equal(await request(client, scope), expected, scope);
    }
    const anonymous = await createTestClient(server, { ...narrow, scopes: ['read:posts'] });
    assert.equal(await request(anonymous, 'openid read:posts'), 'invalid_scope');
  });
}

for (const [name, request] of Object.entries(machineRequests)) {
  test(`OpenID Connect scopes are ignored without a sign-in (${name})`, async () => {
    const client = await createTestClient(server, narrow);
    for (const [scope, expected] of [
      ['openid profile email read:posts custom', 'read:posts'],
      ['openid profile email', 'invalid_scope'],
      ['custom', 'invalid_scope'],
      ['read:posts write:posts', 'invalid_scope'],
    ] as const) {
      assert.equal(await request(client, scope), expected, scope);
    }
  });
}

test('a refresh may repeat the authorization request’s scopes, and gets only granted ones', async () => {
  const client = await createTestClient(server, narrow);
  const asked = 'openid profile email phone read:posts';
  const got = await authorize(server, { account, client, scopes: [asked] });
  assert.deepEqual(words(got.scope), ['openid', 'profile', 'read:posts']);
  let refreshToken = got.refreshToken;
  for (const [scope, expected] of [
    [asked, 'openid profile read:posts'],
    ['read:posts custom', 'read:posts'],
    ['openid email', 'openid'],
    ['openid write:posts', 'invalid_scope'],
    ['custom', 'invalid_scope'],
    ['email', 'invalid_scope'],
    [undefined, 'openid profile read:posts'],
  ] as const) {
    const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
    const answer = await postForm(
      server,
      '/oauth/token',
      client,
      scope === undefined ? form : { ...form, scope },
    );
    assert.equal(outcome(answer), expected, String(scope));
    refreshToken = String(answer.body.refresh_token ?? refreshToken);
  }
});

test('a metadata document and a registration may name profile and email, and get only what they name', async () => {
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: [redirectUri], scope: 'openid email address' }),
  });
  const body = (await response.json()) as Record<string, string>;
  assert.equal(body.scope, 'openid email');
  const client = { id: body.client_id, secret: body.client_secret, redirectUri } as TestClient;
  const basic = { ...client, authMethod: 'client_secret_basic' } as TestClient;
  const got = await authorize(server, { account, client: basic, scopes: openid });
  assert.deepEqual(words(got.scope), ['email', 'openid']);
  assert.equal((await userinfo(got.accessToken)).name, undefined);
});
