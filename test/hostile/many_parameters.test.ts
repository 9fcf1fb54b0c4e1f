/**
 * The library of the OAuth endpoints takes quadratic time for the parameters of a URL, of which 15 KB can have seven thousand. 64 requests at a time from
 * one address stopped a node.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });

const urlWith = (path: string, count: number) =>
  `${server.baseUrl}${path}?${Array.from({ length: count }, (_none, index) => index.toString(36)).join('&')}`;

for (const path of [
  '/oauth/userinfo',
  '/oauth/jwks',
  '/.well-known/openid-configuration',
  '/oauth/authorize',
]) {
  test(`attack: thousands of parameters in the URL of ${path}`, async () => {
    const refused = await fetch(urlWith(path, 513));
    assert.equal(refused.status, 400);
    assert.match(await refused.text(), /more than 512 parameters/);
    assert.doesNotMatch(await (await fetch(urlWith(path, 512))).text(), /more than/);
  });
}

test('attack: thousands of parameters in the URL of a preflight request', async () => {
  const headers = { origin: 'https://app.example', 'access-control-request-method': 'POST' };
  const allowed = async (count: number) => {
    const response = await fetch(urlWith('/oauth/token', count), { method: 'OPTIONS', headers });
    return response.headers.get('access-control-allow-methods');
  };
  assert.notEqual(await allowed(512), null);
  assert.equal(await allowed(513), null);
});
