/**
 * The application's own user id, from the authorization server to an API of the operator: the claim `external_id` in access
 * tokens, its introspection, and the principal of `nuncio/protect`. Nothing else contains it.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { externalIdClaim } from '../../src/oauth/external_id_claim.ts';
import type { ProviderOptions } from '../../src/oauth/provider_options.ts';
import { createPlatform } from '../../src/platform.ts';
import { createProtector } from '../../src/protect/protect.ts';
import {
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestAccount,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const notes = 'https://notes.example';
const tasks = 'https://tasks.example';
const resources = [notes, { url: tasks, accessTokenFormat: 'opaque' as const }];
const server = await startTestServer({ after }, {}, 'dev', createPlatform({ oauth: { resources } }));
const api = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['read:tokens'],
  redirectUris: [],
});
const scopes = ['openid', 'profile', 'read:posts'];

async function name(account: TestAccount, externalId: string | null): Promise<void> {
  await sql`update accounts set external_id = ${externalId} where id = ${account.id}`.execute(server.db);
}

/** A user who signed in by password and whom the application has given an id since. */
async function createUser(externalId: string | null): Promise<TestAccount> {
  const account = await createTestAccount(server);
  await name(account, externalId);
  return account;
}

async function tokensFor(account: TestAccount, client: TestClient, resource: string, externalId: string) {
  // The login page knows local accounts only.
  await name(account, null);
  const { code, verifier } = await obtainCode(server, { account, client, scopes, parameters: { resource } });
  await name(account, externalId);
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  });
  assert.equal(status, 200, JSON.stringify(body));
  return { accessToken: String(body.access_token), refreshToken: String(body.refresh_token), body };
}

async function introspect(by: TestClient, token: string) {
  return (await postForm(server, '/oauth/introspect', by, { token })).body;
}

function principalOf(audience: string, token: string) {
  const protect = createProtector({
    issuer: server.baseUrl,
    url: 'https://api.example',
    audience,
    clientId: api.id,
    clientSecret: api.secret ?? '',
  });
  const request = { method: 'GET', url: '/', headers: { authorization: `Bearer ${token}` } };
  return protect.check(request).then((outcome) => (outcome.granted ? outcome.principal : outcome.status));
}

for (const [format, resource] of [
  ['JWT for the base URL', server.baseUrl],
  ['JWT for a declared API', notes],
  ['opaque token for a declared API', tasks],
] as const) {
  test(`an API learns the application’s own user id from a ${format}`, async () => {
    const externalId = `customer 7 ✓ ${resource}`;
    const user = await createUser(null);
    const client = await createTestClient(server);
    const { accessToken } = await tokensFor(user, client, resource, externalId);
    if (accessToken.includes('.')) assert.equal(decodeJwt(accessToken).external_id, externalId);
    assert.equal((await introspect(api, accessToken)).external_id, externalId);
    const principal = await principalOf(resource, accessToken);
    assert.ok(typeof principal === 'object');
    assert.deepEqual(principal.account, { id: user.id, externalId });
    assert.equal(principal.accountId, user.id);
  });
}

test('the next token has the new external id when it changes, and none when it is removed', async () => {
  const user = await createUser(null);
  const client = await createTestClient(server);
  let { accessToken, refreshToken } = await tokensFor(user, client, server.baseUrl, 'first');
  assert.equal(decodeJwt(accessToken).external_id, 'first');
  for (const externalId of ['second', null]) {
    await name(user, externalId);
    const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
    const { body } = await postForm(server, '/oauth/token', client, form);
    [accessToken, refreshToken] = [String(body.access_token), String(body.refresh_token)];
    assert.equal(decodeJwt(accessToken).external_id, externalId ?? undefined);
    const principal = await principalOf(server.baseUrl, accessToken);
    assert.ok(typeof principal === 'object');
    assert.deepEqual(principal.account, { id: user.id, externalId });
  }
});

test('a client that acts for itself has no account and no external id', async () => {
  const client = await createTestClient(server, { grantTypes: ['client_credentials'], redirectUris: [] });
  const form = { grant_type: 'client_credentials', scope: 'read:posts', resource: notes };
  const { body } = await postForm(server, '/oauth/token', client, form);
  assert.equal(decodeJwt(String(body.access_token)).external_id, undefined);
  const principal = await principalOf(notes, String(body.access_token));
  assert.ok(typeof principal === 'object');
  assert.deepEqual([principal.account, principal.accountId], [null, null]);
});

test('id_tokens, userinfo and refresh tokens do not contain the external id', async () => {
  const user = await createUser(null);
  const client = await createTestClient(server);
  const got = await tokensFor(user, client, server.baseUrl, 'customer-8');
  assert.equal(decodeJwt(String(got.body.id_token)).external_id, undefined);
  const headers = { authorization: `Bearer ${got.accessToken}` };
  const userinfo = await fetch(`${server.baseUrl}/oauth/userinfo`, { headers });
  assert.doesNotMatch(await userinfo.text(), /customer-8/);
  assert.equal((await introspect(client, got.refreshToken)).external_id, undefined);
});

test('attack: a pairwise client does not learn the external id by introspecting its own token', async () => {
  const user = await createUser(null);
  const metadata = { subject_type: 'pairwise' };
  const client = await createTestClient(server, { metadata, redirectUris: ['https://p.example/callback'] });
  const { accessToken } = await tokensFor(user, client, server.baseUrl, 'customer-9');
  const own = await introspect(client, accessToken);
  assert.deepEqual([own.active, own.external_id], [true, undefined]);
  assert.notEqual(own.sub, user.id);
  assert.equal((await introspect(api, accessToken)).external_id, 'customer-9');
});

test('a token for any audience that is not the operator’s has no external id', async () => {
  const user = await createUser('customer-10');
  const { db, config } = server;
  const claim = externalIdClaim({ db, config, settings: { resources } } as unknown as ProviderOptions);
  const claimFor = (aud: unknown) => claim({} as never, { accountId: user.id, aud } as never);
  assert.deepEqual(await claimFor(notes), { external_id: 'customer-10' });
  assert.deepEqual(await claimFor([server.baseUrl, tasks]), { external_id: 'customer-10' });
  const others = [undefined, [], 'https://other.example', `${notes}/`, [notes, 'https://other.example']];
  for (const aud of others) assert.equal(await claimFor(aud), undefined, String(aud));
});
