/** Requirements that the operator sets for a client: metadata at creation, and the FAPI 2.0 preset. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, test } from 'node:test';
import { decodeProtectedHeader, exportJWK, generateKeyPair, SignJWT } from 'jose';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import shipped from '../../nuncio.config.ts';
import { findClient } from '../../src/clients/client.ts';
import { clientCreate } from '../../src/commands/client_create.ts';
import { digest } from '../../src/crypto/digest.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const oauth = { accessTokenAlgorithm: 'RS256' } as const;
const server = await startTestServer({ after }, {}, 'dev', createPlatform({ ...shipped, oauth }));
const account = await createTestAccount(server);
const redirectUri = 'https://bank.example/callback';

async function create(
  values: Record<string, string | boolean | readonly string[]>,
): Promise<{ client_id: string }> {
  const lines: string[] = [];
  await clientCreate.run(
    { values: { name: 'Bank', 'redirect-uri': [redirectUri], json: true, ...values }, positionals: [] },
    {
      config: { ...server.config, databaseUrl: server.databaseUrl },
      print: (line) => lines.push(line),
      printError: () => {},
    },
  );
  return JSON.parse(lines.join('\n'));
}

test('a FAPI 2.0 client pushes its requests and gets bound tokens, and every lesser request is refused', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'k', alg: 'ES256', use: 'sig' }] };
  const { client_id } = await create({
    fapi2: true,
    'auth-method': 'private_key_jwt',
    metadata: JSON.stringify({ jwks }),
  });
  const config = await openid.discovery(
    new URL(server.baseUrl),
    client_id,
    undefined,
    openid.PrivateKeyJwt({ key: privateKey, kid: 'k' }),
    { execute: [openid.allowInsecureRequests] },
  );
  const verifier = openid.randomPKCECodeVerifier();
  const parameters = {
    redirect_uri: redirectUri,
    scope: 'openid read:posts',
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  };
  const plain = authorizationUrl(server, { id: client_id, redirectUri }, parameters);
  const refused = await new TestBrowser(server.baseUrl).open(plain);
  assert.equal(refused.leftTo?.searchParams.get('error'), 'invalid_request');

  const pushed = async () => {
    const browser = new TestBrowser(server.baseUrl);
    const url = await openid.buildAuthorizationUrlWithPAR(config, parameters);
    return passPages(browser, await browser.open(url.href), account);
  };
  const bare = openid.authorizationCodeGrant(config, await pushed(), { pkceCodeVerifier: verifier });
  await assert.rejects(bare, { error: 'invalid_grant' });
  const DPoP = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair());
  const tokens = await openid.authorizationCodeGrant(
    config,
    await pushed(),
    { pkceCodeVerifier: verifier },
    undefined,
    { DPoP },
  );
  assert.equal(tokens.token_type, 'dpop');
  assert.equal(
    decodeProtectedHeader(tokens.access_token).alg,
    'ES256',
    'FAPI 2.0 section 5.4, whatever is set',
  );
  const api = new URL('/api', server.baseUrl);
  const get = [undefined, undefined, { DPoP }] as const;
  const response = await openid.fetchProtectedResource(config, tokens.access_token, api, 'GET', ...get);
  assert.equal(response.status, 200);
  const bearer = await fetch(api, { headers: { authorization: `Bearer ${tokens.access_token}` } });
  assert.equal(bearer.status, 401);
});

/** Signs assertions and proofs of a client with any claims. */
async function createHolder(alg: 'ES256' | 'PS256' = 'ES256', metadata: Record<string, unknown> = {}) {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true });
  const jwk = await exportJWK(publicKey);
  const { client_id } = await create({
    fapi2: true,
    'auth-method': 'private_key_jwt',
    grant: ['authorization_code', 'refresh_token', 'client_credentials'],
    metadata: JSON.stringify({ jwks: { keys: [{ ...jwk, kid: 'k' }] }, ...metadata }),
  });
  const { privateKey: proofKey, publicKey: proofPublicKey } = await generateKeyPair('ES256');
  const proofJwk = await exportJWK(proofPublicKey);
  const now = () => Math.floor(Date.now() / 1_000);
  const assertion = (claims: Record<string, unknown> = {}, header = alg as string, key = privateKey) => {
    const own = { iss: client_id, sub: client_id, aud: server.baseUrl, jti: newId() };
    return new SignJWT({ ...own, iat: now(), exp: now() + 60, ...claims })
      .setProtectedHeader({ alg: header, kid: 'k' })
      .sign(key);
  };
  const proof = (claims: Record<string, unknown> = {}, method = 'POST', path = '/oauth/token') =>
    new SignJWT({ jti: newId(), htm: method, htu: `${server.baseUrl}${path}`, iat: now(), ...claims })
      .setProtectedHeader({ alg: 'ES256', typ: 'dpop+jwt', jwk: proofJwk })
      .sign(proofKey);
  const authenticated = async (form: Record<string, string>, claims?: Record<string, unknown>) => ({
    ...form,
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: await assertion(claims),
  });
  const ask = async (form: Record<string, string>, dpop?: string, claims?: Record<string, unknown>) =>
    postForm(server, '/oauth/token', null, await authenticated(form, claims), {
      dpop: dpop ?? (await proof()),
    });
  return { clientId: client_id, privateKey, assertion, proof, authenticated, ask, now };
}

const machine = { grant_type: 'client_credentials', scope: 'read:posts' };

/** A complete authorization code flow. */
async function authorizeHolder(holder: Awaited<ReturnType<typeof createHolder>>) {
  const { verifier, challenge } = createPkce();
  const request = {
    response_type: 'code',
    client_id: holder.clientId,
    redirect_uri: redirectUri,
    scope: 'openid read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
  };
  const pushed = await postForm(server, '/oauth/par', null, await holder.authenticated(request));
  assert.equal(pushed.status, 201, JSON.stringify(pushed.body));
  const browser = new TestBrowser(server.baseUrl);
  const query = new URLSearchParams({
    client_id: holder.clientId,
    request_uri: String(pushed.body.request_uri),
  });
  const leftTo = await passPages(
    browser,
    await browser.open(`${server.baseUrl}/oauth/authorize?${query}`),
    account,
  );
  assert.equal(leftTo.searchParams.get('iss'), server.baseUrl);
  const code = String(leftTo.searchParams.get('code'));
  const form = {
    grant_type: 'authorization_code',
    code,
    redirect_uri: redirectUri,
    code_verifier: verifier,
  };
  const { status, body } = await holder.ask(form);
  assert.equal(status, 200, JSON.stringify(body));
  return body as Record<string, string>;
}

test('a FAPI 2.0 client gets its id_token signed with ES256, not RS256', async () => {
  const holder = await createHolder();
  const { metadata } = (await findClient(server.db, holder.clientId)) ?? {};
  assert.equal(metadata?.id_token_signed_response_alg, 'ES256');
  assert.equal(metadata?.request_object_signing_alg, 'ES256');
  assert.equal(metadata?.token_endpoint_auth_signing_alg, 'ES256');
  const { id_token } = await authorizeHolder(holder);
  assert.equal(decodeProtectedHeader(String(id_token)).alg, 'ES256');
});

test('a FAPI 2.0 client may sign with PS256, and not with RS256', async () => {
  const metadata = { token_endpoint_auth_signing_alg: 'PS256' };
  const holder = await createHolder('PS256', metadata);
  assert.equal((await holder.ask(machine)).status, 200);
  const { privateKey } = await generateKeyPair('RS256', { extractable: true });
  const signed = await holder.assertion({}, 'RS256', privateKey);
  const form = { ...(await holder.authenticated(machine)), client_assertion: signed };
  const { status, body } = await postForm(server, '/oauth/token', null, form, { dpop: await holder.proof() });
  assert.deepEqual([status, body.error], [401, 'invalid_client']);
});

test('a FAPI 2.0 client’s assertion may be 10 seconds ahead, and is refused beyond 60', async () => {
  const holder = await createHolder();
  const now = holder.now();
  for (const claims of [
    { iat: now + 8 },
    { iat: now + 8, nbf: now + 8 },
    { iat: now + 8, nbf: now + 8, exp: now + 68 },
    { iat: undefined, nbf: undefined },
  ]) {
    assert.equal((await holder.ask(machine, undefined, claims)).status, 200, JSON.stringify(claims));
  }
  for (const claims of [
    { iat: now + 90 },
    { nbf: now + 90 },
    { exp: now + 120 },
    { iat: now + 90, nbf: now + 90, exp: now + 150 },
    { exp: now - 60 },
    { exp: undefined },
  ]) {
    const { status, body } = await holder.ask(machine, undefined, claims);
    assert.deepEqual([status, body.error], [401, 'invalid_client'], JSON.stringify(claims));
  }
});

test('a FAPI 2.0 client’s DPoP proof may be 10 seconds ahead, and is refused beyond 60', async () => {
  const holder = await createHolder();
  assert.equal((await holder.ask(machine, await holder.proof({ iat: holder.now() + 8 }))).status, 200);
  const ahead = await holder.ask(machine, await holder.proof({ iat: holder.now() + 120 }));
  assert.deepEqual([ahead.status, ahead.body.error], [400, 'invalid_dpop_proof']);
  assert.match(String(ahead.body.error_description), /in the future/);

  // A proof that is too old needs a nonce, which proves its age.
  const old = await holder.ask(machine, await holder.proof({ iat: holder.now() - 120 }));
  assert.deepEqual([old.status, old.body.error], [400, 'use_dpop_nonce']);
  const nonce = old.headers.get('dpop-nonce') ?? '';
  const fresh = await holder.proof({ iat: holder.now() - 120, nonce });
  assert.equal((await holder.ask(machine, fresh)).status, 200);
  const future = await holder.ask(machine, await holder.proof({ iat: holder.now() + 120, nonce }));
  assert.deepEqual([future.status, future.body.error], [400, 'invalid_dpop_proof']);

  const request = {
    response_type: 'code',
    client_id: holder.clientId,
    redirect_uri: redirectUri,
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  };
  const push = async (iat: number) => {
    const dpop = await holder.proof({ iat }, 'POST', '/oauth/par');
    return postForm(server, '/oauth/par', null, await holder.authenticated(request), { dpop });
  };
  assert.equal((await push(holder.now() + 8)).status, 201);
  assert.equal((await push(holder.now() + 120)).body.error, 'invalid_dpop_proof');
});

test('userinfo refuses a DPoP proof more than 60 seconds ahead', async () => {
  const holder = await createHolder();
  const { access_token = '' } = await authorizeHolder(holder);
  const ath = createHash('sha256').update(access_token).digest('base64url');
  const userinfo = async (iat: number) => {
    const dpop = await holder.proof({ iat, ath }, 'GET', '/oauth/userinfo');
    const headers = { authorization: `DPoP ${access_token}`, dpop };
    return (await fetch(`${server.baseUrl}/oauth/userinfo`, { headers })).status;
  };
  assert.equal(await userinfo(holder.now() + 8), 200);
  assert.equal(await userinfo(holder.now() + 120), 401);
});

test('a proof 120 seconds ahead is accepted when the client is not held to FAPI 2.0', async () => {
  const holder = await createHolder();
  const client = await createTestClient(server);
  const dpop = await holder.proof({ iat: holder.now() + 120 });
  assert.equal((await postForm(server, '/oauth/token', client, machine, { dpop })).status, 200);
});

test('a FAPI 2.0 client’s refresh token is not rotated, and is useless without its key', async () => {
  const holder = await createHolder();
  const { refresh_token = '' } = await authorizeHolder(holder);
  const form = { grant_type: 'refresh_token', refresh_token };
  for (let use = 0; use < 3; use += 1) {
    const { status, body } = await holder.ask(form);
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal(body.refresh_token, refresh_token);
    assert.equal(body.token_type, 'DPoP');
  }
  const other = await createHolder();
  assert.equal((await other.ask(form)).body.error, 'invalid_grant');
  const unauthenticated = { ...form, client_id: holder.clientId };
  assert.equal((await postForm(server, '/oauth/token', null, unauthenticated)).body.error, 'invalid_client');
  const bare = await postForm(server, '/oauth/token', null, await holder.authenticated(form));
  assert.equal(bare.body.error, 'invalid_grant');

  const revoked = await holder.authenticated({ token: refresh_token });
  assert.equal((await postForm(server, '/oauth/revoke', null, revoked)).status, 200);
  assert.equal((await holder.ask(form)).body.error, 'invalid_grant');
});

test('a refresh token without rotation lives 30 days after its last use, and 180 days at most', async () => {
  const holder = await createHolder();
  const { refresh_token = '' } = await authorizeHolder(holder);
  const form = { grant_type: 'refresh_token', refresh_token };
  const day = 86_400;
  /** Moves issuance and last use back by the given days. */
  const age = async (issuedDays: number, usedDays: number) => {
    const exp = holder.now() + (30 - usedDays) * day;
    const changed = JSON.stringify({ exp, iiat: holder.now() - issuedDays * day });
    await sql`
      update refresh_tokens set payload = payload || ${changed}::jsonb, expires_at = to_timestamp(${exp})
      where digest = ${digest(refresh_token)}`.execute(server.db);
  };
  const daysLeft = async () => {
    const { rows } = await sql<{ column: Date; member: number }>`
      select expires_at as column, (payload ->> 'exp')::int as member from refresh_tokens
      where digest = ${digest(refresh_token)}`.execute(server.db);
    const { column, member } = rows[0] as { column: Date; member: number };
    assert.equal(member, column.getTime() / 1_000);
    return Math.round((member - holder.now()) / day);
  };
  await age(20, 20);
  assert.equal((await holder.ask(form)).status, 200);
  assert.equal(await daysLeft(), 30);
  await age(170, 20);
  assert.equal((await holder.ask(form)).status, 200);
  assert.equal(await daysLeft(), 10);
  await age(40, 31);
  assert.equal((await holder.ask(form)).body.error, 'invalid_grant');
});

test('client create fails with a usage error when its options conflict with FAPI 2.0 or are no metadata', async () => {
  const fapi2 = { fapi2: true, 'auth-method': 'private_key_jwt' };
  for (const [values, message] of [
    [{ fapi2: true }, /private_key_jwt/],
    [{ fapi2: true, 'auth-method': 'private_key_jwt', 'no-pkce': true }, /no-pkce/],
    [{ ...fapi2, grant: ['authorization_code', 'implicit'] }, /grant type implicit/],
    [{ ...fapi2, grant: ['authorization_code', 'password'] }, /grant type password/],
    [{ ...fapi2, metadata: '{"token_endpoint_auth_signing_alg":"RS256"}' }, /auth_signing_alg "RS256"/],
    [{ ...fapi2, metadata: '{"request_object_signing_alg":"RS256"}' }, /request_object_signing_alg "RS256"/],
    [{ ...fapi2, metadata: '{"id_token_signed_response_alg":"RS256"}' }, /signed_response_alg ES256/],
    [
      { ...fapi2, metadata: '{"userinfo_signed_response_alg":"RS256"}' },
      /userinfo_signed_response_alg ES256/,
    ],
    [{ ...fapi2, metadata: '{"dpop_bound_access_tokens":false}' }, /dpop_bound_access_tokens or tls/],
    [{ ...fapi2, metadata: '{"require_pushed_authorization_requests":false}' }, /requires require_pushed/],
    [{ metadata: '{' }, /must be JSON/],
    [{ metadata: '[]' }, /JSON object/],
    [{ metadata: '{"redirect_uris":[]}' }, /redirect_uris is not one of/],
    [{ metadata: '{"__proto__":{}}' }, /__proto__ is not one of/],
    [{ metadata: '{"jwks_uri":7}' }, /jwks_uri must be a string/],
    [{ metadata: '{"dpop_bound_access_tokens":"yes"}' }, /must be a boolean/],
    [{ metadata: '{"subject_type":"secret"}' }, /"public" or "pairwise"/],
    [
      {
        'redirect-uri': ['https://a.example/', 'https://b.example/'],
        metadata: '{"subject_type":"pairwise"}',
      },
      /sector_identifier_uri/,
    ],
    [{ 'auth-method': 'private_key_jwt' }, /private_key_jwt requires one of jwks, jwks_uri/],
    [{ 'auth-method': 'self_signed_tls_client_auth' }, /requires one of jwks, jwks_uri/],
    [{ 'auth-method': 'tls_client_auth' }, /requires one of tls_client_auth_san_dns/],
    [
      {
        'auth-method': 'tls_client_auth',
        metadata: '{"tls_client_auth_san_dns":"a.example","tls_client_auth_san_uri":"https://a.example/"}',
      },
      /requires exactly one of/,
    ],
  ] as const) {
    await assert.rejects(create(values), message);
  }
});

test('metadata is used as it was given', async () => {
  const { client_id } = await create({
    metadata: JSON.stringify({ require_pushed_authorization_requests: true }),
  });
  const url = authorizationUrl(
    server,
    { id: client_id, redirectUri },
    {
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
    },
  );
  const { leftTo } = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(leftTo?.searchParams.get('error'), 'invalid_request');
});
