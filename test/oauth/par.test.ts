/**
 * Pushed authorization requests (RFC 9126), signed requests (RFC 9101) and resource indicators (RFC 8707).
 */

import assert from 'node:assert/strict';
import { stringify } from 'node:querystring';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
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
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);

async function push(as: TestClient, form: Record<string, string> = {}) {
  const { verifier, challenge } = createPkce();
  const answer = await postForm(server, '/oauth/par', as, {
    client_id: as.id,
    redirect_uri: as.redirectUri,
    response_type: 'code',
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...form,
  });
  return { ...answer, verifier };
}

function pushedUrl(clientId: string, requestUri: string): string {
  return `${server.baseUrl}/oauth/authorize?${new URLSearchParams({ client_id: clientId, request_uri: requestUri })}`;
}

test('oauth 73: a pushed request returns 201 and a request_uri, and an invalid one its error as JSON', async () => {
  const { status, headers, body } = await push(client);
  assert.equal(status, 201);
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.match(String(body.request_uri), /^urn:ietf:params:oauth:request_uri:/);
  assert.equal(typeof body.expires_in, 'number');
  const bad = await push(client, { redirect_uri: 'https://evil.example/' });
  assert.equal(bad.status, 400);
  assert.equal(bad.body.error, 'invalid_request');
  const scope = await push(client, { scope: 'no:such' });
  assert.deepEqual([scope.status, scope.body.error], [400, 'invalid_scope']);
  const unknown = await push({ ...client, secret: 'wrong' });
  assert.deepEqual([unknown.status, unknown.body.error], [401, 'invalid_client']);
});

test('oauth 74: a pushed request is refused with a request_uri inside, by another method or when too large', async () => {
  const inside = await push(client, { request_uri: 'urn:ietf:params:oauth:request_uri:x' });
  assert.equal(inside.status, 400);
  assert.ok(['invalid_request', 'request_uri_not_supported'].includes(String(inside.body.error)));
  assert.equal((await fetch(`${server.baseUrl}/oauth/par`)).status, 405);
  const large = await push(client, { state: 'x'.repeat(100_000) });
  assert.equal(large.status, 413);
});

test('attack: numbers that PostgreSQL returns in full are refused in the claims parameter', async () => {
  const claims = (value: string) => `{"id_token":{"sub":{"values":[${value}]}}}`;
  const { status, body } = await push(client, {
    scope: 'openid',
    claims: claims(Array(1_500).fill('1e308').join()),
  });
  assert.deepEqual([status, body.error], [400, 'invalid_request']);
  assert.match(String(body.error_description), /numbers that cannot be stored/);
  assert.equal((await push(client, { scope: 'openid', claims: claims('7.5') })).status, 201);
});

/** The size of parameters as a URL has them. */
const parameterBytesMax = 16_384;
const tooLarge = /more than 16384 bytes when percent-encoded/;

test('attack: strangers store parameters larger than a URL, by pushed requests or for devices', async () => {
  const app = await createTestClient(server, {
    authMethod: 'none',
    grantTypes: ['authorization_code', deviceCodeGrantType],
  });
  const count = async () => {
    const { rows } = await sql`
      select (select count(*) from pushed_requests) as pushed, (select count(*) from device_codes) as devices`.execute(
      server.db,
    );
    return rows[0];
  };
  const before = await count();
  const values: [name: string, value: string][] = [
    ...['nonce', 'state', 'login_hint', 'ui_locales', 'acr_values', 'request', 'unknown'].map(
      (name): [string, string] => [name, 'x'.repeat(40_000)],
    ),
    ['claims', JSON.stringify({ userinfo: { name: { value: 'x'.repeat(17_000) } } })],
    // Encoded and as JSON they are larger than in the body.
    ['state', '\u0001'.repeat(6_000)],
  ];
  for (const [name, value] of values) {
    for (const { status, body } of [
      await push(app, { [name]: value }),
      await postForm(server, '/oauth/device', app, { [name]: value }),
    ]) {
      assert.deepEqual([status, body.error], [413, 'invalid_request'], name);
      assert.match(String(body.error_description), tooLarge, name);
    }
  }
  const body = `client_id=${app.id}&state=${'\u0001'.repeat(6_000)}`;
  const headers = { 'content-type': 'application/x-www-form-urlencoded' };
  const plain = await fetch(`${server.baseUrl}/oauth/device`, { method: 'POST', headers, body });
  assert.equal(plain.status, 413);
  assert.deepEqual(await count(), before);
});

test('attack: parameters that grow when they are stored are refused', async () => {
  const claims = `{"id_token":{"sub":{"values":[${Array(2_000).fill('1e20').join()}]}}}`;
  const { status, body } = await push(client, { scope: 'openid', claims });
  assert.deepEqual([status, body.error], [400, 'invalid_request']);
  assert.match(String(body.error_description), /more than 49152 bytes as JSON/);
});

test('a request with parameters of exactly 16,384 bytes is pushed and shows the sign-in page', async () => {
  const basic = { response_type: 'code', scope: 'read:posts', code_challenge_method: 'S256' };
  const others = { client_id: client.id, redirect_uri: client.redirectUri, login_hint: '' };
  const size = stringify({ ...basic, ...others, code_challenge: createPkce().challenge }).length;
  const hint = 'x'.repeat(parameterBytesMax - size);
  assert.equal((await push(client, { login_hint: `${hint}x` })).status, 413);
  const { status, body } = await push(client, { login_hint: hint });
  assert.equal(status, 201);
  const page = await new TestBrowser(server.baseUrl).open(pushedUrl(client.id, String(body.request_uri)));
  assert.match(page.text, /name="password"/);
});

test('a signed request may have as many bytes, and the client assertion does not count', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const signing = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks } });
  const sign = (claims: Record<string, string>) =>
    new SignJWT({ aud: server.baseUrl, iss: signing.id, ...claims })
      .setProtectedHeader({ alg: 'ES256', kid: 'one' })
      .setIssuedAt()
      .setNotBefore('0s')
      .setExpirationTime('1m')
      .sign(privateKey);
  const pushSigned = async (hintLength: number) =>
    postForm(server, '/oauth/par', signing, {
      client_id: signing.id,
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
      client_assertion: await sign({ sub: signing.id, jti: createPkce().verifier, more: 'x'.repeat(9_000) }),
      request: await sign({
        client_id: signing.id,
        redirect_uri: signing.redirectUri,
        response_type: 'code',
        scope: 'read:posts',
        code_challenge: createPkce().challenge,
        code_challenge_method: 'S256',
        login_hint: 'x'.repeat(hintLength),
      }),
    });
  const { status, body } = await pushSigned(11_500);
  assert.equal(status, 201, JSON.stringify(body));
  const page = await new TestBrowser(server.baseUrl).open(pushedUrl(signing.id, String(body.request_uri)));
  assert.match(page.text, /name="password"/);
  assert.match(String((await pushSigned(12_500)).body.error_description), tooLarge);
});

test('oauth 74: an address has a limit of pushed requests and authorization starts a minute, then 429', async () => {
  const limited = await startTestServer(
    { after },
    { NUNCIO_RATE_LIMIT: '3', NUNCIO_TRUST_PROXY: '127.0.0.1' },
  );
  // Apps with credentials have limits of their own (rate_limit.test.ts).
  const app = await createTestClient(limited, {
    authMethod: 'none',
    grantTypes: ['authorization_code', deviceCodeGrantType],
  });
  const form = {
    client_id: app.id,
    redirect_uri: app.redirectUri,
    response_type: 'code',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  };
  const begin = {
    par: (remote: string) => postForm(limited, '/oauth/par', app, form, { 'x-forwarded-for': remote }),
    device: (remote: string) => postForm(limited, '/oauth/device', app, {}, { 'x-forwarded-for': remote }),
    async authorize(remote: string) {
      const url = authorizationUrl(limited, app, form);
      const headers = { 'x-forwarded-for': remote };
      const { status, headers: answered } = await fetch(url, { redirect: 'manual', headers });
      return { status, headers: answered, body: {} as Record<string, unknown> };
    },
  };
  for (const [name, ask] of Object.entries(begin)) {
    const remote = `192.0.2.${name.length}`;
    await untilMinuteHasRoom();
    for (let count = 0; count < 3; count += 1) {
      const { status, body } = await ask(remote);
      assert.ok(status < 400, `${name}: ${status} ${JSON.stringify(body)}`);
    }
    const refused = await ask(remote);
    assert.equal(refused.status, 429, name);
    const seconds = Number(refused.headers.get('retry-after'));
    assert.ok(seconds >= 1 && seconds <= 60, name);
    assert.equal(refused.headers.get('cache-control'), 'no-store');
    if (name !== 'authorize') assert.equal(refused.body.error, 'temporarily_unavailable');
    // Other addresses are not affected.
    assert.ok((await ask(`198.51.100.${name.length}`)).status < 400, name);
  }
});

/** Waits if the minute is about to end, so that all requests count in the same minute. */
async function untilMinuteHasRoom(): Promise<void> {
  const left = 60_000 - (Date.now() % 60_000);
  if (left < 5_000) await new Promise((resolve) => setTimeout(resolve, left + 50));
}

test('oauth 75: a request_uri must be known, belongs to its client, and ends with the request', async () => {
  const { body, verifier } = await push(client);
  const requestUri = String(body.request_uri);
  const other = await createTestClient(server);
  const foreign = await new TestBrowser(server.baseUrl).open(pushedUrl(other.id, requestUri));
  assert.equal(foreign.leftTo, null);
  assert.equal(foreign.response.status, 400);
  const unknown = await new TestBrowser(server.baseUrl).open(
    pushedUrl(client.id, 'urn:ietf:params:oauth:request_uri:unknown'),
  );
  assert.equal(unknown.response.status, 400);

  const browser = new TestBrowser(server.baseUrl);
  await browser.open(pushedUrl(client.id, requestUri));
  const redirect = await passPages(browser, await browser.open(pushedUrl(client.id, requestUri)), account);
  const { status } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: redirect.searchParams.get('code') ?? '',
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  });
  assert.equal(status, 200);
  const again = await browser.open(pushedUrl(client.id, requestUri));
  assert.equal(again.leftTo?.searchParams.get('code') ?? null, null);
});

test('oauth 76: a client that must push is refused a plain request', async () => {
  const strict = await createTestClient(server, {
    metadata: { require_pushed_authorization_requests: true },
  });
  const { challenge } = createPkce();
  const parameters = { code_challenge: challenge, code_challenge_method: 'S256' };
  const { leftTo } = await new TestBrowser(server.baseUrl).open(authorizationUrl(server, strict, parameters));
  assert.equal(leftTo?.searchParams.get('error'), 'invalid_request');
  const { status } = await push(strict);
  assert.equal(status, 201);
});

test('openid-client pushes a request and signs one', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const signing = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks, request_object_signing_alg: 'ES256' },
  });
  const config = await openid.discovery(
    new URL(server.baseUrl),
    signing.id,
    undefined,
    openid.PrivateKeyJwt({ key: privateKey, kid: 'one' }),
    { execute: [openid.allowInsecureRequests] },
  );
  for (const build of [
    async (parameters: Record<string, string>) => openid.buildAuthorizationUrlWithPAR(config, parameters),
    async (parameters: Record<string, string>) =>
      openid.buildAuthorizationUrlWithJAR(config, parameters, { key: privateKey, kid: 'one' }),
  ]) {
    const verifier = openid.randomPKCECodeVerifier();
    const parameters = {
      redirect_uri: signing.redirectUri,
      scope: 'read:posts',
      code_challenge: await openid.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    };
    const url = await build(parameters);
    const browser = new TestBrowser(server.baseUrl);
    const redirect = await passPages(browser, await browser.open(url.href), account);
    const tokens = await openid.authorizationCodeGrant(config, redirect, { pkceCodeVerifier: verifier });
    assert.ok(tokens.access_token);
  }
});

test('oauth 35: a request object with another key and a foreign request_uri are refused', async () => {
  const { publicKey } = await generateKeyPair('ES256', { extractable: true });
  const other = await generateKeyPair('ES256');
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const signing = await createTestClient(server, { metadata: { jwks } });
  const { challenge } = createPkce();
  const claims = {
    iss: signing.id,
    aud: server.baseUrl,
    client_id: signing.id,
    redirect_uri: signing.redirectUri,
    response_type: 'code',
    scope: 'read:posts',
    code_challenge: challenge,
    code_challenge_method: 'S256',
  };
  const forged = await new SignJWT(claims)
    .setProtectedHeader({ alg: 'ES256', kid: 'one' })
    .setExpirationTime('1m')
    .sign(other.privateKey);
  const unsigned = `${Buffer.from('{"alg":"none"}').toString('base64url')}.${forged.split('.')[1]}.`;
  for (const request of [forged, unsigned]) {
    const page = await new TestBrowser(server.baseUrl).open(authorizationUrl(server, signing, { request }));
    const error = page.leftTo?.searchParams.get('error') ?? page.text;
    assert.match(error, /invalid_request_object/);
  }
  const url = authorizationUrl(server, signing, { request_uri: 'https://evil.example/request.jwt' });
  const page = await new TestBrowser(server.baseUrl).open(url);
  assert.match(page.leftTo?.searchParams.get('error') ?? page.text, /request_uri_not_supported/);
});

test('oauth 58: a resource that is relative, has a fragment or is unknown is invalid_target', async () => {
  const { challenge } = createPkce();
  for (const resource of ['relative', `${server.baseUrl}#x`, 'https://other.example/']) {
    const parameters = {
      resource,
      code_challenge: challenge,
      code_challenge_method: 'S256',
      scope: 'read:posts',
    };
    const { leftTo } = await new TestBrowser(server.baseUrl).open(
      authorizationUrl(server, client, parameters),
    );
    assert.equal(leftTo?.searchParams.get('error'), 'invalid_target', resource);
    const form = { grant_type: 'client_credentials', scope: 'read:posts', resource };
    const { status, body } = await postForm(server, '/oauth/token', client, form);
    assert.deepEqual([status, body.error], [400, 'invalid_target'], resource);
  }
});

test('oauth 59: the token endpoint refuses a resource that was not authorized', async () => {
  const { challenge, verifier } = createPkce();
  const parameters = {
    resource: server.baseUrl,
    code_challenge: challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
  };
  const browser = new TestBrowser(server.baseUrl);
  const redirect = await passPages(
    browser,
    await browser.open(authorizationUrl(server, client, parameters)),
    account,
  );
  const form = {
    grant_type: 'authorization_code',
    code: redirect.searchParams.get('code') ?? '',
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
    resource: server.baseUrl,
  };
  const { status, body } = await postForm(server, '/oauth/token', client, form);
  assert.equal(status, 200);
  const wider = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: String(body.refresh_token),
    resource: 'https://other.example/',
  });
  assert.deepEqual([wider.status, wider.body.error], [400, 'invalid_target']);
});

test('oauth 72: success and error redirects carry the issuer, and the metadata says so', async () => {
  const metadata = await (await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`)).json();
  assert.equal((metadata as Record<string, unknown>).authorization_response_iss_parameter_supported, true);
  const { leftTo } = await new TestBrowser(server.baseUrl).open(authorizationUrl(server, client, {}));
  assert.equal(leftTo?.searchParams.get('iss'), server.baseUrl);
});
