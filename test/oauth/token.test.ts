/** The token and revocation endpoints: client authentication, client credentials and errors. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt, decodeProtectedHeader, exportJWK, generateKeyPair, SignJWT } from 'jose';
import { sql } from 'kysely';
import { addClientSecret } from '../../src/clients/client_secret.ts';
import { newId } from '../../src/crypto/ids.ts';
import {
  authorize,
  basic,
  clientToken,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const machine = { grant_type: 'client_credentials', scope: 'read:posts' };

/** A raw request to the token endpoint. */
async function raw(init: RequestInit, path = '/oauth/token') {
  const response = await fetch(`${server.baseUrl}${path}`, init);
  const text = await response.text();
  return { status: response.status, headers: response.headers, text };
}

const authorization = basic(client.id, client.secret ?? '');

test('oauth 1: methods other than POST are 405 with Allow', async () => {
  for (const method of ['GET', 'PUT', 'DELETE', 'PATCH']) {
    const { status, headers } = await raw({ method });
    assert.equal(status, 405, method);
    assert.match(headers.get('allow') ?? '', /\bPOST\b/);
  }
});

test('oauth 2: a body that is no form is invalid_request', async () => {
  const bodies: [string, string][] = [
    ['application/json', JSON.stringify(machine)],
    [
      'multipart/form-data; boundary=x',
      '--x\r\ncontent-disposition: form-data; name="grant_type"\r\n\r\nx\r\n--x--',
    ],
    ['text/plain', 'grant_type=client_credentials'],
  ];
  for (const [type, body] of bodies) {
    const { status, text } = await raw({
      method: 'POST',
      headers: { authorization, 'content-type': type },
      body,
    });
    assert.equal(status, 400, type);
    assert.equal(JSON.parse(text).error, 'invalid_request', type);
  }
});

test('oauth 3: a repeated parameter is invalid_request', async () => {
  for (const extra of ['grant_type=client_credentials', 'scope=read:posts', 'client_id=a&client_id=b']) {
    const { status, text } = await raw({
      method: 'POST',
      headers: { authorization, 'content-type': 'application/x-www-form-urlencoded' },
      body: `${new URLSearchParams(machine)}&${extra}`,
    });
    assert.equal(status, 400, extra);
    assert.equal(JSON.parse(text).error, 'invalid_request', extra);
  }
});

test('oauth 4: unknown parameters are ignored, and empty ones count as absent', async () => {
  const { status } = await postForm(server, '/oauth/token', client, {
    ...machine,
    nonsense: '1',
    resource: '',
  });
  assert.equal(status, 200);
});

test('oauth 7: an error is plain ASCII JSON with no-store', async () => {
  const { status, headers, body } = await postForm(server, '/oauth/token', client, {
    ...machine,
    scope: 'bad"scope\\é',
  });
  assert.equal(status, 400);
  assert.equal(headers.get('cache-control'), 'no-store');
  assert.equal(body.error, 'invalid_scope');
  assert.match(String(body.error_description), /^[\x20-\x21\x23-\x5b\x5d-\x7e]*$/);
});

test('oauth 8: credentials in the query are ignored', async () => {
  const query = new URLSearchParams({ client_id: client.id, client_secret: client.secret ?? '' });
  for (const path of ['/oauth/token', '/oauth/revoke']) {
    const { status } = await raw({ method: 'POST', body: new URLSearchParams(machine) }, `${path}?${query}`);
    assert.ok(status === 400 || status === 401, `${path} ${status}`);
  }
});

test('oauth 9: a missing, unknown or disallowed grant_type is refused', async () => {
  const plain = await createTestClient(server, { grantTypes: ['authorization_code'] });
  const cases: [Record<string, string>, typeof client, string][] = [
    [{}, client, 'invalid_request'],
    [{ grant_type: 'nonsense' }, client, 'unsupported_grant_type'],
    [{ grant_type: 'password', username: 'a', password: 'b' }, client, 'unsupported_grant_type'],
    [{ grant_type: 'implicit' }, client, 'unsupported_grant_type'],
    [machine, plain, 'unauthorized_client'],
    [{ grant_type: 'refresh_token', refresh_token: 'x' }, plain, 'unauthorized_client'],
  ];
  for (const [form, as, error] of cases) {
    const { status, body } = await postForm(server, '/oauth/token', as, form);
    assert.equal(status, 400, JSON.stringify(form));
    assert.equal(body.error, error, JSON.stringify(form));
  }
});

test('oauth 11: id and secret are form-decoded before the comparison', async () => {
  for (const [index, part] of ['%', '+', ':', ' ', '%41', 'a%b+c:d e~', '&=?#/"'].entries()) {
    // At least 43 characters, because a given secret must be strong. An id has no space.
    const secret = `${part}${'s'.repeat(43)}`;
    const odd = await createTestClient(server, { id: `odd-${index}-${part.replaceAll(' ', '')}`, secret });
    const encoded = await postForm(server, '/oauth/token', odd, machine);
    assert.equal(encoded.status, 200, `${part}: ${JSON.stringify(encoded.body)}`);
    const wrong = await postForm(server, '/oauth/token', { ...odd, secret: `${secret}x` }, machine);
    assert.deepEqual([wrong.status, wrong.body.error], [401, 'invalid_client'], part);
  }
  // Unencoded characters have another meaning: a plus is a space.
  const plus = await createTestClient(server, { secret: `+${'s'.repeat(43)}` });
  const authorization = `Basic ${Buffer.from(`${plus.id}:${plus.secret}`).toString('base64')}`;
  const plain = await raw({
    method: 'POST',
    headers: { authorization },
    body: new URLSearchParams(machine),
  });
  assert.deepEqual([plain.status, JSON.parse(plain.text).error], [401, 'invalid_client']);
});

test('oauth 11: a secret with non-ASCII characters is refused, right or wrong', async () => {
  const odd = await createTestClient(server, { secret: `é${'s'.repeat(43)}` });
  for (const secret of [odd.secret as string, `é${'x'.repeat(43)}`]) {
    const { status, body } = await postForm(server, '/oauth/token', { ...odd, secret }, machine);
    assert.deepEqual([status, body.error], [400, 'invalid_request']);
  }
});

test('oauth 12: failed authentication is 401 invalid_client, with Basic when Basic was used', async () => {
  const header = await postForm(server, '/oauth/token', { ...client, secret: 'wrong' }, machine);
  assert.equal(header.status, 401);
  assert.equal(header.body.error, 'invalid_client');
  assert.match(header.headers.get('www-authenticate') ?? '', /^Basic realm=/);
  const post = await createTestClient(server, { authMethod: 'client_secret_post' });
  const form = await postForm(server, '/oauth/token', { ...post, secret: 'wrong' }, machine);
  assert.equal(form.status, 401);
  assert.equal(form.body.error, 'invalid_client');
});

test('oauth 13: an unknown client and a wrong secret return the same bytes', async () => {
  const answers = await Promise.all(
    [client.id, 'no-such-client'].map((id) =>
      raw({
        method: 'POST',
        headers: { authorization: basic(id, 'wrong') },
        body: new URLSearchParams(machine),
      }),
    ),
  );
  const [known, unknown] = answers.map(({ status, headers, text }) => {
    const all = [...headers].filter(([name]) => name !== 'date' && name !== 'request-id');
    return JSON.stringify([status, all, text]);
  });
  assert.equal(known, unknown);
});

test('oauth 14: two authentication methods in one request are invalid_request', async () => {
  const { status, body } = await postForm(server, '/oauth/token', client, {
    ...machine,
    client_id: client.id,
    client_secret: client.secret ?? '',
  });
  assert.equal(status, 400);
  assert.equal(body.error, 'invalid_request');
});

test('oauth 15: a client without credentials is invalid_client', async () => {
  const { status, body } = await postForm(server, '/oauth/token', null, { ...machine, client_id: client.id });
  assert.deepEqual([status, body.error], [401, 'invalid_client']);
});

test('oauth 15: a public client that sends a secret is invalid_client', async () => {
  const open = await createTestClient(server, { authMethod: 'none' });
  const form = { grant_type: 'refresh_token', refresh_token: 'x' };
  const inForm = { ...form, client_id: open.id, client_secret: 'made up' };
  for (const { status, body } of [
    await postForm(server, '/oauth/token', null, inForm),
    await postForm(server, '/oauth/token', { ...open, authMethod: 'client_secret_basic', secret: 'x' }, form),
  ]) {
    assert.deepEqual([status, body.error], [401, 'invalid_client']);
  }
});

test('oauth 15: a client that uses another method than its registered one is invalid_client', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256' }] };
  const byKey = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks } });
  const bySecret = await createTestClient(server, { metadata: { jwks } });
  const open = await createTestClient(server, { authMethod: 'none', metadata: { jwks } });
  /** Credentials that are valid for another authentication method. */
  const asserted = async ({ id }: { id: string }) => ({
    ...machine,
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: await new SignJWT({ iss: id, sub: id, aud: server.baseUrl, jti: newId() })
      .setProtectedHeader({ alg: 'ES256', kid: 'one' })
      .setIssuedAt()
      .setExpirationTime('1 minute')
      .sign(privateKey),
  });
  assert.equal((await postForm(server, '/oauth/token', null, await asserted(byKey))).status, 200);
  // A stored secret does not authenticate a client that is registered for keys.
  const secret = await addClientSecret(server.db, byKey.id);
  const attempts: [string, ReturnType<typeof postForm>][] = [
    [
      'key: Basic',
      postForm(server, '/oauth/token', { ...byKey, authMethod: 'client_secret_basic', secret }, machine),
    ],
    [
      'key: form',
      postForm(server, '/oauth/token', { ...byKey, authMethod: 'client_secret_post', secret }, machine),
    ],
    ['key: nothing', postForm(server, '/oauth/token', null, { ...machine, client_id: byKey.id })],
    ['secret: assertion', postForm(server, '/oauth/token', null, await asserted(bySecret))],
    ['public: assertion', postForm(server, '/oauth/token', null, await asserted(open))],
  ];
  for (const [what, attempt] of attempts) {
    const { status, body } = await attempt;
    assert.deepEqual([status, body.error], [401, 'invalid_client'], `${what}: ${JSON.stringify(body)}`);
  }
});

test('oauth 15: a secret is accepted by Basic and in the form, whichever is registered', async () => {
  for (const [registered, used] of [
    ['client_secret_basic', 'client_secret_post'],
    ['client_secret_post', 'client_secret_basic'],
  ] as const) {
    const either = await createTestClient(server, { authMethod: registered });
    const { status } = await postForm(server, '/oauth/token', { ...either, authMethod: used }, machine);
    assert.equal(status, 200, used);
  }
});

test('oauth 52: client credentials return no refresh token, and sub is the client', async () => {
  const { status, body } = await postForm(server, '/oauth/token', client, machine);
  assert.equal(status, 200);
  assert.equal(body.refresh_token, undefined);
  assert.equal(decodeJwt(String(body.access_token)).sub, client.id);
  const open = await createTestClient(server, { authMethod: 'none', grantTypes: ['authorization_code'] });
  const refused = await postForm(server, '/oauth/token', open, machine);
  assert.deepEqual([refused.status, refused.body.error], [400, 'unauthorized_client']);
});

test('oauth 60: an access token is an at+jwt with all its claims', async () => {
  const { accessToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  assert.deepEqual(
    { ...decodeProtectedHeader(accessToken), kid: '' },
    { alg: 'ES256', typ: 'at+jwt', kid: '' },
  );
  const claims = decodeJwt(accessToken);
  assert.equal(claims.iss, server.baseUrl);
  assert.equal(claims.aud, server.baseUrl);
  assert.equal(claims.sub, account.id);
  assert.equal(claims.client_id, client.id);
  assert.equal(claims.scope, 'read:posts');
  assert.equal((claims.exp ?? 0) - (claims.iat ?? 0), 900);
  assert.ok(claims.jti);
});

test('a client that names no scope gets every scope it may have for itself', async () => {
  const { body } = await postForm(server, '/oauth/token', client, { grant_type: 'client_credentials' });
  const own = client.scopes.filter((scope) => scope.includes(':')).sort();
  assert.deepEqual(String(body.scope).split(' ').sort(), own);
});

test('oauth 65: revocation returns an empty 200, also for a wrong hint and an unknown token', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const forms: Record<string, string>[] = [
    { token: 'unknown' },
    { token: refreshToken, token_type_hint: 'access_token' },
    { token: refreshToken },
  ];
  for (const form of forms) {
    const response = await raw(
      { method: 'POST', headers: { authorization }, body: new URLSearchParams(form) },
      '/oauth/revoke',
    );
    assert.equal(response.status, 200);
    assert.equal(response.text, '');
  }
  const refreshed = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: refreshToken,
  });
  assert.equal(refreshed.body.error, 'invalid_grant');
});

test('a revoked access token ends alone, and a revoked refresh token ends its grant', async () => {
  const status = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` };
    return (await fetch(`${server.baseUrl}/oauth/userinfo`, { headers })).status;
  };
  const got = await authorize(server, { account, client, scopes: ['openid', 'read:posts'] });
  const refreshed = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: got.refreshToken,
  });
  const second = String(refreshed.body.access_token);
  await postForm(server, '/oauth/revoke', client, { token: got.accessToken });
  assert.equal(await status(got.accessToken), 401);
  assert.equal(await status(second), 200);
  await postForm(server, '/oauth/revoke', client, { token: String(refreshed.body.refresh_token) });
  assert.equal(await status(second), 401);
});

test('oauth 66: another client’s token is not revoked, and a missing token is invalid_request', async () => {
  const other = await createTestClient(server);
  const { refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const foreign = await postForm(server, '/oauth/revoke', other, { token: refreshToken });
  assert.deepEqual([foreign.status, foreign.body.error], [400, 'invalid_grant']);
  const still = await postForm(server, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: refreshToken,
  });
  assert.equal(still.status, 200);
  const missing = await postForm(server, '/oauth/revoke', client, {});
  assert.deepEqual([missing.status, missing.body.error], [400, 'invalid_request']);
});

test('oauth 68: both metadata documents carry the exact issuer', async () => {
  for (const name of ['oauth-authorization-server', 'openid-configuration']) {
    const response = await fetch(`${server.baseUrl}/.well-known/${name}`);
    assert.equal(response.status, 200);
    assert.match(response.headers.get('content-type') ?? '', /^application\/json/);
    assert.equal(((await response.json()) as { issuer: string }).issuer, server.baseUrl);
  }
});

test('oauth 69: no URL follows the Host or X-Forwarded headers', async () => {
  const { request } = await import('node:http');
  const fetched = (headers: Record<string, string>, path: string) =>
    new Promise<string>((resolve, reject) => {
      const call = request(`${server.baseUrl}${path}`, { headers }, (response) => {
        let text = JSON.stringify(response.headers.location ?? '');
        response.on('data', (chunk) => {
          text += chunk;
        });
        response.on('end', () => resolve(text));
      });
      call.on('error', reject).end();
    });
  const hostile = {
    host: 'evil.example',
    'x-forwarded-host': 'evil.example',
    'x-forwarded-proto': 'https',
    'x-forwarded-prefix': '/evil',
    forwarded: 'host=evil.example;proto=https',
    'x-original-host': 'evil.example',
  };
  for (const path of [
    '/.well-known/oauth-authorization-server',
    '/.well-known/openid-configuration',
    '/.well-known/oauth-protected-resource',
    `/oauth/authorize?client_id=${client.id}&redirect_uri=${encodeURIComponent(client.redirectUri)}&response_type=code&code_challenge=${'a'.repeat(43)}&code_challenge_method=S256`,
  ]) {
    const text = await fetched(hostile, path);
    assert.ok(!text.includes('evil'), text);
  }
});

test('oauth 70: metadata lists what works, and an unknown well-known path is a JSON 404', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`);
  const metadata = (await response.json()) as Record<string, unknown>;
  assert.deepEqual(metadata.code_challenge_methods_supported, ['S256']);
  assert.equal(metadata.authorization_response_iss_parameter_supported, true);
  assert.deepEqual(metadata.response_types_supported, ['code']);
  assert.ok(
    !(metadata.grant_types_supported as string[]).some((name) => ['implicit', 'password'].includes(name)),
  );
  for (const [name, value] of Object.entries(metadata)) {
    if (!/_endpoint$|_uri$/.test(name)) continue;
    const { status } = await fetch(String(value), { redirect: 'manual' });
    assert.notEqual(status, 404, name);
  }
  const unknown = await fetch(`${server.baseUrl}/.well-known/nonsense`);
  assert.equal(unknown.status, 404);
  assert.match(unknown.headers.get('content-type') ?? '', /json/);
});

test('oauth 71: the key set has only public members and unique ids', async () => {
  const response = await fetch(`${server.baseUrl}/oauth/jwks`);
  const { keys } = (await response.json()) as { keys: Record<string, unknown>[] };
  assert.deepEqual(keys.map((key) => key.alg).sort(), ['ES256', 'EdDSA', 'RS256']);
  assert.equal(new Set(keys.map((key) => key.kid)).size, keys.length);
  for (const key of keys)
    for (const name of ['d', 'p', 'q', 'dp', 'dq', 'qi']) assert.equal(key[name], undefined);
  const { rows } = await sql<{
    text: string;
  }>`select encode(sealed, 'escape') as text from signing_keys`.execute(server.db);
  assert.ok(rows.every(({ text }) => !text.includes('"kty"')));
});

test('oauth 97: the protected resource names itself and its authorization server', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/oauth-protected-resource`);
  const metadata = (await response.json()) as Record<string, unknown>;
  assert.equal(metadata.resource, server.baseUrl);
  assert.deepEqual(metadata.authorization_servers, [server.baseUrl]);
  assert.deepEqual(metadata.bearer_methods_supported, ['header']);
  assert.ok((metadata.scopes_supported as string[]).includes('read:posts'));
});

test('a machine client gets its token over HTTP', async () => {
  assert.ok(await clientToken(server, client, ['read:posts']));
});
