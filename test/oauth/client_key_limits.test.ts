/** Limits on the keys of clients: kinds, sizes and numbers, by value and by URL, and how many are tried for one signature. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { calculateJwkThumbprint, exportJWK, generateKeyPair, importJWK, type JWK, SignJWT } from 'jose';
import { sql } from 'kysely';
import { clientCreate } from '../../src/commands/client_create.ts';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof } from '../support/clients/dpop_proof.ts';
import { createExpensiveKey } from '../support/clients/expensive_key.ts';
import {
  authorizationUrl,
  createPkce,
  createTestClient,
  mintAccessToken,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const connectionOf = await createTraceReader(server);
const tokenUrl = `${server.baseUrl}/oauth/token`;

interface Key {
  alg: string;
  kid?: string;
  privateKey: CryptoKey;
  jwk: JWK;
}

async function createKey(
  kid?: string,
  alg = 'ES256',
  options: { modulusLength?: number } = {},
): Promise<Key> {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true, ...options });
  const name = kid === undefined ? {} : { kid };
  return { alg, ...name, privateKey, jwk: { ...(await exportJWK(publicKey)), ...name, alg } };
}

const createKeys = (kids: (string | undefined)[]) => Promise.all(kids.map((kid) => createKey(kid)));
const numbered = (count: number) => createKeys(Array.from({ length: count }, (_, index) => `k${index}`));
const jwks = (...keys: { jwk: JWK }[]) => ({ keys: keys.map(({ jwk }) => jwk) });

const { privateJwk, publicJwk } = createExpensiveKey();
const expensive: Key = {
  alg: 'RS256',
  kid: 'expensive',
  privateKey: (await importJWK(privateJwk, 'RS256')) as CryptoKey,
  jwk: { ...publicJwk, kid: 'expensive', alg: 'RS256' },
};

type Named = Pick<TestClient, 'id'>;

/** Requests a token with an assertion of the key. */
async function ask(client: Named, key: Key) {
  const now = Math.floor(Date.now() / 1_000);
  const assertion = await new SignJWT({ jti: newId(), iat: now, exp: now + 60 })
    .setIssuer(client.id)
    .setSubject(client.id)
    .setAudience(server.baseUrl)
    .setProtectedHeader({ alg: key.alg, ...(key.kid === undefined ? {} : { kid: key.kid }) })
    .sign(key.privateKey);
  return postForm(server, '/oauth/token', null, {
    grant_type: 'client_credentials',
    scope: 'read:posts',
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: assertion,
  });
}

async function accepts(client: Named, key: Key): Promise<void> {
  const { status, body } = await ask(client, key);
  assert.equal(status, 200, JSON.stringify(body));
}

/** Asserts the response of any wrong assertion, and what the developers of the app read. */
async function refuses(client: Named, key: Key, explanation: RegExp): Promise<void> {
  const { status, body, headers } = await ask(client, key);
  assert.deepEqual([status, body.error], [401, 'invalid_client']);
  assert.match(String(body.error_description), /^the assertion is not signed by a key registered/);
  const { refused } = await connectionOf(headers.get('request-id'));
  assert.match(refused.explanation ?? '', explanation);
}

/** A client that the registration has not checked, as one of an earlier version. */
const keyed = (metadata: Record<string, unknown>) =>
  createTestClient(server, { authMethod: 'private_key_jwt', metadata });

let documents = 0;
/** A client whose keys are at a URL. */
function remote(set: object, headers: Record<string, string> = {}) {
  documents += 1;
  const path = `/keys/${documents}`;
  site.serve(path, { body: set, headers });
  return keyed({ jwks_uri: site.url(path) });
}

const ec = await createKey('ec');
const supported: readonly Key[] = [
  ec,
  await createKey('ed', 'EdDSA'),
  await createKey('rsa', 'RS256'),
  await createKey('pss', 'PS256', { modulusLength: 3_072 }),
  await createKey('rsa4096', 'RS256', { modulusLength: 4_096 }),
];

/** Keys that are not supported, and what is wrong with them. */
const modulus = (bits: number) => {
  const bytes = Buffer.alloc(bits / 8, 0xff);
  return bytes.toString('base64url');
};
const exponentError = 'must have the RSA exponent 65537 (e AQAB)';
const modulusError = 'must have an RSA modulus of 2048 to 4096 bits';
const unsupported: readonly (readonly [what: string, jwk: JWK, error: string])[] = [
  ['a huge exponent', expensive.jwk, exponentError],
  ['the exponent 3', { ...publicJwk, e: 'Aw' }, exponentError],
  ['the exponent 65537 with a leading zero', { ...publicJwk, e: 'AAEAAQ' }, exponentError],
  ['no exponent', { kty: 'RSA', n: publicJwk.n as string }, exponentError],
  ['4104 bits', { kty: 'RSA', e: 'AQAB', n: modulus(4_104) }, modulusError],
  ['16384 bits', { kty: 'RSA', e: 'AQAB', n: modulus(16_384) }, modulusError],
  ['1024 bits', { kty: 'RSA', e: 'AQAB', n: modulus(1_024) }, modulusError],
  ['a modulus that is no base64url', { kty: 'RSA', e: 'AQAB', n: `${modulus(3_072)}=` }, modulusError],
  [
    'another curve',
    { kty: 'EC', crv: 'secp256k1', x: 'AAAA', y: 'AAAA' },
    'must have a crv of P-256, P-384, P-521',
  ],
  ['another Edwards curve', { kty: 'OKP', crv: 'Ed448', x: 'AAAA' }, 'must have a crv of Ed25519, X25519'],
];

test('oauth 16: keys of every supported kind and size authenticate, by value and by URL', async () => {
  // A type of key that the types of `jose` do not have.
  const unknown = { kty: 'FUTURE', pub: 'AAAA' } as unknown as JWK;
  const set = { keys: [unknown, ...supported.map(({ jwk }) => jwk)] };
  for (const client of [await keyed({ jwks: set }), await remote(set)]) {
    for (const key of supported) await accepts(client, key);
  }
});

test('oauth 16: a key with a huge exponent never verifies, and the other keys of its set do', async () => {
  const set = jwks(expensive, ec);
  for (const client of [await keyed({ jwks: set }), await remote(set)]) {
    await refuses(
      client,
      expensive,
      /ignored because of limits: key expensive must have the RSA exponent 65537/,
    );
    await accepts(client, ec);
  }
});

async function send(url: string, method: string, body: object, token?: unknown) {
  await sql`delete from registration_windows`.execute(server.db);
  const authorization = token === undefined ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch(url, {
    method,
    headers: { 'content-type': 'application/json', ...authorization },
    body: JSON.stringify(body),
  });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const registration = {
  redirect_uris: ['https://keys.example/cb'],
  token_endpoint_auth_method: 'private_key_jwt',
};

test('a registration and its update refuse keys that are not supported', async () => {
  const register = (set: object) =>
    send(`${server.baseUrl}/oauth/register`, 'POST', { ...registration, jwks: set });
  const made = await register(jwks(...supported));
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const { registration_client_uri: uri, registration_access_token: token, ...metadata } = made.body;
  const { client_id_issued_at: _, ...changeable } = metadata;
  for (const [what, jwk, error] of unsupported) {
    const set = { keys: [ec.jwk, jwk] };
    const expected = [400, 'invalid_client_metadata', `jwks.keys[1] ${error}`];
    const { status, body } = await register(set);
    assert.deepEqual([status, body.error, body.error_description], expected, what);
    const changed = await send(String(uri), 'PUT', { ...changeable, jwks: set }, token);
    assert.deepEqual([changed.status, changed.body.error_description], [400, expected[2]], what);
  }
  for (const [set, error] of [
    [jwks(...(await numbered(21))), 'jwks has more than 20 keys'],
    [{}, 'jwks must have an array of keys (RFC 7517)'],
    [{ keys: ['key'] }, 'jwks must have an array of keys (RFC 7517)'],
  ] as const) {
    const { status, body } = await register(set);
    assert.deepEqual([status, body.error_description], [400, error]);
  }
});

test('apps of accounts refuse keys that are not supported, with a pointer', async () => {
  const user = await createConsoleUser(server);
  const app = { ...registration, client_name: 'Keys' };
  const made = await user.request('POST', '/apps', { json: { ...app, jwks: jwks(ec) } });
  assert.equal(made.status, 201, made.text);
  for (const [what, jwk, error] of unsupported) {
    for (const [method, path] of [
      ['POST', '/apps'],
      ['PATCH', `/apps/${made.body.client_id}`],
    ] as const) {
      const json = method === 'POST' ? { ...app, jwks: { keys: [jwk] } } : { jwks: { keys: [jwk] } };
      const { status, body, text } = await user.request(method, path, { json });
      assert.deepEqual([status, body.code], [422, 'invalid-client-metadata'], `${what}: ${text}`);
      const [{ pointer, message }] = body.errors;
      assert.deepEqual([pointer, message], ['/jwks', `jwks.keys[0] ${error}`], text);
    }
  }
});

test('client create refuses keys that are not supported', async () => {
  const create = (set: object) =>
    clientCreate.run(
      {
        values: {
          name: 'Keys',
          'auth-method': 'private_key_jwt',
          grant: ['client_credentials'],
          metadata: JSON.stringify({ jwks: set }),
        },
        positionals: [],
      },
      {
        config: { ...server.config, databaseUrl: server.databaseUrl },
        print: () => {},
        printError: () => {},
      },
    );
  await create(jwks(...supported));
  for (const [what, jwk, error] of unsupported) {
    const message = `--metadata: jwks.keys[0] ${error}`;
    await assert.rejects(create({ keys: [jwk] }), { name: 'UsageError', message }, what);
  }
  const many = jwks(...(await numbered(21)));
  await assert.rejects(create(many), { message: '--metadata: jwks has more than 20 keys' });
});

test('a metadata document with a huge exponent is refused, and the page says why', async () => {
  const id = site.url('/app.json');
  const { challenge } = createPkce();
  const redirectUri = 'https://reader.apps.example/callback';
  site.serve('/app.json', {
    body: { ...registration, client_id: id, redirect_uris: [redirectUri], jwks: jwks(expensive) },
  });
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256', scope: 'read:posts' };
  const { response, text } = await new TestBrowser(server.baseUrl).open(
    authorizationUrl(server, { id, redirectUri }, pkce),
  );
  assert.equal(response.status, 400);
  assert.match(text, /jwks\.keys\[0\] must have the RSA exponent 65537/);
});

test('oauth 16: 20 keys with a kid authenticate, by value and by URL', async () => {
  const keys = await numbered(20);
  for (const client of [await keyed({ jwks: jwks(...keys) }), await remote(jwks(...keys))]) {
    for (const key of [keys[0], keys[10], keys[19]] as Key[]) await accepts(client, key);
  }
});

for (const count of [21, 62]) {
  test(`a fetched set of ${count} keys is refused, with an explanation`, async () => {
    const keys = await numbered(count);
    const client = await remote(jwks(...keys));
    // The second request does not fetch the set again.
    for (const key of [keys[0], keys[20]] as Key[]) {
      await refuses(client, key, /the jwks_uri https:\S+ has more than 20 keys/);
    }
  });
}

test('a set of the maximum size with huge exponents is refused', async () => {
  const set = { keys: Array.from({ length: 60 }, () => expensive.jwk) };
  await refuses(await remote(set), expensive, /has more than 20 keys/);
});

test('oauth 16: without a kid, two keys are tried, and more are refused', async () => {
  const keys = await createKeys([undefined, undefined, undefined]);
  const two = jwks(...keys.slice(0, 2));
  for (const client of [await keyed({ jwks: two }), await remote(two)]) {
    for (const key of keys.slice(0, 2)) await accepts(client, key);
  }
  for (const client of [await keyed({ jwks: jwks(...keys) }), await remote(jwks(...keys))]) {
    const explanation = /3 keys of the app match\. Give each key its own kid/;
    await Promise.all(keys.map((key) => refuses(client, key, explanation)));
  }
  // Keys with other algorithms do not count.
  const others = [...keys.slice(0, 2), ...supported.slice(1)];
  await accepts(await keyed({ jwks: jwks(...others) }), keys[1] as Key);
});

test('more than two keys with the same kid and algorithm are refused', async () => {
  const keys = await createKeys(Array.from({ length: 20 }, () => 'same'));
  const client = await keyed({ jwks: jwks(...keys) });
  const tried = [keys[0], keys[19]] as Key[];
  await Promise.all(tried.map((key) => refuses(client, key, /20 keys of the app match/)));
});

async function requestWith(client: TestClient, key: Key) {
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
    nbf: now,
    exp: now + 60,
  })
    .setProtectedHeader({ alg: key.alg, ...(key.kid === undefined ? {} : { kid: key.kid }) })
    .sign(key.privateKey);
  const parameters = { client_id: client.id, request: object };
  return fetch(`${server.baseUrl}/oauth/authorize?${new URLSearchParams(parameters)}`, {
    redirect: 'manual',
  });
}

test('oauth 35: the limits apply to signed request objects', async () => {
  const two = await createKeys([undefined, undefined]);
  const good = await createTestClient(server, { metadata: { jwks: jwks(...two) } });
  for (const key of two)
    assert.match((await requestWith(good, key)).headers.get('location') ?? '', /interaction/);
  const three = await createKeys([undefined, undefined, undefined]);
  for (const [keys, explanation] of [
    [three, /3 keys of the app match/],
    [[expensive], /key expensive must have the RSA exponent 65537/],
  ] as const) {
    const client = await createTestClient(server, { metadata: { jwks: jwks(...keys) } });
    const response = await requestWith(client, keys[0] as Key);
    assert.doesNotMatch(response.headers.get('location') ?? '', /interaction/);
    const { refused } = await connectionOf(response.headers.get('request-id'));
    assert.equal(refused.error, 'invalid_request_object');
    assert.match(refused.explanation ?? '', explanation);
  }
});

test('keys rotate, by value and by URL', async () => {
  const user = await createConsoleUser(server);
  const [old, next] = (await createKeys(['old', 'next'])) as [Key, Key];
  const isAccepted = (status: number) => status === 200;
  for (const [first, both, last] of [
    [{ jwks: jwks(old) }, { jwks: jwks(old, next) }, { jwks: jwks(next) }],
    [{ jwks_uri: site.url('/rotating') }, { client_name: 'Both' }, { client_name: 'Last' }],
  ]) {
    const app = {
      ...registration,
      client_name: 'First',
      grant_types: ['client_credentials'],
      redirect_uris: [],
      token_endpoint_auth_signing_alg: 'ES256',
    };
    site.serve('/rotating', { body: jwks(old) });
    const made = await user.request('POST', '/apps', { json: { ...app, ...first } });
    assert.equal(made.status, 201, made.text);
    const client = { id: made.body.client_id };
    const change = (json: object) => user.request('PATCH', `/apps/${client.id}`, { json });
    const statusOf = async (key: Key) => (await ask(client, key)).status;
    await accepts(client, old);
    site.serve('/rotating', { body: jwks(old, next) });
    assert.equal((await change(both as object)).status, 200);
    await until(() => statusOf(next), isAccepted);
    await accepts(client, old);
    site.serve('/rotating', { body: jwks(next) });
    assert.equal((await change(last as object)).status, 200);
    await until(() => statusOf(next), isAccepted);
    await until(
      () => statusOf(old),
      (status) => status === 401,
    );
  }
});

test('oauth 78: a DPoP proof by an RSA key is refused, also with another algorithm in its header', async () => {
  const jkt = await calculateJwkThumbprint(publicJwk);
  const key = { privateKey: expensive.privateKey, publicJwk, jkt };
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, {
    client,
    scopes: ['read:posts'],
    claims: { cnf: { jkt } },
  });
  const api = `${server.baseUrl}/api`;
  for (const alg of ['RS256', 'PS256', 'ES256']) {
    // The signature is that of RS256, whatever the header says.
    const proofFor = async (method: string, url: string, token = '') => {
      const proof = await createProof(key, { method, url, token }, { header: { alg: 'RS256' } });
      if (alg === 'RS256') return proof;
      const header = Buffer.from(JSON.stringify({ alg, typ: 'dpop+jwt', jwk: publicJwk })).toString(
        'base64url',
      );
      return [header, ...proof.split('.').slice(1)].join('.');
    };
    const form = { grant_type: 'client_credentials', scope: 'read:posts' };
    const dpop = await proofFor('POST', tokenUrl);
    const { status, body } = await postForm(server, '/oauth/token', client, form, { dpop });
    assert.deepEqual([status, body.error], [400, 'invalid_dpop_proof'], alg);
    const headers = { authorization: `DPoP ${accessToken}`, dpop: await proofFor('GET', api, accessToken) };
    const response = await fetch(api, { headers });
    assert.equal(response.status, 401, alg);
    assert.match(response.headers.get('www-authenticate') ?? '', /invalid_dpop_proof/);
  }
});
