/** The management API under attack: rights that an app, a token or an address does not have. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../src/clients/client.ts';
import { isAddressOfServer } from '../src/clients/redirect_uri.ts';
import { requester } from './support/api.ts';
import { createConsoleUser } from './support/console.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestClient,
  postForm,
  type TestClient,
} from './support/oauth.ts';
import { startTestServer } from './support/server.ts';

const server = await startTestServer({ after });
const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };
const management = ['read:apps', 'write:apps', 'admin'];

test('attack: an app that gives itself client credentials reaches nobody’s data and nothing of the operator’s', async () => {
  const owner = await createConsoleUser(server);
  const victim = await createConsoleUser(server);
  const { body: other } = await victim.request('POST', '/apps', { json });
  const { body: app } = await owner.request('POST', '/apps', {
    json: { ...json, grant_types: ['authorization_code', 'client_credentials'] },
  });
  const client = {
    id: app.client_id,
    secret: app.client_secret,
    authMethod: 'client_secret_basic',
  } as TestClient;
  for (const scope of [...management, 'write:events', 'read:tokens']) {
    const { status } = await postForm(server, '/oauth/token', client, {
      grant_type: 'client_credentials',
      scope,
    });
    assert.equal(status, 400, scope);
  }
  const token = await clientToken(
    server,
    client,
    String(app.scope)
      .split(' ')
      .filter((name) => name.includes(':')),
  );
  const request = requester(server, token);
  const refused: [method: string, path: string, body?: unknown][] = [
    ['GET', '/apps'],
    ['GET', `/apps/${other.client_id}`],
    ['POST', '/apps', json],
    ['GET', '/app-invitations'],
    ['POST', '/events', { kind: 'push', account: victim.account.id, body: {} }],
    ['POST', '/articles', { title: 'Spam' }],
    ['POST', `/apps/${other.client_id}/subscriptions`, { url: 'https://a.example/h', kinds: ['push'] }],
  ];
  for (const [method, path, body] of refused) {
    const { status } = await request(method, path, body === undefined ? {} : { json: body });
    assert.equal(status, 403, `${method} ${path}`);
  }
  const { body: seen } = await postForm(server, '/oauth/introspect', client, { token: victim.accessToken });
  assert.deepEqual(seen, { active: false });
});

test('attack: no app but the operator’s gets a management scope, by whatever way it asks', async () => {
  for (const origin of ['registration', 'account', 'document'] as const) {
    const client = await createTestClient(server, {
      origin,
      ...(origin === 'document' ? {} : { scopes: ['read:posts', ...management] }),
      grantTypes: ['authorization_code', 'refresh_token', 'client_credentials', deviceCodeGrantType],
    });
    const { challenge } = createPkce();
    const request = {
      client_id: client.id,
      redirect_uri: client.redirectUri,
      response_type: 'code',
      code_challenge: challenge,
      code_challenge_method: 'S256',
    };
    for (const name of management) {
      for (const scope of [name, `read:posts ${name}`]) {
        const ways: [path: string, form: Record<string, string>][] = [
          ['/oauth/par', { ...request, scope }],
          ['/oauth/device', { scope }],
          ['/oauth/token', { grant_type: 'client_credentials', scope }],
          ['/oauth/token', { grant_type: 'client_credentials', scope, resource: server.baseUrl }],
        ];
        for (const [path, form] of ways) {
          const { status, body } = await postForm(server, path, client, form);
          // A document that cannot be fetched makes no client at all.
          const expected = origin === 'document' ? [401, 'invalid_client'] : [400, 'invalid_scope'];
          assert.deepEqual([status, body.error], expected, `${origin} ${path} ${scope}`);
        }
        const page = await fetch(authorizationUrl(server, client, { ...request, scope }), {
          redirect: 'manual',
        });
        assert.equal(page.status, 400, `${origin} ${scope}`);
        await page.arrayBuffer();
      }
    }
  }
});

test('an administrator whose rights were taken away has them no more, with the same token', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const { body: app } = await owner.request('POST', '/apps', { json });
  const path = `/apps/${app.client_id}`;
  assert.equal((await admin.request('GET', path)).status, 200);
  await sql`update accounts set is_admin = false where id = ${admin.account.id}`.execute(server.db);
  const tried = [
    await admin.request('GET', path),
    await admin.request('POST', `${path}/secrets`),
    await admin.request('PATCH', path, { json: { client_name: 'Mine' } }),
    await admin.request('DELETE', path),
    await admin.request('PUT', `${path}/members/${admin.account.id}`, { json: { role: 'owner' } }),
  ];
  assert.deepEqual([...new Set(tried.map(({ status }) => status))], [404]);
});

test('attack: an app leads to this server by no other spelling of its address', async () => {
  const base = 'https://auth.example';
  const spellings = ['https://auth.example.', 'https://AUTH.example:443', 'https://auth.example.:443'];
  for (const spelling of spellings) {
    assert.ok(isAddressOfServer(`${spelling}/docs/oauth2-redirect.html`, base), spelling);
  }
  assert.ok(!isAddressOfServer('https://auth.example.com/callback', base));
  const owner = await createConsoleUser(server);
  const { port } = server.config;
  for (const host of ['localhost', 'a.localhost', '127.0.0.1', '127.1', '[::1]', '[0:0::1]']) {
    const own = `http://${host}:${port}/console/callback`;
    const made = await owner.request('POST', '/apps', { json: { ...json, redirect_uris: [own] } });
    assert.equal(made.status, 422, own);
    assert.equal(made.body.errors[0].pointer, '/redirect_uris', own);
  }
});
