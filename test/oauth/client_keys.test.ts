/** Clients that authenticate with their own keys (RFC 7523, RFC 9101), registered by value or by URL. */

import assert from 'node:assert/strict';
import { randomBytes, randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const account = await createTestAccount(server);
const form = { grant_type: 'client_credentials', scope: 'read:posts' };
const assertionType = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';

async function createKey(kid: string, alg = 'ES256') {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true });
  return { kid, alg, privateKey, jwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' } };
}

type Key = Awaited<ReturnType<typeof createKey>>;

function sign(client: TestClient, key: Key, claims: Record<string, unknown> = {}): Promise<string> {
  const now = Math.floor(Date.now() / 1_000);
  const all = { iss: client.id, sub: client.id, aud: server.baseUrl, jti: newId(), iat: now, exp: now + 60 };
  return new SignJWT({ ...all, ...claims })
    .setProtectedHeader({ alg: key.alg, kid: key.kid })
    .sign(key.privateKey);
}

async function ask(assertion: string, path = '/oauth/token', more: Record<string, string> = form) {
  const authentication = { client_assertion: assertion, client_assertion_type: assertionType };
  return postForm(server, path, null, { ...more, ...authentication });
}

const key = await createKey('one');
const client = await createTestClient(server, {
  authMethod: 'private_key_jwt',
  metadata: { jwks: { keys: [key.jwk] } },
});

/** Accepted audiences of an assertion, besides the issuer. */
const tokenEndpoint = `${server.baseUrl}/oauth/token`;

test('oauth 16: an assertion’s audience is the issuer, the token endpoint or the endpoint called', async () => {
  for (const aud of [server.baseUrl, tokenEndpoint, [tokenEndpoint], [server.baseUrl, tokenEndpoint]]) {
    assert.equal((await ask(await sign(client, key, { aud }))).status, 200, JSON.stringify(aud));
  }
  for (const aud of [
    [],
    [server.baseUrl, 'https://other.example'],
    `${server.baseUrl}/`,
    `${server.baseUrl}/oauth/par`,
    `${server.baseUrl}/oauth/token/`,
    'https://other.example',
    7,
    undefined,
  ]) {
    const { status, body } = await ask(await sign(client, key, { aud }));
    assert.deepEqual([status, body.error], [401, 'invalid_client'], JSON.stringify(aud));
    assert.match(String(body.error_description), /^aud must be the issuer, .* or the token endpoint, /);
  }
});

test('oauth 16: each endpoint that authenticates clients accepts its own URL and the token endpoint’s', async () => {
  const par = { response_type: 'code', client_id: client.id, redirect_uri: client.redirectUri };
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  for (const [path, form, status] of [
    ['/oauth/par', { ...par, ...pkce }, 201],
    ['/oauth/revoke', { token: 'unknown' }, 200],
    ['/oauth/introspect', { token: 'unknown' }, 200],
  ] as const) {
    for (const aud of [`${server.baseUrl}${path}`, tokenEndpoint, server.baseUrl]) {
      assert.equal(
        (await ask(await sign(client, key, { aud }), path, form)).status,
        status,
        `${path} ${aud}`,
      );
    }
    const { status: refused } = await ask(
      await sign(client, key, { aud: `${server.baseUrl}/x` }),
      path,
      form,
    );
    assert.equal(refused, 401, path);
  }
});

test('oauth 16: a FAPI 2.0 client must name the issuer alone, as a string', async () => {
  const strict = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: {
      jwks: { keys: [key.jwk] },
      require_pushed_authorization_requests: true,
      dpop_bound_access_tokens: true,
    },
  });
  // The client is authenticated, but its DPoP proof is missing.
  assert.equal((await ask(await sign(strict, key))).body.error, 'invalid_grant');
  for (const aud of [[server.baseUrl], tokenEndpoint, [server.baseUrl, tokenEndpoint]]) {
    const { status, body } = await ask(await sign(strict, key, { aud }));
    assert.deepEqual([status, body.error], [401, 'invalid_client'], JSON.stringify(aud));
    assert.equal(body.error_description, `aud must be the issuer as a string: ${server.baseUrl}`);
  }
  // Without the key, the response does not reveal the requirements for a client.
  const stranger = await createKey('one');
  const guessed = await ask(await sign(strict, stranger, { aud: tokenEndpoint }));
  const unknown = await ask(await sign({ ...strict, id: newId() }, stranger, { aud: tokenEndpoint }));
  assert.deepEqual(guessed.body, unknown.body);
});

test('oauth 16: the default assertions of Spring Security and Authlib authenticate', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const rsa = await createKey('rsa', 'RS256');
  const { kid: _kid, ...unnamed } = rsa.jwk;
  const spring = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks: { keys: [rsa.jwk] } },
  });
  const authlib = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks: { keys: [unnamed] } },
  });
  // NimbusJwtClientAuthenticationParametersConverter: one audience, the token URI, for 60 seconds.
  const ofSpring = await new SignJWT({
    iss: spring.id,
    sub: spring.id,
    aud: tokenEndpoint,
    jti: randomUUID(),
    iat: now,
    exp: now + 60,
  })
    .setProtectedHeader({ kid: 'rsa', alg: 'RS256' })
    .sign(rsa.privateKey);
  assert.equal((await ask(ofSpring)).status, 200);
  // PrivateKeyJWT: the request URL as audience, for an hour, no `kid` for a PEM key, and a clock slightly ahead.
  for (const path of ['/oauth/token', '/oauth/revoke']) {
    const ofAuthlib = await new SignJWT({
      iss: authlib.id,
      aud: `${server.baseUrl}${path}`,
      sub: authlib.id,
      iat: now + 5,
      exp: now + 3_605,
      jti: randomBytes(27).toString('base64'),
    })
      .setProtectedHeader({ alg: 'RS256', typ: 'JWT' })
      .sign(rsa.privateKey);
    const { status, body } = await ask(ofAuthlib, path, path === '/oauth/token' ? form : { token: 'x' });
    assert.equal(status, 200, JSON.stringify(body));
  }
});

test('oauth 16: a refused assertion’s error says what is wrong, and not whether the client exists', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const stranger = await createKey('one');
  const secret = await createTestClient(server);
  const describe = async (assertion: string) => {
    const { status, body } = await ask(assertion);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
    return String(body.error_description);
  };
  for (const [claims, expected] of [
    [{ aud: 'https://other.example' }, /^aud /],
    [{ iss: 'other' }, /^iss and sub /],
    [{ jti: undefined }, /^jti is missing/],
    [{ jti: 7 }, /^jti is missing/],
    [{ exp: undefined }, /^exp is missing/],
    [{ exp: '7' }, /^exp is missing/],
    [{ exp: now - 60 }, /^exp is in the past/],
    [{ exp: now + 7_200 }, /^exp is too far in the future/],
    [{ nbf: now + 600 }, /^nbf is in the future/],
    [{ iat: now + 600 }, /^iat is in the future/],
    [{ iat: now - 7_200 }, /^iat is too far in the past/],
  ] as const) {
    const mine = await describe(await sign(client, key, claims));
    assert.match(mine, expected);
    // The response is the same for an unknown client, a client without keys, and a key of another client.
    assert.equal(await describe(await sign({ ...client, id: newId() }, key, claims)), mine);
    assert.equal(await describe(await sign(secret, key, claims)), mine);
    assert.equal(await describe(await sign(client, stranger, claims)), mine);
  }
  const forged = await describe(await sign(client, stranger));
  assert.match(forged, /^the assertion is not signed by a key registered for the client/);
  assert.equal(await describe(await sign(client, { ...key, kid: 'unknown' })), forged);
  assert.equal(await describe(await sign({ ...client, id: newId() }, key)), forged);
  assert.equal(await describe(await sign(secret, key)), forged);
  const assertion = await sign(client, key);
  assert.equal((await ask(assertion)).status, 200);
  assert.match(await describe(assertion), /^the assertion has already been used/);
});

test('oauth 16: an assertion may live one hour at most', async () => {
  const exp = Math.floor(Date.now() / 1_000) + 7_200;
  assert.equal((await ask(await sign(client, key, { exp }))).status, 401);
});

test('oauth 16: an assertion with a symmetric or unknown algorithm, foreign key or changed claim is refused', async () => {
  const jwk = Buffer.from(JSON.stringify(key.jwk));
  const now = Math.floor(Date.now() / 1_000);
  // The public key used as a shared secret.
  const confused = await new SignJWT({
    iss: client.id,
    sub: client.id,
    aud: server.baseUrl,
    jti: newId(),
    exp: now + 60,
  })
    .setProtectedHeader({ alg: 'HS256', kid: 'one' })
    .sign(jwk);
  const stranger = await createKey('one');
  const [header, payload, signature] = (await sign(client, key)).split('.') as [string, string, string];
  const claims = JSON.parse(Buffer.from(payload, 'base64url').toString());
  const changed = Buffer.from(JSON.stringify({ ...claims, exp: claims.exp + 1 })).toString('base64url');
  for (const assertion of [confused, await sign(client, stranger), `${header}.${changed}.${signature}`]) {
    const { status, body } = await ask(assertion);
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
  }
});

test('oauth 16: an assertion is used up when its request is refused for the grant', async () => {
  const assertion = await sign(client, key);
  const first = await ask(assertion, '/oauth/token', {
    grant_type: 'refresh_token',
    refresh_token: 'made-up',
  });
  assert.equal(first.body.error, 'invalid_grant');
  assert.equal((await ask(assertion)).status, 401);
});

test('oauth 17: an assertion is refused beside another client’s client_id or a second method', async () => {
  const other = await createTestClient(server);
  const mixed = await ask(await sign(client, key), '/oauth/token', { ...form, client_id: other.id });
  assert.ok(mixed.status === 400 || mixed.status === 401);
  assert.equal(mixed.body.access_token, undefined);
  const impostor = await ask(await sign({ ...client, id: other.id }, key));
  assert.deepEqual([impostor.status, impostor.body.error], [401, 'invalid_client']);
  const two = await ask(await sign(client, key), '/oauth/token', { ...form, client_secret: 'x' });
  assert.deepEqual([two.status, two.body.error], [400, 'invalid_request']);
});

test('oauth 16: keys by URL are fetched and cached', async () => {
  const first = await createKey('first');
  const second = await createKey('second', 'PS256');
  site.serve('/jwks', { body: { keys: [first.jwk] } });
  const remote = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/jwks') },
  });
  assert.equal((await ask(await sign(remote, first))).status, 200);
  // The client is read again after the notification of its registration.
  await sleep(300);
  assert.equal((await ask(await sign(remote, first))).status, 200);
  const fetched = site.requests('/jwks');
  for (let at = 0; at < 3; at += 1) assert.equal((await ask(await sign(remote, first))).status, 200);
  assert.equal(site.requests('/jwks'), fetched);
  // The server reads the next key a minute after it was published, or when the client's registration changes.
  site.serve('/jwks', { body: { keys: [first.jwk, second.jwk] } });
  const again = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/jwks') },
  });
  assert.equal((await ask(await sign(again, second))).status, 200);
});

test('oauth 16: a client is refused when its keys are unavailable, too large or at an internal address', async () => {
  site.serve('/away', { status: 302, headers: { location: '/jwks' } });
  site.serve('/broken', { body: '{' });
  site.serve('/private', {
    body: { keys: [{ ...(await exportJWK((await createKey('p')).privateKey)), kid: 'p' }] },
  });
  site.serve('/huge', { body: { keys: [key.jwk], padding: 'x'.repeat(100_000) } });
  site.serve('/inner', { body: { keys: [key.jwk] } });
  for (const jwks_uri of [
    site.url('/missing'),
    site.url('/away'),
    site.url('/broken'),
    site.url('/private'),
    site.url('/huge'),
    site.url('/inner', 'inside'),
    'https://127.0.0.1:25/jwks',
  ]) {
    const remote = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks_uri } });
    const { status, body } = await ask(await sign(remote, key));
    assert.ok(status === 400 || status === 401, `${jwks_uri} ${status}`);
    assert.ok(
      ['invalid_client', 'invalid_client_metadata'].includes(String(body.error)),
      JSON.stringify(body),
    );
    assert.doesNotMatch(JSON.stringify(body), /10\.0\.0|ECONN|inside/);
  }
});

/** Sends an authorization request as a signed object, and returns the result. */
async function request(claims: Record<string, unknown>, signer = key, more: Record<string, string> = {}) {
  const { challenge } = createPkce();
  const now = Math.floor(Date.now() / 1_000);
  const object = await new SignJWT({
    iss: client.id,
    aud: server.baseUrl,
    client_id: client.id,
    redirect_uri: client.redirectUri,
    response_type: 'code',
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    state: 'signed',
    nbf: now,
    exp: now + 60,
    ...claims,
  })
    .setProtectedHeader({ alg: signer.alg, kid: signer.kid, typ: 'oauth-authz-req+jwt' })
    .sign(signer.privateKey);
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(authorizationUrl(server, client, { request: object, ...more }));
  return { browser, page };
}

test('oauth 35: only the parameters inside a signed request count', async () => {
  const { browser, page } = await request({}, key, { scope: 'write:posts', state: 'beside' });
  const redirect = await passPages(browser, page, account);
  assert.ok(redirect.searchParams.get('code'));
  assert.equal(redirect.searchParams.get('state'), 'signed');
});

test('oauth 35: a request object is refused when it is for or by another party, expired or nested', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const other = await createTestClient(server);
  const stranger = await createKey('one');
  for (const [what, claims, signer] of [
    ['another audience', { aud: 'https://other.example' }, key],
    ['another issuer', { iss: other.id }, key],
    ['another client', { client_id: other.id }, key],
    ['expired', { exp: now - 60 }, key],
    ['not yet good', { nbf: now + 600 }, key],
    ['another key', {}, stranger],
    ['a request in itself', { request: 'x' }, key],
    ['a request_uri in itself', { request_uri: 'urn:x' }, key],
  ] as const) {
    const { page } = await request(claims, signer);
    const error = page.leftTo?.searchParams.get('error') ?? page.text;
    assert.match(error, /invalid_request_object/, what);
    assert.equal(page.leftTo?.searchParams.get('code') ?? null, null);
  }
});

test('oauth 35: a request object must name its lifetime, one hour at most', async () => {
  const now = Math.floor(Date.now() / 1_000);
  for (const claims of [
    { nbf: now - 3_000, exp: now + 500, iat: now - 3_000 },
    { nbf: now, exp: now + 3_600 },
    // A clock that is some seconds ahead, and one that is behind.
    { nbf: now + 5, exp: now + 65, iat: now + 5 },
    { nbf: now - 3_300, exp: now + 300 },
  ]) {
    const { page } = await request(claims);
    assert.match(page.text, /name="password"/, JSON.stringify(claims));
  }
  for (const [claims, expected] of [
    [{ exp: undefined }, /exp is missing/],
    [{ nbf: undefined }, /nbf is missing/],
    [{ exp: undefined, nbf: undefined }, /exp is missing/],
    [{ nbf: now, exp: now + 3_700 }, /at most 3600 seconds after its nbf/],
    [{ nbf: now - 10_000, exp: now + 60 }, /at most 3600 seconds after its nbf/],
    [{ nbf: 0, exp: 4_000_000_000 }, /at most 3600 seconds after its nbf/],
    [{ nbf: now + 5, exp: now + 5 }, /after its nbf|claims are invalid/],
    [{ iat: now + 600 }, /iat .* in the future/],
    [{ iat: now - 10_000 }, /iat .* more than 3600 seconds in the past/],
    [{ iat: 'now' }, /iat|claims are invalid/],
    [{ exp: String(now + 60) }, /exp|claims are invalid/],
  ] as const) {
    const { page } = await request(claims);
    assert.equal(page.leftTo?.searchParams.get('error'), 'invalid_request_object', JSON.stringify(claims));
    assert.match(page.leftTo?.searchParams.get('error_description') ?? '', expected);
  }
});

test('oauth 35: a pushed request object has the same limits', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const push = async (claims: Record<string, unknown>) => {
    const object = await new SignJWT({
      iss: client.id,
      aud: server.baseUrl,
      client_id: client.id,
      redirect_uri: client.redirectUri,
      response_type: 'code',
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
      nbf: now,
      exp: now + 60,
      ...claims,
    })
      .setProtectedHeader({ alg: key.alg, kid: key.kid, typ: 'oauth-authz-req+jwt' })
      .sign(key.privateKey);
    return ask(await sign(client, key), '/oauth/par', { client_id: client.id, request: object });
  };
  assert.equal((await push({})).status, 201);
  for (const claims of [
    { exp: undefined },
    { nbf: undefined },
    { nbf: now - 10_000 },
    { exp: now + 10_000 },
  ]) {
    const { status, body } = await push(claims);
    assert.deepEqual([status, body.error], [400, 'invalid_request_object'], JSON.stringify(claims));
    assert.match(String(body.error_description), /exp|nbf/);
  }
});

test('oauth 35: an unsigned request is refused when the client must sign its requests', async () => {
  const strict = await createTestClient(server, {
    metadata: { jwks: { keys: [key.jwk] }, require_signed_request_object: true },
  });
  const url = authorizationUrl(server, strict, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
  });
  const { leftTo } = await new TestBrowser(server.baseUrl).open(url);
  assert.equal(leftTo?.searchParams.get('error'), 'invalid_request');
});
