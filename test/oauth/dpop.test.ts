/** DPoP (RFC 9449) at the token endpoint and at the API. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type IncomingMessage, type OutgoingHttpHeaders, request } from 'node:http';
import { text as readText } from 'node:stream/consumers';
import { after, test } from 'node:test';
import { calculateJwkThumbprint, decodeJwt, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';
import * as openid from 'openid-client';
import { newId } from '../../src/crypto/ids.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorize,
  basic,
  createTestAccount,
  createTestClient,
  obtainCode,
  obtainCodeForm,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const publicClient = await createTestClient(server, {
  authMethod: 'none',
  grantTypes: ['authorization_code', 'refresh_token'],
});
const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
const jwk = await exportJWK(publicKey);
const machine = { grant_type: 'client_credentials', scope: 'read:posts' };

interface ProofOptions {
  claims?: Record<string, unknown>;
  header?: Record<string, unknown>;
  key?: CryptoKey | Uint8Array;
}

async function proof(method: string, url: string, options: ProofOptions = {}): Promise<string> {
  return new SignJWT({
    jti: newId(),
    htm: method,
    htu: url,
    iat: Math.floor(Date.now() / 1_000),
    ...options.claims,
  })
    .setProtectedHeader({ alg: 'ES256', typ: 'dpop+jwt', jwk, ...options.header })
    .sign(options.key ?? privateKey);
}

const tokenUrl = `${server.baseUrl}/oauth/token`;
const ath = (token: string) => createHash('sha256').update(token).digest('base64url');

async function boundToken(): Promise<string> {
  const dpop = await proof('POST', tokenUrl);
  const { status, body } = await postForm(server, '/oauth/token', client, machine, { dpop });
  assert.equal(status, 200, JSON.stringify(body));
  return String(body.access_token);
}

async function api(authorization: string, headers: Record<string, string> = {}, at: TestServer = server) {
  const response = await fetch(`${at.baseUrl}/api`, { headers: { authorization, ...headers } });
  return { status: response.status, challenge: response.headers.get('www-authenticate') ?? '', response };
}

/** Sends a request with exactly the given headers, which may repeat a name. */
async function exchange(method: string, url: string, body: string, headers: OutgoingHttpHeaders) {
  const sent = request(url, { method, headers });
  sent.end(body);
  const [response] = (await once(sent, 'response')) as [IncomingMessage];
  const challenge = response.headers['www-authenticate'] ?? '';
  return { status: response.statusCode, challenge, text: await readText(response) };
}

test('oauth 77: a valid proof binds the token to its key', async () => {
  const dpop = await proof('POST', tokenUrl);
  const { body } = await postForm(server, '/oauth/token', client, machine, { dpop });
  assert.equal(body.token_type, 'DPoP');
  const { cnf } = decodeJwt(String(body.access_token)) as { cnf?: { jkt?: string } };
  assert.equal(cnf?.jkt, await calculateJwkThumbprint(jwk));
});

test('oauth 78: a proof with any wrong part is invalid_dpop_proof', async () => {
  const now = Math.floor(Date.now() / 1_000);
  const other = await generateKeyPair('ES256');
  const privateJwk: JWK = await exportJWK(privateKey);
  const cases: [string, ProofOptions][] = [
    ['typ', { header: { typ: 'JWT' } }],
    ['HS256', { header: { alg: 'HS256' }, key: new TextEncoder().encode('x'.repeat(32)) }],
    ['private key in the header', { header: { jwk: privateJwk } }],
    ['signature', { key: other.privateKey }],
    ['no jti', { claims: { jti: undefined } }],
    ['no htm', { claims: { htm: undefined } }],
    ['no htu', { claims: { htu: undefined } }],
    ['no iat', { claims: { iat: undefined } }],
    ['htm', { claims: { htm: 'GET' } }],
    ['htu', { claims: { htu: 'https://other.example/oauth/token' } }],
    ['old', { claims: { iat: now - 3_600 } }],
    ['far ahead', { claims: { iat: now + 3_600 } }],
  ];
  for (const [what, options] of cases) {
    const dpop = await proof('POST', tokenUrl, options);
    const { status, body } = await postForm(server, '/oauth/token', client, machine, { dpop });
    assert.equal(status, 400, what);
    assert.ok(
      ['invalid_dpop_proof', 'use_dpop_nonce'].includes(String(body.error)),
      `${what}: ${body.error}`,
    );
  }
  const none = Buffer.from(JSON.stringify({ alg: 'none', typ: 'dpop+jwt', jwk })).toString('base64url');
  const unsigned = `${none}.${(await proof('POST', tokenUrl)).split('.')[1]}.`;
  const answer = await postForm(server, '/oauth/token', client, machine, { dpop: unsigned });
  assert.equal(answer.body.error, 'invalid_dpop_proof');

  const used = await proof('POST', tokenUrl);
  assert.equal((await postForm(server, '/oauth/token', client, machine, { dpop: used })).status, 200);
  assert.equal((await postForm(server, '/oauth/token', client, machine, { dpop: used })).status, 400);
  const withQuery = await proof('POST', `${tokenUrl}?x=1#y`);
  assert.equal((await postForm(server, '/oauth/token', client, machine, { dpop: withQuery })).status, 200);
});

test('oauth 78: exactly one of 20 concurrent uses of a proof succeeds', async () => {
  const dpop = await proof('POST', tokenUrl);
  const answers = await Promise.all(
    Array.from({ length: 20 }, () => postForm(server, '/oauth/token', client, machine, { dpop })),
  );
  assert.equal(answers.filter(({ status }) => status === 200).length, 1);
  const token = await boundToken();
  const shown = await proof('GET', `${server.baseUrl}/api`, { claims: { ath: ath(token) } });
  const shows = await Promise.all(Array.from({ length: 20 }, () => api(`DPoP ${token}`, { dpop: shown })));
  assert.equal(shows.filter(({ status }) => status === 200).length, 1);
});

test('oauth 78: two DPoP headers are invalid_dpop_proof at the token endpoint and at the API', async () => {
  const token = await boundToken();
  const [tokenAuthorization, ownUrl] = [basic(client.id, client.secret ?? ''), `${server.baseUrl}/api`];
  const claims = { ath: ath(token) };
  for (const join of [
    (one: string, two: string) => [one, two],
    (one: string, two: string) => `${one}, ${two}`,
  ]) {
    const atToken = await exchange('POST', tokenUrl, new URLSearchParams(machine).toString(), {
      authorization: tokenAuthorization,
      'content-type': 'application/x-www-form-urlencoded',
      dpop: join(await proof('POST', tokenUrl), await proof('POST', tokenUrl)),
    });
    assert.deepEqual([atToken.status, JSON.parse(atToken.text).error], [400, 'invalid_dpop_proof']);
    const atApi = await exchange('GET', ownUrl, '', {
      authorization: `DPoP ${token}`,
      dpop: join(await proof('GET', ownUrl, { claims }), await proof('GET', ownUrl, { claims })),
    });
    assert.equal(atApi.status, 401);
    assert.match(atApi.challenge, /^DPoP error="invalid_dpop_proof"/);
  }
});

test('oauth 79: a proof is accepted when the client’s clock is 10 seconds off', async () => {
  const now = Math.floor(Date.now() / 1_000);
  for (const iat of [now - 10, now + 8]) {
    const dpop = await proof('POST', tokenUrl, { claims: { iat } });
    assert.equal((await postForm(server, '/oauth/token', client, machine, { dpop })).status, 200);
  }
});

test('oauth 79: the token endpoint accepts a proof 300 seconds off and refuses one 301 seconds off', async (t) => {
  // The clock is stopped, so that a slow machine does not increase the age of a proof.
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
  const now = Math.floor(Date.now() / 1_000);
  for (const [offset, status] of [
    [-300, 200],
    [300, 200],
    [-301, 400],
    [301, 400],
  ] as const) {
    const dpop = await proof('POST', tokenUrl, { claims: { iat: now + offset } });
    const answer = await postForm(server, '/oauth/token', client, machine, { dpop });
    assert.equal(answer.status, status, `${offset} s: ${JSON.stringify(answer.body)}`);
    if (status === 400) assert.equal(answer.body.error, 'use_dpop_nonce', `${offset} s`);
  }
});

test('oauth 79: the API accepts a proof 60 seconds off and refuses one 62 seconds off', async (t) => {
  const token = await boundToken();
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() });
  const now = Math.floor(Date.now() / 1_000);
  for (const [offset, status] of [
    [-59, 200],
    [60, 200],
    [-62, 401],
    [62, 401],
  ] as const) {
    const claims = { iat: now + offset, ath: ath(token) };
    const dpop = await proof('GET', `${server.baseUrl}/api`, { claims });
    const { status: found, challenge } = await api(`DPoP ${token}`, { dpop });
    assert.equal(found, status, `${offset} s`);
    if (status === 401) assert.match(challenge, /^DPoP error="invalid_dpop_proof"/, `${offset} s`);
  }
});

test('oauth 80: a required nonce is given in the error and accepted in the next proof', async (context) => {
  const platform = createPlatform({ oauth: { dpopNonce: true } });
  const strict = await startTestServer(context, {}, 'dev', platform);
  const machineClient = await createTestClient(strict);
  const url = `${strict.baseUrl}/oauth/token`;
  const first = await postForm(strict, '/oauth/token', machineClient, machine, {
    dpop: await proof('POST', url),
  });
  assert.deepEqual([first.status, first.body.error], [400, 'use_dpop_nonce']);
  const nonce = first.headers.get('dpop-nonce');
  const dpop = await proof('POST', url, { claims: { nonce } });
  const second = await postForm(strict, '/oauth/token', machineClient, machine, { dpop });
  assert.equal(second.status, 200);
  const token = String(second.body.access_token);
  const claims = { ath: ath(token) };
  const refused = await api(
    `DPoP ${token}`,
    { dpop: await proof('GET', `${strict.baseUrl}/api`, { claims }) },
    strict,
  );
  assert.equal(refused.status, 401);
  assert.match(refused.challenge, /^DPoP error="use_dpop_nonce"/);
  const given = refused.response.headers.get('dpop-nonce');
  const good = await proof('GET', `${strict.baseUrl}/api`, { claims: { ...claims, nonce: given } });
  assert.equal((await api(`DPoP ${token}`, { dpop: good }, strict)).status, 200);
});

test('oauth 81: the API requires the DPoP scheme, the token’s hash and the same key', async () => {
  const token = await boundToken();
  const url = `${server.baseUrl}/api`;
  const other = await generateKeyPair('ES256', { extractable: true });
  const otherJwk = await exportJWK(other.publicKey);
  const cases: [string, string | undefined][] = [
    ['no proof', undefined],
    ['no ath', await proof('GET', url)],
    ['another token’s ath', await proof('GET', url, { claims: { ath: ath('other') } })],
    ['another method', await proof('POST', url, { claims: { ath: ath(token) } })],
    ['another address', await proof('GET', `${url}/x`, { claims: { ath: ath(token) } })],
    ['an empty jti', await proof('GET', url, { claims: { ath: ath(token), jti: '' } })],
    ['a long jti', await proof('GET', url, { claims: { ath: ath(token), jti: 'x'.repeat(513) } })],
    ['a long proof', await proof('GET', url, { claims: { ath: ath(token), filler: 'x'.repeat(8_192) } })],
    [
      'another key',
      await proof('GET', url, {
        claims: { ath: ath(token) },
        header: { jwk: otherJwk },
        key: other.privateKey,
      }),
    ],
  ];
  for (const [what, dpop] of cases) {
    const { status, challenge } = await api(`DPoP ${token}`, dpop === undefined ? {} : { dpop });
    assert.equal(status, 401, what);
    assert.match(challenge, /^DPoP error="invalid_(token|dpop_proof)".*algs="ES256/, what);
  }
  const good = await proof('GET', url, { claims: { ath: ath(token) } });
  assert.equal((await api(`DPoP ${token}`, { dpop: good })).status, 200);
});

test('oauth 82: a bound token is refused as bearer token, an unbound one as DPoP token', async () => {
  const token = await boundToken();
  assert.equal((await api(`Bearer ${token}`)).status, 401);
  const { body } = await postForm(server, '/oauth/token', client, machine);
  const unbound = String(body.access_token);
  const dpop = await proof('GET', `${server.baseUrl}/api`, { claims: { ath: ath(unbound) } });
  assert.equal((await api(`DPoP ${unbound}`, { dpop })).status, 401);
});

test('oauth 83: a public client’s refresh token is bound to its key', async () => {
  const { code, verifier } = await obtainCode(server, {
    account,
    client: publicClient,
    scopes: ['read:posts'],
  });
  const form = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: publicClient.redirectUri,
  };
  const dpop = await proof('POST', tokenUrl);
  const { body } = await postForm(server, '/oauth/token', publicClient, form, { dpop });
  const refresh = { grant_type: 'refresh_token', refresh_token: String(body.refresh_token) };
  const other = await generateKeyPair('ES256', { extractable: true });
  const header = { jwk: await exportJWK(other.publicKey) };
  const foreign = await proof('POST', tokenUrl, { header, key: other.privateKey });
  assert.equal(
    (await postForm(server, '/oauth/token', publicClient, refresh, { dpop: foreign })).status,
    400,
  );
  assert.equal((await postForm(server, '/oauth/token', publicClient, refresh)).status, 400);
  const own = await proof('POST', tokenUrl);
  assert.equal((await postForm(server, '/oauth/token', publicClient, refresh, { dpop: own })).status, 200);
});

test('oauth 83: a code requested with dpop_jkt is refused without that key', async () => {
  const other = await generateKeyPair('ES256', { extractable: true });
  const parameters = { dpop_jkt: await calculateJwkThumbprint(await exportJWK(other.publicKey)) };
  const { form } = await obtainCodeForm(server, { account, client, scopes: ['read:posts'], parameters });
  const dpop = await proof('POST', tokenUrl);
  const { status, body } = await postForm(server, '/oauth/token', client, form, { dpop });
  assert.deepEqual([status, body.error], [400, 'invalid_grant']);
});

test('a client that must use DPoP gets no token without a proof', async () => {
  const strict = await createTestClient(server, { metadata: { dpop_bound_access_tokens: true } });
  assert.equal((await postForm(server, '/oauth/token', strict, machine)).status, 400);
  const dpop = await proof('POST', tokenUrl);
  assert.equal((await postForm(server, '/oauth/token', strict, machine, { dpop })).status, 200);
});

test('openid-client completes the code flow and userinfo with DPoP', async () => {
  const config = await openid.discovery(new URL(server.baseUrl), client.id, client.secret ?? '', undefined, {
    execute: [openid.allowInsecureRequests],
  });
  const handle = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair('ES256'));
  const verifier = openid.randomPKCECodeVerifier();
  const url = openid.buildAuthorizationUrl(config, {
    redirect_uri: client.redirectUri,
    scope: 'openid read:profile',
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  });
  const browser = new TestBrowser(server.baseUrl);
  const redirect = await passPages(browser, await browser.open(url.href), account);
  const options = { DPoP: handle };
  const tokens = await openid.authorizationCodeGrant(
    config,
    redirect,
    { pkceCodeVerifier: verifier },
    undefined,
    options,
  );
  const info = await openid.fetchUserInfo(config, tokens.access_token, account.id, options);
  assert.equal(info.sub, account.id);
  assert.ok(await authorize(server, { account, client, scopes: ['read:posts'] }));
});
