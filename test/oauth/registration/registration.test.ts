/**
 * Dynamic client registration and its management (RFC 7591, RFC 7592), over HTTP.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { removeUnusedClients } from '../../../src/clients/self_registered.ts';
import { digest } from '../../../src/crypto/digest.ts';
import { createGrant, withdrawGrant } from '../../../src/grants/grant.ts';
import { createInitialAccessToken } from '../../../src/oauth/registration/initial_access_token.ts';
import { countRegistration, registrationLimits } from '../../../src/oauth/registration/registration_limit.ts';
import type { OAuthSettings } from '../../../src/oauth/settings.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { ageClients } from '../../support/clients/age.ts';
import { authorize, createTestAccount, postForm, type TestClient } from '../../support/clients/oauth.ts';
import { signInByOpenidClient } from '../../support/clients/openid_client.ts';
import { startTestServer } from '../../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);

type Json = Record<string, unknown>;
const redirectUri = 'https://registered.example/callback';

/** Registers from a separate address, so that only its own test reaches the limit. */
async function register(body: unknown, { baseUrl } = server, headers: Record<string, string> = {}) {
  await sql`delete from registration_windows`.execute(server.db);
  return send(`${baseUrl}/oauth/register`, 'POST', body, headers);
}

async function send(url: string, method: string, body?: unknown, headers: Record<string, string> = {}) {
  const response = await fetch(url, {
    method,
    headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...headers },
    ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const json = (text === '' ? {} : JSON.parse(text)) as Json;
  return { status: response.status, headers: response.headers, body: json };
}

function manage(
  registered: Json,
  method: string,
  body?: unknown,
  token = registered.registration_access_token,
) {
  const headers = { authorization: `Bearer ${token}` };
  return send(String(registered.registration_client_uri), method, body, headers);
}

function toClient(registered: Json): TestClient {
  return {
    id: registered.client_id,
    secret: registered.client_secret ?? null,
    authMethod: registered.token_endpoint_auth_method,
    redirectUri,
  } as TestClient;
}

async function startWith(oauth: Partial<OAuthSettings>) {
  const platform = await loadPlatform(null);
  return startTestServer({ after }, {}, 'dev', { ...platform, oauth: { ...platform.oauth, ...oauth } });
}

test('oauth 85: a registration returns 201 with all metadata and no-store', async () => {
  const metadata = {
    client_name: 'A reader',
    client_uri: 'https://registered.example/',
    contacts: ['people@registered.example'],
    tos_uri: 'https://registered.example/terms',
    policy_uri: 'https://registered.example/policy',
    redirect_uris: [redirectUri],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    scope: 'openid read:posts',
    token_endpoint_auth_method: 'client_secret_post',
    software_id: '4NRB1-0XZABZI9E6-5SM3R',
    software_version: '2.1',
  };
  const sent = { ...metadata, logo_uri: 'https://registered.example/logo.png' };
  const { status, headers, body } = await register(sent);
  assert.equal(status, 201, JSON.stringify(body));
  // Logos of self-registered apps are neither shown nor stored.
  assert.equal(body.logo_uri, undefined);
  assert.match(headers.get('content-type') ?? '', /^application\/json/);
  assert.equal(headers.get('cache-control'), 'no-store');
  for (const [name, value] of Object.entries(metadata)) assert.deepEqual(body[name], value, name);
  assert.match(String(body.client_id), /^[0-9a-f-]{36}$/);
  assert.match(String(body.client_secret), /^[\w-]{43}$/);
  assert.equal(body.client_secret_expires_at, 0);
  assert.equal(typeof body.client_id_issued_at, 'number');
  assert.equal(body.registration_client_uri, `${server.baseUrl}/oauth/register/${body.client_id}`);
  assert.ok(body.registration_access_token);
});

test('oauth 85: only methods with a secret get one, and no secret is stored in plain text', async () => {
  const { body } = await register({ redirect_uris: [redirectUri], token_endpoint_auth_method: 'none' });
  assert.equal(body.client_secret, undefined);
  assert.equal(body.client_secret_expires_at, undefined);
  assert.deepEqual(body.grant_types, ['authorization_code']);
  assert.deepEqual(body.response_types, ['code']);
  const withSecret = (await register({ redirect_uris: [redirectUri] })).body;
  assert.equal(withSecret.token_endpoint_auth_method, 'client_secret_basic');
  const { rows } = await sql<{ stored: string }>`
    select c::text || coalesce((select string_agg(s::text, '') from client_secrets s where s.client_id = c.id), '')
      || (select string_agg(t::text, '') from registration_access_tokens t where t.client_id = c.id) as stored
    from clients c where c.id = ${withSecret.client_id}`.execute(server.db);
  const stored = rows[0]?.stored ?? '';
  assert.ok(stored.includes(digest(String(withSecret.client_secret)).toString('hex')));
  assert.ok(!stored.includes(String(withSecret.client_secret)));
  assert.ok(!stored.includes(String(withSecret.registration_access_token)));
});

test('a user allows a registered app, which gets the scopes it registered for', async () => {
  const registered = (await register({ redirect_uris: [redirectUri], scope: 'openid read:posts' })).body;
  const client = toClient(registered);
  const { scope, accessToken } = await authorize(server, { account, client, scopes: [] });
  assert.equal(scope, 'read:posts');
  const api = await fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${accessToken}` } });
  assert.equal(api.status, 200);
  const refused = await authorize(server, { account, client, scopes: ['write:posts'] }).catch(String);
  assert.match(String(refused), /invalid_scope/);
});

test('oauth 85: a registration gets those of its scopes that users can allow, and its response says so', async () => {
  const scope = 'openid read:posts write:events read:everything';
  const { status, body } = await register({ redirect_uris: [redirectUri], scope });
  assert.equal(status, 201);
  assert.equal(body.scope, 'openid read:posts');
  const { scope: all } = (await register({ redirect_uris: [redirectUri] })).body;
  assert.ok(String(all).includes('write:posts') && !String(all).includes('write:events'));
});

for (const [what, metadata, error] of [
  ['a fragment', { redirect_uris: [`${redirectUri}#top`] }, 'invalid_redirect_uri'],
  ['plain http elsewhere', { redirect_uris: ['http://app.example/cb'] }, 'invalid_redirect_uri'],
  ['javascript:', { redirect_uris: ['javascript:alert(1)//'] }, 'invalid_redirect_uri'],
  ['data:', { redirect_uris: ['data:text/html,x'] }, 'invalid_redirect_uri'],
  ['credentials', { redirect_uris: ['https://user:pw@app.example/cb'] }, 'invalid_redirect_uri'],
  ['no URI', { redirect_uris: ['/callback'] }, 'invalid_redirect_uri'],
  ['a number', { redirect_uris: [7] }, 'invalid_redirect_uri'],
  ['none at all', { redirect_uris: [] }, 'invalid_redirect_uri'],
  [
    'too many',
    { redirect_uris: Array.from({ length: 21 }, (_, i) => `${redirectUri}/${i}`) },
    'invalid_redirect_uri',
  ],
  [
    'code without its grant type',
    { redirect_uris: [redirectUri], grant_types: ['refresh_token'], response_types: ['code'] },
    'invalid_client_metadata',
  ],
  [
    'the grant type without code',
    { redirect_uris: [redirectUri], response_types: [] },
    'invalid_client_metadata',
  ],
  [
    'an unknown grant type',
    { redirect_uris: [redirectUri], grant_types: ['authorization_code', 'magic'] },
    'invalid_client_metadata',
  ],
  [
    'client credentials',
    { redirect_uris: [], grant_types: ['client_credentials'] },
    'invalid_client_metadata',
  ],
  [
    'implicit',
    { redirect_uris: [redirectUri], grant_types: ['implicit'], response_types: ['id_token'] },
    'invalid_client_metadata',
  ],
  [
    'an unknown response type',
    { redirect_uris: [redirectUri], response_types: ['token'] },
    'invalid_client_metadata',
  ],
  [
    'an unknown method',
    { redirect_uris: [redirectUri], token_endpoint_auth_method: 'client_secret_jwt' },
    'invalid_client_metadata',
  ],
  ['an unknown scope', { redirect_uris: [redirectUri], scope: 'read:everything' }, 'invalid_client_metadata'],
  [
    'the operator’s scope',
    { redirect_uris: [redirectUri], scope: 'write:events' },
    'invalid_client_metadata',
  ],
  [
    'a name that cannot be seen',
    { redirect_uris: [redirectUri], client_name: 'abc\u202Egnp' },
    'invalid_client_metadata',
  ],
  [
    'a logo by javascript',
    { redirect_uris: [redirectUri], logo_uri: 'javascript:1' },
    'invalid_client_metadata',
  ],
  [
    'keys in the clear',
    { redirect_uris: [redirectUri], jwks_uri: 'http://app.example/jwks' },
    'invalid_client_metadata',
  ],
  [
    'an unsigned statement',
    { redirect_uris: [redirectUri], software_statement: 'trust me' },
    'invalid_software_statement',
  ],
  [
    'an unknown statement',
    { redirect_uris: [redirectUri], software_statement: 'e30.e30.c2ln' },
    'unapproved_software_statement',
  ],
] as const) {
  test(`oauth 86: a registration with ${what} is ${error}`, async () => {
    const { status, headers, body } = await register(metadata);
    assert.equal(status, 400);
    assert.equal(body.error, error, JSON.stringify(body));
    assert.match(String(body.error_description ?? ''), /^[\x20-\x21\x23-\x5b\x5d-\x7e]*$/);
    assert.equal(headers.get('cache-control'), 'no-store');
  });
}

test('oauth 86: a body that is no JSON object is refused', async () => {
  for (const body of ['{', '[]', '"x"', 'null']) assert.equal((await register(body)).status, 400, body);
  const form = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    body: new URLSearchParams({ redirect_uris: redirectUri }),
  });
  assert.equal(form.status, 400);
});

test('oauth 86: a network address that registers too often is rate limited', async () => {
  await sql`delete from registration_windows`.execute(server.db);
  const answers = [];
  const url = `${server.baseUrl}/oauth/register`;
  for (let at = 0; at < registrationLimits.remote + 1; at += 1) answers.push(await send(url, 'POST', {}));
  const last = answers.pop();
  assert.ok(answers.every(({ status }) => status === 400));
  assert.equal(last?.status, 429);
  assert.ok(Number(last?.headers.get('retry-after')) > 0);
  assert.equal((await register({ redirect_uris: [redirectUri] })).status, 201);
});

test('oauth 86: behind a trusted proxy each client address has its own limit', async () => {
  const proxied = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' });
  for (let at = 0; at < registrationLimits.remote; at += 1)
    await countRegistration(proxied.db, '203.0.113.1');
  const from = (address: string, at = proxied) =>
    send(`${at.baseUrl}/oauth/register`, 'POST', {}, { 'x-forwarded-for': address });
  assert.equal((await from('203.0.113.1')).status, 429);
  assert.equal((await from('203.0.113.2')).status, 400);
  // Addresses before the trusted proxy are ignored.
  assert.equal((await from('203.0.113.2, 203.0.113.1')).status, 429);
  for (let at = 0; at < registrationLimits.remote; at += 1) await countRegistration(server.db, '203.0.113.1');
  assert.equal((await from('203.0.113.1', server)).status, 400);
});

test('oauth 86: an initial access token is required where switched on, and works as often as stated', async () => {
  const guarded = await startWith({ registration: 'token' });
  const metadata = { redirect_uris: [redirectUri] };
  const url = `${guarded.baseUrl}/oauth/register`;
  const withToken = (token: string) => send(url, 'POST', metadata, { authorization: `Bearer ${token}` });
  const none = await send(url, 'POST', metadata);
  assert.equal(none.status, 401);
  assert.match(none.headers.get('www-authenticate') ?? '', /^Bearer/);
  assert.equal((await withToken('made-up')).status, 401);
  const expired = await createInitialAccessToken(guarded.db, { seconds: -1 });
  assert.equal((await withToken(expired)).status, 401);
  const twice = await createInitialAccessToken(guarded.db, { uses: 2 });
  const bad = await send(url, 'POST', {}, { authorization: `Bearer ${twice}` });
  assert.equal(bad.status, 400);
  // A rejected registration does not use up the token. Concurrent registrations cannot exceed its uses.
  const answers = await Promise.all(Array.from({ length: 6 }, () => withToken(twice)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [201, 201, 401, 401, 401, 401]);
});

test('registration leaves no trace when it is off', async () => {
  const closed = await startWith({ registration: 'off' });
  const metadata = await send(`${closed.baseUrl}/.well-known/oauth-authorization-server`, 'GET');
  assert.ok(!('registration_endpoint' in metadata.body));
  assert.equal((await send(`${closed.baseUrl}/oauth/register`, 'POST', {})).status, 404);
  const open = await send(`${server.baseUrl}/.well-known/oauth-authorization-server`, 'GET');
  assert.equal(open.body.registration_endpoint, `${server.baseUrl}/oauth/register`);
});

test('oauth 87: an app reads its registration without secrets', async () => {
  const registered = (await register({ redirect_uris: [redirectUri], scope: 'read:posts', client_name: 'R' }))
    .body;
  const { status, headers, body } = await manage(registered, 'GET');
  assert.equal(status, 200);
  assert.equal(headers.get('cache-control'), 'no-store');
  const { client_secret: _secret, client_secret_expires_at: _expires, ...shown } = registered;
  assert.deepEqual(body, shown);
});

test('oauth 87: a change replaces the whole registration and returns a new token', async () => {
  const registered = (
    await register({
      redirect_uris: [redirectUri],
      client_name: 'Before',
      scope: 'read:posts',
      tos_uri: 'https://a.example/',
    })
  ).body;
  const changed = await manage(registered, 'PUT', {
    client_id: registered.client_id,
    client_secret: registered.client_secret,
    redirect_uris: [`${redirectUri}/2`],
    client_name: 'After',
    grant_types: ['authorization_code', 'refresh_token'],
    scope: 'write:posts',
  });
  assert.equal(changed.status, 200, JSON.stringify(changed.body));
  assert.equal(changed.body.client_name, 'After');
  assert.deepEqual(changed.body.redirect_uris, [`${redirectUri}/2`]);
  assert.equal(changed.body.scope, 'write:posts');
  assert.equal(changed.body.tos_uri, undefined);
  assert.equal(changed.body.client_secret, registered.client_secret);
  assert.notEqual(changed.body.registration_access_token, registered.registration_access_token);
  assert.equal((await manage(registered, 'GET')).status, 401, 'the old token is dead');
  const read = await manage(changed.body, 'GET');
  assert.equal(read.body.client_name, 'After');
  assert.equal(read.body.tos_uri, undefined);
  // The old secret still authenticates.
  const answer = await postForm(server, '/oauth/token', toClient(registered), {
    grant_type: 'refresh_token',
    refresh_token: 'made-up',
  });
  assert.equal(answer.body.error, 'invalid_grant');
});

test('oauth 87: a change without the secret keeps it, and a change to a public client ends it', async () => {
  const registered = (
    await register({ redirect_uris: [redirectUri], grant_types: ['authorization_code', 'refresh_token'] })
  ).body;
  const { client_id } = registered;
  const kept = await manage(registered, 'PUT', {
    client_id,
    redirect_uris: [redirectUri],
    grant_types: ['authorization_code', 'refresh_token'],
  });
  assert.equal(kept.status, 200);
  assert.equal(kept.body.client_secret, undefined);
  const form = { grant_type: 'refresh_token', refresh_token: 'made-up' };
  const before = await postForm(server, '/oauth/token', toClient(registered), form);
  assert.equal(before.body.error, 'invalid_grant');
  const open = await manage(kept.body, 'PUT', {
    client_id,
    redirect_uris: [redirectUri],
    token_endpoint_auth_method: 'none',
  });
  assert.equal(open.status, 200);
  assert.equal(open.body.client_secret, undefined);
  const later = await postForm(server, '/oauth/token', toClient(registered), form);
  assert.equal(later.body.error, 'invalid_client');
  const { rows } = await sql`select from client_secrets where client_id = ${client_id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('oauth 87: a change of what the app may not set is refused', async () => {
  const registered = (await register({ redirect_uris: [redirectUri] })).body;
  const other = (await register({ redirect_uris: [redirectUri] })).body;
  const { client_id } = registered;
  const metadata = { client_id, redirect_uris: [redirectUri] };
  for (const [body, error] of [
    [{ ...metadata, client_id: other.client_id }, 'invalid_request'],
    [{ ...metadata, client_secret: 'another' }, 'invalid_request'],
    [{ ...metadata, client_secret_expires_at: 0 }, 'invalid_request'],
    [{ ...metadata, registration_access_token: 'mine' }, 'invalid_request'],
    [{ ...metadata, redirect_uris: ['http://app.example/'] }, 'invalid_redirect_uri'],
    [{ ...metadata, scope: 'write:events' }, 'invalid_client_metadata'],
  ] as const) {
    const answer = await manage(registered, 'PUT', body);
    assert.equal(answer.status, 400, JSON.stringify(body));
    assert.equal(answer.body.error, error);
  }
  for (const method of ['GET', 'PUT', 'DELETE']) {
    const body = method === 'PUT' ? metadata : undefined;
    const answer = await manage(registered, method, body, 'made-up');
    assert.equal(answer.status, 401, method);
    assert.match(answer.headers.get('www-authenticate') ?? '', /^Bearer/);
    assert.equal((await manage(registered, method, body, other.registration_access_token)).status, 401);
  }
  assert.equal((await manage(registered, 'GET')).status, 200, 'the registration is unchanged');
});

test('oauth 87: deleting itself ends everything the app was given', async () => {
  const registered = (
    await register({ redirect_uris: [redirectUri], grant_types: ['authorization_code', 'refresh_token'] })
  ).body;
  const client = toClient(registered);
  const { accessToken, refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const api = () => fetch(`${server.baseUrl}/api`, { headers: { authorization: `Bearer ${accessToken}` } });
  assert.equal((await api()).status, 200);
  const deleted = await manage(registered, 'DELETE');
  assert.equal(deleted.status, 204);
  assert.equal((await manage(registered, 'GET')).status, 401);
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', client, form)).body.error, 'invalid_client');
  // The database notifies the withdrawal list of every node within a second.
  let status = (await api()).status;
  for (let tries = 0; status !== 401 && tries < 50; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    status = (await api()).status;
  }
  assert.equal(status, 401);
});

test('openid-client registers, signs a user in and refreshes', async () => {
  await sql`delete from registration_windows`.execute(server.db);
  const config = await openid.dynamicClientRegistration(
    new URL(server.baseUrl),
    { redirect_uris: [redirectUri], grant_types: ['authorization_code', 'refresh_token'] },
    undefined,
    { execute: [openid.allowInsecureRequests] },
  );
  const tokens = await signInByOpenidClient(server, config, account, redirectUri);
  assert.equal(tokens.claims()?.sub, account.id);
  assert.ok((await openid.refreshTokenGrant(config, tokens.refresh_token ?? '')).access_token);
});

test('unused self-registered apps are deleted after 30 days, and others stay', async () => {
  const names = ['unused', 'in use', 'left long ago', 'left lately', 'new'];
  const ids = new Map<string, string>();
  for (const name of names) {
    const { body } = await register({ redirect_uris: [redirectUri], client_name: name });
    ids.set(name, String(body.client_id));
  }
  const idOf = (name: string) => ids.get(name) as string;
  const grant = (name: string) =>
    createGrant(server.db, { accountId: account.id, clientId: idOf(name), scopes: ['read:posts'] });
  await grant('in use');
  for (const name of ['left long ago', 'left lately'])
    await withdrawGrant(server.db, await grant(name), 'user');
  await sql`
    update grants set withdrawn_at = now() - interval '31 days'
    where client_id = ${idOf('left long ago')}`.execute(server.db);
  await ageClients(server, sql`id <> ${idOf('new')}`);
  const { rows: before } = await sql<{ id: string }>`
    select id from clients where origin = 'operator'`.execute(server.db);
  await removeUnusedClients(server.db, 1_000);
  const { rows } = await sql<{ id: string }>`select id from clients`.execute(server.db);
  const left = new Set(rows.map(({ id }) => id));
  assert.deepEqual(
    names.filter((name) => left.has(idOf(name))),
    ['in use', 'left lately', 'new'],
  );
  assert.ok(before.every(({ id }) => left.has(id)));
});
