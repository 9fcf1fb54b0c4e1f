/** Attacks on the management API: rights that an app, a token or an address does not have. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { isAddressOfServer } from '../../src/clients/redirect_uri.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestClient,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

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

test('attack: only the operator’s apps get a management scope, however they ask', async () => {
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
          // A document that cannot be fetched creates no client.
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

test('a demoted administrator loses access with the same token', async () => {
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

test('attack: no spelling of this server’s address is accepted as an app’s address', async () => {
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

/** Makes the request wait for the app's row while a transaction removes a member. @returns its response */
async function duringRemoval(
  appId: string,
  change: ReturnType<typeof sql>,
  ask: () => ReturnType<ReturnType<typeof requester>>,
) {
  return server.db.transaction().execute(async (tx) => {
    await sql`select from clients where id = ${appId} for update`.execute(tx);
    await change.execute(tx);
    const asked = ask();
    const waits = async () =>
      sql`select from pg_locks where not granted`.execute(server.db).then(({ rows }) => rows.length);
    await Promise.race([asked, until(waits, (count) => count > 0)]);
    return { asked };
  });
}

test('attack: a member removed while their request waits gets nothing and changes nothing', async () => {
  const owner = await createConsoleUser(server);
  const { body: app } = await owner.request('POST', '/apps', { json });
  const path = `/apps/${app.client_id}`;
  await owner.request('POST', `${path}/secrets`);
  const { body: before } = await owner.request('GET', path);
  const [first, second] = before.secrets;
  await owner.request('DELETE', second._links.self.href);
  const subscription = { url: 'https://a.example/h', kinds: ['push'] };
  const requests: [what: string, method: string, path: string, options?: object][] = [
    ['a secret', 'POST', `${path}/secrets`],
    ['the end of a secret', 'DELETE', `${path}/secrets/${first.id}`],
    ['other addresses', 'PATCH', path, { json: { redirect_uris: ['https://thief.example/'] } }],
    ['a subscription', 'POST', `${path}/subscriptions`, { json: subscription }],
    ['a logo', 'DELETE', `${path}/logo`],
    ['the end of the app', 'DELETE', path],
  ];
  for (const [what, method, target, options = {}] of requests) {
    const member = await createConsoleUser(server);
    const { id } = member.account;
    await sql`insert into app_members (client_id, account_id, role) values (${app.client_id}, ${id}, 'owner')`.execute(
      server.db,
    );
    const removal = sql`delete from app_members where client_id = ${app.client_id} and account_id = ${id}`;
    const { asked } = await duringRemoval(app.client_id, removal, () =>
      member.request(method, target, options),
    );
    const { status, text } = await asked;
    assert.equal(status, 404, `${what}: ${text}`);
  }
  const { body: left } = await owner.request('GET', path);
  assert.deepEqual(left.redirect_uris, json.redirect_uris);
  assert.deepEqual(left.secrets, [first]);
  assert.deepEqual((await owner.request('GET', `${path}/subscriptions`)).body.items, []);
});

test('attack: an owner demoted while their request waits does not delete the app', async () => {
  const owner = await createConsoleUser(server);
  const { body: app } = await owner.request('POST', '/apps', { json });
  const demoted = await createConsoleUser(server);
  const { id } = demoted.account;
  await sql`insert into app_members (client_id, account_id, role) values (${app.client_id}, ${id}, 'owner')`.execute(
    server.db,
  );
  const demotion = sql`
    update app_members set role = 'developer' where client_id = ${app.client_id} and account_id = ${id}`;
  const { asked } = await duringRemoval(app.client_id, demotion, () =>
    demoted.request('DELETE', `/apps/${app.client_id}`),
  );
  const { status, body } = await asked;
  assert.deepEqual([status, body.code], [403, 'owner-required']);
  assert.equal((await owner.request('GET', `/apps/${app.client_id}`)).status, 200);
});

test('attack: a removed member’s idempotency key does not return a secret again', async () => {
  const owner = await createConsoleUser(server);
  const member = await createConsoleUser(server);
  const { body: app } = await owner.request('POST', '/apps', { json });
  const path = `/apps/${app.client_id}`;
  await sql`
    insert into app_members (client_id, account_id, role)
    values (${app.client_id}, ${member.account.id}, 'developer')`.execute(server.db);
  const keyed = { headers: { 'idempotency-key': 'mine' } };
  assert.equal((await member.request('POST', `${path}/secrets`, keyed)).status, 201);
  assert.equal((await member.request('POST', `${path}/secrets`, keyed)).status, 201, 'again');
  await owner.request('DELETE', `${path}/members/${member.account.id}`);
  assert.equal((await member.request('POST', `${path}/secrets`, keyed)).status, 404);
});

test('two owners who remove each other concurrently leave one owner', async () => {
  for (let count = 0; count < 5; count += 1) {
    const [one, other] = [await createConsoleUser(server), await createConsoleUser(server)];
    const { body: app } = await one.request('POST', '/apps', { json });
    const members = `/apps/${app.client_id}/members`;
    await sql`
      insert into app_members (client_id, account_id, role)
      values (${app.client_id}, ${other.account.id}, 'owner')`.execute(server.db);
    const answers = await Promise.all([
      one.request('DELETE', `${members}/${other.account.id}`),
      other.request('DELETE', `${members}/${one.account.id}`),
    ]);
    assert.deepEqual(answers.map(({ status }) => status).sort(), [204, 404]);
    const { rows } = await sql<{ role: string }>`
      select role from app_members where client_id = ${app.client_id}`.execute(server.db);
    assert.deepEqual(rows, [{ role: 'owner' }]);
  }
});

test('a disabled account does not count as an owner and may be removed', async () => {
  const [owner, disabled] = [await createConsoleUser(server), await createConsoleUser(server)];
  const { body: app } = await owner.request('POST', '/apps', { json });
  const members = `/apps/${app.client_id}/members`;
  await sql`
    insert into app_members (client_id, account_id, role)
    values (${app.client_id}, ${disabled.account.id}, 'owner')`.execute(server.db);
  await sql`update accounts set disabled_at = now() where id = ${disabled.account.id}`.execute(server.db);
  const own = `${members}/${owner.account.id}`;
  for (const answer of [
    await owner.request('DELETE', own),
    await owner.request('PUT', own, { json: { role: 'developer' } }),
  ]) {
    assert.deepEqual([answer.status, answer.body.code], [409, 'last-owner'], answer.text);
  }
  assert.equal((await owner.request('DELETE', `${members}/${disabled.account.id}`)).status, 204);
});

test('a developer whose account is disabled loses access with the same token', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const { body: app } = await owner.request('POST', '/apps', { json });
  const path = `/apps/${app.client_id}`;
  const answer = await admin.request('POST', `/admin/accounts/${owner.account.id}/disable`);
  assert.equal(answer.status, 200, answer.text);
  await until(
    () => owner.request('GET', path),
    ({ status }) => status === 401,
  );
  for (const [method, target] of [
    ['GET', '/apps'],
    ['PATCH', path],
    ['POST', `${path}/secrets`],
    ['DELETE', `${path}/logo`],
    ['GET', '/app-invitations'],
    ['DELETE', path],
  ] as const) {
    assert.equal((await owner.request(method, target)).status, 401, `${method} ${target}`);
  }
  assert.equal((await admin.request('GET', `/admin/apps/${app.client_id}`)).body.state, 'unverified');
});

test('attack: ids of another app’s things are 404 below one’s own app', async () => {
  const [owner, thief] = [await createConsoleUser(server), await createConsoleUser(server)];
  const make = async (user: typeof owner) => {
    const { body: app } = await user.request('POST', '/apps', { json });
    const { body: subscription } = await user.request('POST', `/apps/${app.client_id}/subscriptions`, {
      json: { url: 'https://a.example/h', kinds: ['push'] },
    });
    await user.request('PUT', `/apps/${app.client_id}/members/invited@example.com`, {
      json: { role: 'developer' },
    });
    return { app, subscription };
  };
  const [mine, theirs] = [await make(thief), await make(owner)];
  const own = `/apps/${mine.app.client_id}`;
  const other = `/apps/${theirs.app.client_id}`;
  const secret = theirs.app.secrets[0].id;
  const { rows } = await sql<{ id: string }>`
    select id from app_invitations where client_id = ${theirs.app.client_id}`.execute(server.db);
  const invitation = `/app-invitations/${rows[0]?.id}`;
  const subscription = `/subscriptions/${theirs.subscription.id}`;
  const tried: [method: string, path: string, body?: unknown][] = [
    ['DELETE', `${own}/secrets/${secret}`],
    ['DELETE', `${other}/secrets/${secret}`],
    ['GET', `${own}/members/${owner.account.id}`],
    ['PUT', `${own}/members/${owner.account.id}`, { role: 'owner' }],
    ['DELETE', `${own}/members/${owner.account.id}`],
    ['PUT', `${other}/members/${thief.account.id}`, { role: 'owner' }],
    ['DELETE', `${other}/members/invited@example.com`],
    ['GET', `${other}/health`],
    ['GET', `${other}/subscriptions`],
    ['GET', invitation],
    ['POST', `${invitation}/accept`],
    ['DELETE', invitation],
    ['GET', subscription],
    ['PATCH', subscription, { url: 'https://thief.example/' }],
    ['GET', `${subscription}/secret`],
    ['POST', `${subscription}/rotate-secret`],
    ['POST', `${subscription}/test`],
    ['GET', `${subscription}/deliveries`],
    ['GET', `${subscription}/health`],
    ['POST', `${subscription}/recover`, { since: '2026-01-01T00:00:00Z' }],
    ['DELETE', subscription],
  ];
  for (const [method, path, body] of tried) {
    const { status, text } = await thief.request(method, path, body === undefined ? {} : { json: body });
    assert.equal(status, 404, `${method} ${path}: ${text}`);
  }
  for (const path of [
    'accounts',
    'apps',
    'grants',
    'subscriptions',
    'audit',
    'keys',
    'nodes',
    'stats',
    'settings',
  ]) {
    assert.equal((await thief.request('GET', `/admin/${path}`)).status, 403, path);
  }
});
