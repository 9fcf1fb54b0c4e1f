/** Introspection (RFC 7662), private_key_jwt (RFC 7523), opaque access tokens, and the PKCE switch. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { newSecret } from '../../src/crypto/digest.ts';
import { newId } from '../../src/crypto/ids.ts';
import { AccessTokenVerifier } from '../../src/oauth/access_token.ts';
import { newOpaqueToken } from '../../src/oauth/opaque_token.ts';
import { createPlatform } from '../../src/platform.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const machine = { grant_type: 'client_credentials', scope: 'read:posts' };

test('oauth 62: introspection with wrong or missing credentials is 401', async () => {
  const got = await authorize(server, { account, client, scopes: ['read:posts'] });
  const token = got.accessToken;
  const introspect = (as: Parameters<typeof postForm>[2], form: Record<string, string> = {}) =>
    postForm(server, '/oauth/introspect', as, { token, ...form });
  for (const [what, { status, headers, body }] of [
    ['wrong secret', await introspect({ ...client, secret: 'wrong' })],
    ['unknown client', await introspect({ ...client, id: 'nobody' })],
    ['a client without its credentials', await introspect(null, { client_id: client.id })],
    ['the token itself', await introspect(null, { client_id: client.id, client_secret: token })],
  ] as const) {
    assert.deepEqual([status, body.error], [401, 'invalid_client'], what);
    assert.equal(body.active, undefined, what);
    assert.equal(headers.get('cache-control'), 'no-store', what);
  }
  // RFC 6749 section 5.2: a request without a client lacks a required parameter.
  const nobody = await introspect(null);
  assert.deepEqual([nobody.status, nobody.body.error], [400, 'invalid_request']);
});

test('oauth 62: introspection tells a public client nothing', async () => {
  const open = await createTestClient(server, { authMethod: 'none' });
  const { accessToken: token } = await authorize(server, { account, client: open, scopes: ['read:posts'] });
  const { status, body } = await postForm(server, '/oauth/introspect', open, { token });
  assert.deepEqual([status, body], [200, { active: false }]);
});

test('oauth 62: introspection by a method other than POST is 405', async () => {
  for (const method of ['GET', 'PUT', 'PATCH', 'DELETE']) {
    const { status, headers } = await fetch(`${server.baseUrl}/oauth/introspect?token=x`, { method });
    assert.equal(status, 405, method);
    assert.match(headers.get('allow') ?? '', /\bPOST\b/, method);
  }
});

test('oauth 63: an unknown, revoked, malformed or foreign token is inactive and nothing else', async () => {
  const other = await createTestClient(server);
  const got = await authorize(server, { account, client, scopes: ['read:posts'] });
  const foreign = await postForm(server, '/oauth/introspect', other, { token: got.accessToken });
  await postForm(server, '/oauth/revoke', client, { token: got.refreshToken });
  const answers = [foreign];
  for (const token of ['unknown', 'a.b.c', `${got.accessToken}x`, got.accessToken, got.refreshToken]) {
    answers.push(await postForm(server, '/oauth/introspect', client, { token }));
  }
  for (const { status, body } of answers) {
    assert.equal(status, 200);
    assert.deepEqual(body, { active: false });
  }
});

test('oauth 64: an active token’s introspection has every field', async () => {
  const got = await authorize(server, { account, client, scopes: ['read:posts'] });
  const { headers, body } = await postForm(server, '/oauth/introspect', client, { token: got.accessToken });
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.equal(body.active, true);
  assert.equal(body.scope, 'read:posts');
  assert.equal(body.client_id, client.id);
  assert.equal(body.sub, account.id);
  assert.equal(body.aud, server.baseUrl);
  assert.equal(body.iss, server.baseUrl);
  assert.equal(body.token_type, 'Bearer');
  assert.equal(Number(body.exp) - Number(body.iat), 900);
  const refresh = await postForm(server, '/oauth/introspect', client, { token: got.refreshToken });
  assert.equal(refresh.body.active, true);
});

test('oauth 67: revoking a refresh token makes its access tokens inactive at once', async () => {
  const got = await authorize(server, { account, client, scopes: ['read:posts'] });
  await postForm(server, '/oauth/revoke', client, { token: got.refreshToken });
  const { body } = await postForm(server, '/oauth/introspect', client, { token: got.accessToken });
  assert.deepEqual(body, { active: false });
});

test('oauth 16: an assertion authenticates once, for this server, until it expires', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const other = await generateKeyPair('ES256');
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const signing = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks } });
  const now = Math.floor(Date.now() / 1_000);
  const assertion = (claims: Record<string, unknown> = {}, key: CryptoKey = privateKey) =>
    new SignJWT({
      iss: signing.id,
      sub: signing.id,
      aud: server.baseUrl,
      jti: newId(),
      iat: now,
      exp: now + 60,
      ...claims,
    })
      .setProtectedHeader({ alg: 'ES256', kid: 'one' })
      .sign(key);
  const ask = (client_assertion: string, form: Record<string, string> = {}) =>
    postForm(server, '/oauth/token', null, {
      ...machine,
      client_assertion,
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      ...form,
    });
  const good = await assertion();
  assert.equal((await ask(good)).status, 200);
  const bad = [
    good,
    await assertion({ exp: now - 60 }),
    await assertion({ jti: undefined }),
    await assertion({ exp: undefined }),
    await assertion({ aud: 'https://other.example' }),
    await assertion({ iss: 'someone-else' }),
    await assertion({}, other.privateKey),
    `${Buffer.from('{"alg":"none"}').toString('base64url')}.${good.split('.')[1]}.`,
  ];
  for (const [index, text] of bad.entries()) {
    const { status, body } = await ask(text);
    assert.deepEqual([status, body.error], [401, 'invalid_client'], String(index));
  }
  const raced = await assertion();
  const answers = await Promise.all(Array.from({ length: 10 }, () => ask(raced)));
  assert.equal(answers.filter((answer) => answer.status === 200).length, 1);
});

test('oauth 17: an assertion is refused beside another client’s client_id', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const signing = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks } });
  const client_assertion = await new SignJWT({ jti: newId() })
    .setProtectedHeader({ alg: 'ES256', kid: 'one' })
    .setIssuer(signing.id)
    .setSubject(signing.id)
    .setAudience(server.baseUrl)
    .setIssuedAt()
    .setExpirationTime('1m')
    .sign(privateKey);
  const form = {
    ...machine,
    client_assertion,
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
  };
  const mixed = await postForm(server, '/oauth/token', null, { ...form, client_id: client.id });
  assert.deepEqual([mixed.status, mixed.body.error], [400, 'invalid_request']);
  assert.equal(
    (await postForm(server, '/oauth/token', null, { ...form, client_id: signing.id })).status,
    200,
  );
});

test('opaque access tokens open the API, introspect and expire like JWTs', async (context) => {
  const platform = createPlatform({ oauth: { accessTokenFormat: 'opaque' } });
  const opaque = await startTestServer(context, {}, 'dev', platform);
  const user = await createTestAccount(opaque);
  const app = await createTestClient(opaque);
  const { body } = await postForm(opaque, '/oauth/token', app, machine);
  const token = String(body.access_token);
  assert.ok(!token.includes('.'));
  const open = async (accessToken: string) => {
    const headers = { authorization: `Bearer ${accessToken}` };
    return (await fetch(`${opaque.baseUrl}/api`, { headers })).status;
  };
  assert.equal(await open(token), 200);
  const { code, verifier } = await obtainCode(opaque, { account: user, client: app, scopes: ['read:posts'] });
  const exchanged = await postForm(opaque, '/oauth/token', app, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: app.redirectUri,
  });
  const mine = String(exchanged.body.access_token);
  assert.equal(await open(mine), 200);
  const seen = await postForm(opaque, '/oauth/introspect', app, { token: mine });
  assert.equal(seen.body.sub, user.id);
  await postForm(opaque, '/oauth/revoke', app, { token: mine });
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  assert.equal(await open(mine), 401);
  assert.equal(await open(token), 200);
});

test('attack: a text that has not the form of an opaque token costs no query', async () => {
  const asked: string[] = [];
  const lookUp = async (token: string) => {
    asked.push(token);
    return undefined;
  };
  const verifier = new AccessTokenVerifier({
    issuer: server.baseUrl,
    lookUp,
    refreshKeys: async () => {},
    creatorOf: async () => null,
  });
  const token = newOpaqueToken();
  const texts = [
    'x',
    newSecret(),
    `nat_${newSecret()}`,
    `${token}x`,
    token.slice(0, -1),
    `nat_${'a'.repeat(49)}`,
  ];
  for (const text of texts) assert.equal(await verifier.verifyForAny(text), undefined);
  assert.deepEqual(asked, []);
  assert.equal(await verifier.verifyForAny(token), undefined);
  assert.deepEqual(asked, [token]);
});

test('oauth 39: PKCE is optional when operator and client both allow it, never for a public client', async (context) => {
  const platform = createPlatform({ oauth: { withoutPkce: true } });
  const loose = await startTestServer(context, {}, 'dev', platform);
  for (const [at, requirePkce, works] of [
    [loose, false, true],
    [loose, true, false],
    [server, false, false],
  ] as const) {
    const user = await createTestAccount(at);
    const app = await createTestClient(at, { requirePkce });
    const parameters = { code_challenge: undefined, code_challenge_method: undefined };
    const { code, redirect } = await obtainCode(at, {
      account: user,
      client: app,
      scopes: ['read:posts'],
      parameters,
    });
    assert.equal(code !== '', works, redirect.href);
    if (!works) continue;
    // oauth 39: a verifier for a code without a challenge is rejected.
    const form = { grant_type: 'authorization_code', code, redirect_uri: app.redirectUri };
    const downgraded = await postForm(at, '/oauth/token', app, { ...form, code_verifier: 'a'.repeat(43) });
    assert.deepEqual([downgraded.status, downgraded.body.error], [400, 'invalid_grant']);
    assert.equal((await postForm(at, '/oauth/token', app, form)).status, 200);
  }
});

test('oauth 10: other origins may use endpoints without cookies', async () => {
  for (const path of ['/oauth/token', '/oauth/revoke', '/oauth/userinfo', '/oauth/jwks', '/oauth/par']) {
    const preflight = await fetch(`${server.baseUrl}${path}`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://spa.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'dpop, authorization',
      },
    });
    assert.equal(preflight.status, 204, path);
    assert.equal(preflight.headers.get('access-control-allow-origin'), 'https://spa.example');
    assert.equal(preflight.headers.get('access-control-allow-credentials'), null);
  }
  const answer = await postForm(server, '/oauth/token', client, machine, { origin: 'https://spa.example' });
  assert.equal(answer.headers.get('access-control-allow-origin'), 'https://spa.example');
  assert.match(answer.headers.get('access-control-expose-headers') ?? '', /WWW-Authenticate/i);
  assert.match(answer.headers.get('access-control-expose-headers') ?? '', /DPoP-Nonce/i);
  for (const name of ['oauth-authorization-server', 'openid-configuration', 'oauth-protected-resource']) {
    const response = await fetch(`${server.baseUrl}/.well-known/${name}`, {
      headers: { origin: 'https://spa.example' },
    });
    assert.ok(
      ['*', 'https://spa.example'].includes(response.headers.get('access-control-allow-origin') ?? ''),
      name,
    );
  }
});
