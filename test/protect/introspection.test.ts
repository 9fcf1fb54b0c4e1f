/**
 * `nuncio/protect` with its own client: withdrawals by introspection (RFC 7662) at a real server, opaque
 * tokens, and DPoP with openid-client from the token endpoint to an external API.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import * as openid from 'openid-client';
import { disableAccount } from '../../src/accounts/account.ts';
import { endClient, withdrawGrant } from '../../src/grants/grant.ts';
import { createPlatform } from '../../src/platform.ts';
import { createProtector, type ProtectorOptions } from '../../src/protect/protect.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const notes = await createNotes(server);

/** The client of an external API. */
function createNotes(at: TestServer): Promise<TestClient> {
  return createTestClient(at, {
    grantTypes: ['client_credentials'],
    scopes: ['write:events', 'read:tokens'],
    redirectUris: [],
  });
}

/** @returns a function that calls the external API with a token and returns the status and the principal */
function setUp(options: Partial<ProtectorOptions> = {}) {
  let introspections = 0;
  const protect = createProtector({
    issuer: server.baseUrl,
    url: 'https://notes.example',
    audience: server.baseUrl,
    clientId: notes.id,
    clientSecret: notes.secret ?? '',
    async fetch(url, init) {
      if (url.endsWith('/oauth/introspect')) introspections += 1;
      return fetch(url, init);
    },
    ...options,
  });
  const ask = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` };
    const outcome = await protect.check({ method: 'GET', url: '/notes', headers }, 'read:posts');
    return outcome.granted
      ? { status: 200, principal: outcome.principal }
      : { status: outcome.status, body: JSON.parse(outcome.body) as { code: string; detail: string } };
  };
  return { ask, introspections: () => introspections };
}

test('oauth 98: (protect) a withdrawn grant is refused at the next request when each one is introspected', async () => {
  const { ask } = setUp({ cacheSeconds: 0 });
  const { accessToken, grantId } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const good = await ask(accessToken);
  assert.equal(good.status, 200);
  assert.equal(good.principal?.accountId, account.id);
  await withdrawGrant(server.db, grantId, 'user');
  const dead = await ask(accessToken);
  assert.equal(dead.status, 401);
  assert.equal(dead.body?.code, 'invalid-token');
});

test('oauth 98: (protect) a withdrawn grant is refused within the cache time when responses are cached', async () => {
  const { ask, introspections } = setUp({ cacheSeconds: 1 });
  const { accessToken, grantId } = await authorize(server, { account, client, scopes: ['read:posts'] });
  for (let count = 0; count < 20; count += 1) assert.equal((await ask(accessToken)).status, 200);
  assert.ok(introspections() < 20, 'an answer is used more than once');
  await withdrawGrant(server.db, grantId, 'user');
  await sleep(1_000);
  assert.equal((await ask(accessToken)).status, 401);
});

test('20 concurrent requests with one token cause one introspection', async () => {
  const { ask, introspections } = setUp();
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const answers = await Promise.all(Array.from({ length: 20 }, () => ask(accessToken)));
  assert.deepEqual(new Set(answers.map(({ status }) => status)), new Set([200]));
  assert.equal(introspections(), 1);
});

test('a withdrawn token works offline until it expires, as documented', async () => {
  const { ask } = setUp({ clientId: undefined, clientSecret: undefined, offline: true });
  const { accessToken, grantId } = await authorize(server, { account, client, scopes: ['read:posts'] });
  assert.ok(grantId);
  await withdrawGrant(server.db, grantId, 'user');
  assert.equal((await ask(accessToken)).status, 200);
});

test('a token is refused after revocation, refresh token revocation, a disabled user or a deleted client', async () => {
  const { ask } = setUp({ cacheSeconds: 0 });
  const ways: Record<string, (end: Ending) => Promise<unknown>> = {
    'access token revoked': ({ app, accessToken }) =>
      postForm(server, '/oauth/revoke', app, { token: accessToken }),
    'refresh token revoked': ({ app, refreshToken }) =>
      postForm(server, '/oauth/revoke', app, { token: refreshToken }),
    'user disabled': ({ user }) => disableAccount(server.db, user.id),
    'client deleted': ({ app }) => endClient(server.db, app.id),
  };
  for (const [way, end] of Object.entries(ways)) {
    const user = await createTestAccount(server);
    const app = await createTestClient(server);
    const tokens = await authorize(server, { account: user, client: app, scopes: ['read:posts'] });
    assert.equal((await ask(tokens.accessToken)).status, 200, way);
    await end({ user, app, ...tokens });
    assert.equal((await ask(tokens.accessToken)).status, 401, way);
  }
});

interface Ending {
  user: { id: string };
  app: TestClient;
  accessToken: string;
  refreshToken: string;
}

test('a refresh token is refused as an access token, also of the API’s own client', async () => {
  const own = await createTestClient(server, {
    scopes: ['read:posts', 'read:tokens'],
    grantTypes: ['authorization_code', 'refresh_token'],
  });
  const { refreshToken, accessToken } = await authorize(server, {
    account,
    client: own,
    scopes: ['read:posts'],
  });
  const { ask } = setUp({ clientId: own.id, clientSecret: own.secret ?? '' });
  assert.equal((await ask(accessToken)).status, 200);
  assert.equal((await ask(refreshToken)).status, 401);
});

test('oauth 63: (protect) a client introspects other clients’ tokens only with read:tokens, and never refresh tokens', async () => {
  const { accessToken, refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const other = await createTestClient(server);
  const asked = async (by: TestClient, token: string) =>
    (await postForm(server, '/oauth/introspect', by, { token })).body;
  assert.equal((await asked(notes, accessToken)).active, true);
  assert.deepEqual(await asked(notes, refreshToken), { active: false });
  assert.deepEqual(await asked(other, accessToken), { active: false });
});

test('an opaque token is accepted within its scopes and refused after its withdrawal', async (t) => {
  const opaque = await startTestServer(
    t,
    {},
    'dev',
    createPlatform({ oauth: { accessTokenFormat: 'opaque' } }),
  );
  const user = await createTestAccount(opaque);
  const app = await createTestClient(opaque);
  const api = await createNotes(opaque);
  const { ask } = setUp({
    issuer: opaque.baseUrl,
    audience: opaque.baseUrl,
    clientId: api.id,
    clientSecret: api.secret ?? '',
    cacheSeconds: 0,
  });
  const form = { grant_type: 'client_credentials', scope: 'read:posts' };
  const { body } = await postForm(opaque, '/oauth/token', app, form);
  const machine = await ask(String(body.access_token));
  assert.equal(machine.status, 200);
  assert.equal(machine.principal?.accountId, null);
  assert.equal(machine.principal?.clientId, app.id);

  const flow = { account: user, client: app, scopes: ['read:posts'] };
  const { accessToken } = await authorizeOpaque(opaque, flow);
  assert.ok(!accessToken.includes('.'));
  const granted = await ask(accessToken);
  assert.equal(granted.principal?.accountId, user.id);
  const poor = await authorizeOpaque(opaque, { ...flow, scopes: ['write:posts'] });
  assert.equal((await ask(poor.accessToken)).status, 403);
  await postForm(opaque, '/oauth/revoke', app, { token: accessToken });
  assert.equal((await ask(accessToken)).status, 401);
  assert.equal((await ask('an-opaque-token-of-nobody-at-all')).status, 401);
  const elsewhere = setUp({
    issuer: opaque.baseUrl,
    clientId: api.id,
    clientSecret: api.secret ?? '',
    audience: 'https://other.example',
  });
  assert.equal((await elsewhere.ask(String(body.access_token))).status, 401, 'another audience');
});

/** Runs the code flow without reading the grant's id, which only JWTs contain. */
async function authorizeOpaque(
  at: TestServer,
  flow: Parameters<typeof obtainCode>[1],
): Promise<{ accessToken: string }> {
  const { code, verifier } = await obtainCode(at, flow);
  const { body } = await postForm(at, '/oauth/token', flow.client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: flow.client.redirectUri,
  });
  return { accessToken: String(body.access_token) };
}

test('openid-client gets a key-bound token and calls the external API with it', async (t) => {
  const http = createServer().listen(0, '127.0.0.1');
  await once(http, 'listening');
  t.after(() => {
    http.close();
    http.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}`;
  const protect = createProtector({
    issuer: server.baseUrl,
    url,
    audience: server.baseUrl,
    clientId: notes.id,
    clientSecret: notes.secret ?? '',
    dpopNonceSecret: 'a secret of the notes, 32 bytes or more',
  });
  http.on(
    'request',
    protect.http(['read:posts'], (_request, response, { clientId }) => response.end(clientId)),
  );
  const configuration = await openid.discovery(
    new URL(server.baseUrl),
    client.id,
    undefined,
    openid.ClientSecretBasic(client.secret ?? ''),
    { execute: [openid.allowInsecureRequests] },
  );
  const DPoP = openid.getDPoPHandle(configuration, await openid.randomDPoPKeyPair('ES256'));
  const tokens = await openid.clientCredentialsGrant(configuration, { scope: 'read:posts' }, { DPoP });
  assert.equal(tokens.token_type, 'dpop');
  const fetchNotes = (by: openid.DPoPHandle) =>
    openid.fetchProtectedResource(
      configuration,
      tokens.access_token,
      new URL(`${url}/notes`),
      'GET',
      null,
      undefined,
      { DPoP: by },
    );
  // The library retries after use_dpop_nonce with the given nonce.
  const response = await fetchNotes(DPoP);
  assert.equal(response.status, 200);
  assert.equal(await response.text(), client.id);
  const stranger = openid.getDPoPHandle(configuration, await openid.randomDPoPKeyPair('ES256'));
  await assert.rejects(fetchNotes(stranger), openid.WWWAuthenticateChallengeError);
  const stolen = await fetch(`${url}/notes`, { headers: { authorization: `Bearer ${tokens.access_token}` } });
  assert.equal(stolen.status, 401);
});
