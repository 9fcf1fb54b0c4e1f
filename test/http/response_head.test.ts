/** The length of the heads of responses. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });

test('attack: a parameter that comes back in a header does not make the head too long for proxies', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['openid'] });
  const ask = (length: number) =>
    fetch(`${server.baseUrl}/oauth/userinfo`, {
      method: 'POST',
      headers: { authorization: `Bearer ${accessToken}` },
      body: new URLSearchParams({ scope: 'x'.repeat(length) }),
    });
  const short = await ask(10_000);
  assert.equal(short.status, 403);
  assert.match(short.headers.get('www-authenticate') ?? '', /scope="x{10000}"/);
  const long = await ask(50_000);
  assert.equal(long.status, 403);
  assert.equal(long.headers.get('www-authenticate'), null);
  assert.ok(long.headers.get('request-id') !== null);
});
