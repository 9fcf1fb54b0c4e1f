/**
 * `nuncio/protect` with a real Nuncio server: which access tokens an external API accepts, and how it refuses
 * others (RFC 6750, RFC 9068 section 4, RFC 9728).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { generateKeyPair, importJWK, SignJWT } from 'jose';
import { loadSigningKeys } from '../../src/oauth/signing_keys.ts';
import { createProtector, type ErrorResponse, type Grant } from '../../src/protect/protect.ts';
import {
  authorize,
  clientToken,
  createTestAccount,
  createTestClient,
  mintAccessToken,
} from '../support/clients/oauth.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';

const url = 'https://notes.example';
const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
// Most tests use tokens for the issuer's own API, which are the easiest to get. Tests below cover a separate audience.
const protect = createProtector({ issuer: server.baseUrl, url, audience: server.baseUrl, offline: true });

/** Requests `/notes`, which requires `read:posts`. */
function ask(authorization?: string, target = '/notes'): Promise<Grant | ErrorResponse> {
  const headers = authorization === undefined ? {} : { authorization };
  return protect.check({ method: 'GET', url: target, headers }, 'read:posts');
}

function refused(outcome: Grant | ErrorResponse): ErrorResponse & { challenge: string } {
  assert.ok(!outcome.granted, 'it was let through');
  return { ...outcome, challenge: outcome.headers['www-authenticate'] ?? '' };
}

function granted(outcome: Grant | ErrorResponse): Grant {
  assert.ok(outcome.granted, outcome.granted ? '' : outcome.body);
  return outcome;
}

async function assertInvalid(token: string): Promise<void> {
  const { status, challenge } = refused(await ask(`Bearer ${token}`));
  assert.equal(status, 401);
  assert.match(challenge, /^Bearer error="invalid_token"/);
}

test('a user’s token from the code flow has account, client, grant and scopes', async () => {
  const { accessToken, grantId } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const { principal, headers } = granted(await ask(`Bearer ${accessToken}`));
  assert.equal(principal.accountId, account.id);
  assert.equal(principal.clientId, client.id);
  assert.equal(principal.grantId, grantId);
  assert.deepEqual([...principal.scopes], ['read:posts']);
  assert.ok(principal.expiresAt > Date.now() / 1_000 + 800);
  assert.deepEqual(headers, {});
});

test('a client’s own token has no account', async () => {
  const token = await clientToken(server, client, ['read:posts']);
  const { principal } = granted(await ask(`Bearer ${token}`));
  assert.equal(principal.accountId, null);
  assert.equal(principal.grantId, null);
  assert.equal(principal.clientId, client.id);
});

test('oauth 94: (protect) a missing token or another scheme is 401 without an error, with the metadata URL', async () => {
  for (const authorization of [undefined, 'Basic dXNlcjpwYXNz', 'Bearerish abc']) {
    const { status, challenge, headers, body } = refused(await ask(authorization));
    assert.equal(status, 401);
    assert.match(
      challenge,
      /^Bearer resource_metadata="https:\/\/notes\.example\/\.well-known\/oauth-protected-resource", DPoP algs="/,
    );
    assert.doesNotMatch(challenge, /error/);
    assert.equal(headers['content-type'], 'application/problem+json');
    assert.equal(headers['cache-control'], 'no-store');
    assert.equal(JSON.parse(body).status, 401);
  }
});

test('oauth 95: (protect) a missing scope is 403 with the required scope', async () => {
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['write:posts'] });
  const { status, challenge } = refused(await ask(`Bearer ${accessToken}`));
  assert.equal(status, 403);
  assert.match(
    challenge,
    /^Bearer error="insufficient_scope", error_description="[^"]+", scope="read:posts"/,
  );
  const none = await protect.check({
    method: 'GET',
    url: '/',
    headers: { authorization: `Bearer ${accessToken}` },
  });
  assert.ok(none.granted, 'a route that names no scope needs none');
});

test('oauth 96: (protect) tokens in the query, two tokens or partial headers are 400; the scheme is case-insensitive', async () => {
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const twice = await protect.check(
    { method: 'GET', url: '/notes', headers: { authorization: [`Bearer ${accessToken}`, 'Bearer other'] } },
    'read:posts',
  );
  const wrong = [
    await ask(undefined, `/notes?access_token=${accessToken}`),
    await ask(`Bearer ${accessToken}`, `/notes?a=1&access%5Ftoken=${accessToken}`),
    twice,
    await ask('Bearer'),
    await ask('Bearer two words'),
    await ask(`Bearer ${accessToken}, Bearer ${accessToken}`),
  ];
  for (const outcome of wrong) {
    const { status, challenge } = refused(outcome);
    assert.equal(status, 400);
    assert.match(challenge, /^Bearer error="invalid_request"/);
  }
  for (const scheme of ['bearer', 'BEARER', 'bEaReR ']) granted(await ask(`${scheme} ${accessToken}`));
});

test('oauth 61: (protect) an id_token and a token of another type, issuer, audience, time or algorithm are refused', async () => {
  const { idToken } = await authorize(server, { account, client, scopes: ['openid', 'read:posts'] });
  await assertInvalid(idToken as string);
  const now = Math.floor(Date.now() / 1_000);
  const changes: Parameters<typeof mintAccessToken>[1]['claims'][] = [
    { iss: 'https://evil.example' },
    { iss: `${server.baseUrl}/` },
    { aud: 'https://other.example' },
    { aud: [] },
    { exp: now - 60 },
    { nbf: now + 60 },
    { exp: undefined },
    { jti: undefined },
    { client_id: undefined },
    { client_id: 7 },
    { sub: undefined },
    { cnf: 'none' },
    { cnf: null },
  ];
  for (const claims of changes) {
    const { accessToken } = await mintAccessToken(server, {
      account,
      client,
      scopes: ['read:posts'],
      ...(claims === undefined ? {} : { claims }),
    });
    await assertInvalid(accessToken);
  }
  for (const header of [{ typ: 'JWT' }, { typ: undefined }, { kid: 'unknown' }]) {
    const minted = await mintAccessToken(server, { account, client, scopes: ['read:posts'], header });
    await assertInvalid(minted.accessToken);
  }
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const [header, payload, signature] = accessToken.split('.') as [string, string, string];
  const none = Buffer.from(JSON.stringify({ alg: 'none', typ: 'at+jwt' })).toString('base64url');
  await assertInvalid(`${none}.${payload}.`.replace(/\.$/, '.AA'));
  await assertInvalid(`${header}.${payload}.${Buffer.alloc(64).toString('base64url')}`);
  await assertInvalid(`${header}.${Buffer.from('{"client_id":"admin"}').toString('base64url')}.${signature}`);
  await assertInvalid('a.b.c');
  await assertInvalid('x'.repeat(20_000));
});

test('oauth 61: (protect) HS256 with the public key as secret, and a key from the token, are refused', async () => {
  const { keys } = (await (await fetch(`${server.baseUrl}/oauth/jwks`)).json()) as {
    keys: { alg: string; kid: string; x: string }[];
  };
  const key = keys.find(({ alg }) => alg === 'ES256');
  assert.ok(key);
  const claims = { client_id: client.id, scope: 'read:posts', jti: 'x' };
  const sign = (header: Record<string, unknown>, secret: CryptoKey | Uint8Array) =>
    new SignJWT(claims)
      .setProtectedHeader({ alg: 'HS256', typ: 'at+jwt', kid: key.kid, ...header })
      .setIssuer(server.baseUrl)
      .setAudience(server.baseUrl)
      .setSubject(account.id)
      .setIssuedAt()
      .setExpirationTime('5m')
      .sign(secret);
  await assertInvalid(await sign({}, new TextEncoder().encode(JSON.stringify(key))));
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwk = await crypto.subtle.exportKey('jwk', publicKey);
  await assertInvalid(await sign({ alg: 'ES256', jwk }, privateKey));
});

test('oauth 61: (protect) RS256 with the issuer’s key is accepted, only for what the key is for', async () => {
  const options = { account, client, scopes: ['read:posts'], algorithm: 'RS256' } as const;
  const { accessToken } = await mintAccessToken(server, options);
  granted(await ask(`Bearer ${accessToken}`));
  // The same key signs id_tokens.
  for (const typ of ['JWT', 'logout+jwt', undefined]) {
    await assertInvalid((await mintAccessToken(server, { ...options, header: { typ } })).accessToken);
  }
  const { privateKeys } = await loadSigningKeys(server.db, testSecret);
  const key = privateKeys.find(({ alg }) => alg === 'RS256');
  const other = privateKeys.find(({ alg }) => alg === 'ES256');
  assert.ok(key && other);
  const sign = async (header: { alg: string; kid: string }, secret: CryptoKey | Uint8Array) =>
    new SignJWT({ client_id: client.id, scope: 'read:posts', jti: 'x' })
      .setProtectedHeader({ typ: 'at+jwt', ...header })
      .setIssuer(server.baseUrl)
      .setAudience(server.baseUrl)
      .setSubject(account.id)
      .setIssuedAt()
      .setExpirationTime('5m')
      .sign(secret);
  const kid = String(key.kid);
  for (const alg of ['PS256', 'RS384', 'RS512']) {
    const material = { ...key, alg };
    await assertInvalid(await sign({ alg, kid }, (await importJWK(material, alg)) as CryptoKey));
  }
  const modulus = Buffer.from(String(key.n), 'base64url');
  await assertInvalid(await sign({ alg: 'HS256', kid }, modulus));
  const stranger = await generateKeyPair('RS256');
  await assertInvalid(await sign({ alg: 'RS256', kid }, stranger.privateKey));
  await assertInvalid(await sign({ alg: 'RS256', kid: String(other.kid) }, stranger.privateKey));
});

test('a configured audience is the only accepted one', async () => {
  const own = createProtector({ issuer: server.baseUrl, url, audience: url, offline: true });
  const asked = async (aud: unknown) => {
    const { accessToken } = await mintAccessToken(server, {
      account,
      client,
      scopes: ['read:posts'],
      claims: { aud },
    });
    const headers = { authorization: `Bearer ${accessToken}` };
    return (await own.check({ method: 'GET', url: '/', headers })).granted;
  };
  assert.equal(await asked(url), true);
  assert.equal(await asked([server.baseUrl, url]), true);
  assert.equal(await asked(server.baseUrl), false);
});

test('createProtector requires an audience, so no default accepts tokens for another API', () => {
  const options = { issuer: server.baseUrl, url, offline: true };
  const withAudience = (...given: unknown[]) =>
    ({ ...options, ...(given.length === 0 ? {} : { audience: given[0] }) }) as never;
  for (const missing of [withAudience(), withAudience(undefined), withAudience(null), withAudience([])]) {
    assert.throws(() => createProtector(missing), {
      name: 'TypeError',
      message: /^audience is missing: .*"https:\/\/notes\.example".*oauth\.resources/,
    });
  }
  for (const wrong of ['', [''], [undefined], 7, [url, null]]) {
    assert.throws(() => createProtector(withAudience(wrong)), {
      name: 'TypeError',
      message: /^audience is /,
    });
  }
});

test('headers of the Fetch API are accepted', async () => {
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const request = new Request(`${url}/notes`, { headers: { authorization: `Bearer ${accessToken}` } });
  granted(await protect.check(request, 'read:posts'));
});

test('an opaque token is refused offline', async () => {
  await assertInvalid('wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12345');
});

test('options that would accept too many tokens or none are refused at once', () => {
  const good = { issuer: server.baseUrl, url, audience: url };
  const wrong: [Parameters<typeof createProtector>[0], RegExp][] = [
    [{ ...good }, /clientId and clientSecret are missing/],
    [{ ...good, clientId: 'a' }, /clientId and clientSecret are missing/],
    [{ ...good, clientId: 'a', clientSecret: '' }, /clientId and clientSecret are missing/],
    [{ ...good, clientId: 'a', clientSecret: 'b', offline: true }, /offline is true/],
    [{ ...good, clientId: 'a', clientSecret: 'b', cacheSeconds: Number.NaN }, /cacheSeconds is NaN/],
    [{ ...good, clientId: 'a', clientSecret: 'b', cacheSeconds: -1 }, /cacheSeconds is -1/],
    [{ ...good, issuer: 'http://id.example', offline: true }, /http is allowed for loopback addresses only/],
    [{ ...good, issuer: 'id.example', offline: true }, /issuer is "id.example"/],
    [{ ...good, url: 'notes.example', offline: true }, /url is "notes.example"/],
    [{ ...good, url: 'https://notes.example/?a', offline: true }, /url is/],
    [{ ...good, offline: true, dpopNonceSecret: 'short' }, /dpopNonceSecret is too short/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(
      () => createProtector(options),
      (error) => error instanceof TypeError && message.test(error.message),
    );
  }
});

test('oauth 97: (protect) the metadata name this API and its issuer, also below a path', () => {
  const named = createProtector({
    issuer: server.baseUrl,
    url: 'https://example.com/notes',
    audience: 'https://example.com/notes',
    offline: true,
    scopes: ['read:notes', 'write:notes'],
    name: 'Notes',
  });
  assert.equal(named.metadata.path, '/.well-known/oauth-protected-resource/notes');
  assert.equal(named.metadata.url, 'https://example.com/.well-known/oauth-protected-resource/notes');
  assert.deepEqual(named.metadata.document, {
    resource: 'https://example.com/notes',
    authorization_servers: [server.baseUrl],
    scopes_supported: ['read:notes', 'write:notes'],
    bearer_methods_supported: ['header'],
    resource_name: 'Notes',
  });
  assert.equal(protect.metadata.path, '/.well-known/oauth-protected-resource');
});
