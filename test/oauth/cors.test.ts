/** Cross-origin requests: endpoints that work without cookies, and responses that are not readable. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createTestClient, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const origin = 'https://spa.example';

function preflight(
  path: string,
  method: string,
  headers = 'authorization, content-type, dpop, mcp-protocol-version',
) {
  return fetch(`${server.baseUrl}${path}`, {
    method: 'OPTIONS',
    headers: { origin, 'access-control-request-method': method, 'access-control-request-headers': headers },
  });
}

function mayUse(response: Response): void {
  assert.ok(['*', origin].includes(response.headers.get('access-control-allow-origin') ?? ''), response.url);
  assert.equal(response.headers.get('access-control-allow-credentials'), null);
}

for (const [path, ...methods] of [
  ['/oauth/token', 'POST'],
  ['/oauth/revoke', 'POST'],
  ['/oauth/introspect', 'POST'],
  ['/oauth/par', 'POST'],
  ['/oauth/device', 'POST'],
  ['/oauth/userinfo', 'GET', 'POST'],
  ['/oauth/jwks', 'GET'],
  ['/oauth/register', 'POST'],
  ['/oauth/register/some-client', 'GET', 'PUT', 'DELETE'],
  ['/.well-known/oauth-authorization-server', 'GET'],
  ['/.well-known/openid-configuration', 'GET'],
  ['/.well-known/oauth-protected-resource', 'GET'],
  ['/.well-known/oauth-protected-resource/somewhere/else', 'GET'],
  ['/api', 'GET'],
  ['/articles', 'GET', 'POST'],
] as [string, ...string[]][]) {
  test(`oauth 10: ${path} allows ${methods.join(', ')} in a preflight response`, async () => {
    for (const method of methods) {
      const headers = path.startsWith('/a') ? 'authorization, content-type, dpop' : undefined;
      const response = await preflight(path, method, headers);
      assert.equal(response.status, 204, path);
      mayUse(response);
      const allowed = (response.headers.get('access-control-allow-methods') ?? '').split(/, */);
      assert.ok(allowed.includes(method), `${path} ${method}: ${allowed}`);
      const names = (response.headers.get('access-control-allow-headers') ?? '').toLowerCase();
      for (const name of ['authorization', 'content-type', 'dpop']) assert.ok(names.includes(name), names);
      assert.ok(Number(response.headers.get('access-control-max-age')) > 0);
    }
  });
}

test('oauth 10: other origins may read responses and errors with their challenges', async () => {
  const client = await createTestClient(server);
  const form = { grant_type: 'client_credentials', scope: 'read:posts' };
  const good = await postForm(server, '/oauth/token', client, form, { origin });
  assert.equal(good.status, 200);
  const bad = await postForm(server, '/oauth/token', { ...client, secret: 'wrong' }, form, { origin });
  assert.equal(bad.status, 401);
  for (const { headers } of [good, bad]) {
    assert.match(headers.get('access-control-expose-headers') ?? '', /DPoP-Nonce/);
    assert.match(headers.get('access-control-expose-headers') ?? '', /WWW-Authenticate/);
  }
  for (const [path, status] of [
    ['/oauth/userinfo', 401],
    ['/oauth/register/some-client', 401],
    ['/api', 401],
    ['/.well-known/oauth-protected-resource', 200],
    ['/.well-known/nonsense', 404],
  ] as const) {
    const response = await fetch(`${server.baseUrl}${path}`, { headers: { origin } });
    assert.equal(response.status, status, path);
    mayUse(response);
    assert.match(response.headers.get('access-control-expose-headers') ?? '', /WWW-Authenticate/i, path);
  }
  const api = await fetch(`${server.baseUrl}/api`, { headers: { origin } });
  for (const name of [/DPoP-Nonce/, /Request-Id/]) {
    assert.match(api.headers.get('access-control-expose-headers') ?? '', name);
  }
  const registered = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { origin, 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: [`${origin}/callback`], token_endpoint_auth_method: 'none' }),
  });
  assert.equal(registered.status, 201);
  mayUse(registered);
});

test('oauth 10: pages answer OPTIONS, and no other origin reads them', async () => {
  for (const path of ['/oauth/authorize', '/oauth/logout', '/device']) {
    const plain = await fetch(`${server.baseUrl}${path}`, { method: 'OPTIONS' });
    assert.equal(plain.status, 204, path);
    assert.match(plain.headers.get('allow') ?? '', /GET/);
    for (const response of [
      await preflight(path, 'GET'),
      await fetch(`${server.baseUrl}${path}`, { headers: { origin } }),
    ]) {
      assert.equal(response.headers.get('access-control-allow-origin'), null, path);
    }
  }
});

test('oauth 70: an unknown path below /.well-known is a JSON 404', async () => {
  for (const path of [
    'nonsense',
    'oauth-authorization-server/more',
    'openid-configuration/',
    'jwks.json',
    '..%2f',
  ]) {
    const response = await fetch(`${server.baseUrl}/.well-known/${path}`, {
      headers: { accept: 'text/html' },
    });
    assert.equal(response.status, 404, path);
    assert.match(response.headers.get('content-type') ?? '', /^application\/(problem\+)?json/, path);
    assert.equal(((await response.json()) as { status: number }).status, 404);
  }
});
