/** Pairwise subjects (OpenID Connect Core section 8.1): a user's sub differs between hosts of clients. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { introspectionScope } from '../../src/grants/scopes.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const scopes = ['openid', 'read:posts', 'read:profile'];
const pairwise = { subject_type: 'pairwise' };

/** Runs the flow and returns the tokens and the subject identifiers that the client gets. */
async function connect(client: TestClient, as = account) {
  const { code, verifier } = await obtainCode(server, { account: as, client, scopes });
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  });
  assert.equal(status, 200, JSON.stringify(body));
  const idToken = String(body.id_token);
  const [accessToken, refreshToken] = [String(body.access_token), String(body.refresh_token)];
  return { accessToken, refreshToken, idToken, name: String(decodeJwt(idToken).sub) };
}

async function subjectAt(client: TestClient, as = account): Promise<string> {
  return (await connect(client, as)).name;
}

function clientOf(host: string): Promise<TestClient> {
  return createTestClient(server, { redirectUris: [`https://${host}/callback`], metadata: pairwise });
}

test('a user’s sub is equal for clients of one host, differs between hosts, and is no account id', async () => {
  const [one, two, other] = [
    await clientOf('a.example'),
    await clientOf('a.example'),
    await clientOf('b.example'),
  ];
  const names = await Promise.all([one, two, other].map((client) => subjectAt(client)));
  assert.equal(names[0], names[1]);
  assert.notEqual(names[0], names[2]);
  assert.ok(!names.includes(account.id));
  assert.match(names[0] ?? '', /^[\w-]{43}$/);
  assert.notEqual(await subjectAt(one, await createTestAccount(server)), names[0]);
  assert.equal(await subjectAt(await createTestClient(server)), account.id);
});

test('clients without a host of their own each get their own sub', async () => {
  for (const [one, another] of [
    ['com.example.one:/callback', 'com.example.two:/callback'],
    ['http://127.0.0.1/one', 'http://127.0.0.1/two'],
    ['http://localhost/one', 'http://localhost/two'],
  ] as const) {
    const create = (uri: string) => createTestClient(server, { redirectUris: [uri], metadata: pairwise });
    const [first, second] = [await create(one), await create(another)];
    const name = await subjectAt(first);
    assert.equal(await subjectAt(first), name);
    assert.notEqual(await subjectAt(second), name, one);
  }
});

test('attack: an app that later names another app’s host does not learn the sub there', async () => {
  const victim = await clientOf('victim.example');
  const name = await subjectAt(victim);
  const app = await createTestClient(server, {
    origin: 'registration',
    redirectUris: ['https://hostile.example/callback'],
    grantTypes: ['authorization_code', 'refresh_token'],
    scopes,
    metadata: pairwise,
  });
  const before = await connect(app);
  await sql`update clients set redirect_uris = ${victim.redirectUris} where id = ${app.id}`.execute(
    server.db,
  );
  // The node has read the change when it accepts the other host.
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const url = authorizationUrl(
    server,
    { ...app, redirectUri: victim.redirectUri },
    { scope: 'openid', ...pkce },
  );
  await until(
    () => fetch(url, { redirect: 'manual' }),
    (response) => response.status === 303,
  );
  const form = { grant_type: 'refresh_token', refresh_token: before.refreshToken };
  const { status, body } = await postForm(server, '/oauth/token', app, form);
  assert.equal(status, 200, JSON.stringify(body));
  const userinfo = await fetch(`${server.baseUrl}/oauth/userinfo`, {
    headers: { authorization: `Bearer ${body.access_token}` },
  });
  const learned = [decodeJwt(String(body.id_token)).sub, ((await userinfo.json()) as { sub: string }).sub];
  assert.ok(!learned.includes(name));
  assert.deepEqual(learned, [before.name, before.name]);
});

test('oauth 91: userinfo and introspection by the client return the pairwise sub, and APIs get the account', async () => {
  const client = await clientOf('c.example');
  const { name, accessToken } = await connect(client);
  const headers = { authorization: `Bearer ${accessToken}` };
  const userinfo = await fetch(`${server.baseUrl}/oauth/userinfo`, { headers });
  assert.equal(((await userinfo.json()) as { sub: string }).sub, name);
  const own = await postForm(server, '/oauth/introspect', client, { token: accessToken });
  assert.deepEqual([own.body.active, own.body.sub], [true, name]);

  // The client cannot read its token, and `GET /api` returns the pairwise identifier. Other APIs get the account id.
  assert.ok(!accessToken.includes('.'));
  const api = await fetch(`${server.baseUrl}/api`, { headers });
  assert.equal(api.status, 200);
  assert.deepEqual(((await api.json()) as { account: { id: string } }).account, { id: name });
  const resource = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: [introspectionScope],
  });
  const foreign = await postForm(server, '/oauth/introspect', resource, { token: accessToken });
  assert.deepEqual([foreign.body.active, foreign.body.sub], [true, account.id]);
});

test('the pairwise sub is accepted as a hint', async () => {
  const client = await clientOf('d.example');
  const { idToken } = await connect(client);
  const hinted = (idTokenHint: string) =>
    authorizationUrl(server, client, {
      scope: scopes.join(' '),
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
      prompt: 'none',
      id_token_hint: idTokenHint,
    });
  const nobody = await new TestBrowser(server.baseUrl).open(hinted(idToken));
  assert.equal(nobody.leftTo?.searchParams.get('error'), 'login_required');
});

test('apps may register for pairwise subjects, and the metadata lists them', async () => {
  const metadata = await fetch(`${server.baseUrl}/.well-known/openid-configuration`);
  const { subject_types_supported: types } = (await metadata.json()) as Record<string, string[]>;
  assert.deepEqual(types?.toSorted(), ['pairwise', 'public']);
  const register = async (redirectUris: string[]) => {
    const response = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ redirect_uris: redirectUris, subject_type: 'pairwise' }),
    });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  };
  const registered = await register(['https://e.example/callback']);
  assert.deepEqual([registered.status, registered.body.subject_type], [201, 'pairwise']);
  const several = await register(['https://e.example/callback', 'https://f.example/callback']);
  assert.deepEqual([several.status, several.body.error], [400, 'invalid_client_metadata']);
});
