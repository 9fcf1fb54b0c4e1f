/**
 * `/apps`: creating, changing and deleting apps, their secrets and members; what others see of them; what an app can do
 * while it is suspended or waits for review.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestClient,
  mintAccessToken,
  obtainCode,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { type ConsoleUser, consoleScopes, createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, fannedOut, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

const minimal = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };

async function createAppOf(user: ConsoleUser, fields: Record<string, unknown> = {}) {
  const made = await user.request('POST', '/apps', { json: { ...minimal, ...fields } });
  assert.equal(made.status, 201, made.text);
  return made.body;
}

/** The app as a client for the helpers that sign users in. */
// biome-ignore lint/suspicious/noExplicitAny: any response of the API
function asClient(app: any): TestClient {
  return {
    id: app.client_id,
    secret: app.client_secret ?? null,
    authMethod: app.token_endpoint_auth_method,
    redirectUri: app.redirect_uris[0],
  } as TestClient;
}

test('an account creates an app, which works at once', async () => {
  const user = await createConsoleUser(server);
  const made = await user.request('POST', '/apps', { json: { ...minimal, scope: 'read:posts' } });
  assert.equal(made.status, 201, made.text);
  const { body: app } = made;
  assert.equal(made.headers.get('location'), `/apps/${app.client_id}`);
  assert.equal(made.headers.get('cache-control'), 'no-store');
  assert.deepEqual(
    [app.state, app.origin, app.role, app.scope, app.grant_types, app.token_endpoint_auth_method],
    [
      'unverified',
      'account',
      'owner',
      'read:posts',
      ['authorization_code', 'refresh_token'],
      'client_secret_basic',
    ],
  );
  assert.equal(app.secrets.length, 1);
  assert.equal(app.secrets[0].created_by, user.account.id);
  const read = await user.request('GET', `/apps/${app.client_id}`);
  assert.equal(read.body.client_secret, undefined);
  assert.deepEqual(
    { ...app, client_secret: undefined, client_secret_expires_at: undefined },
    {
      ...read.body,
      client_secret: undefined,
      client_secret_expires_at: undefined,
    },
  );
  const listed = await user.request('GET', '/apps');
  assert.deepEqual(listed.body.items, [read.body]);
  assert.ok(!listed.text.includes(app.client_secret));

  const other = await createConsoleUser(server);
  const { code, verifier } = await obtainCode(server, {
    account: other.account,
    client: asClient(app),
    scopes: ['read:posts'],
  });
  const token = await postForm(server, '/oauth/token', asClient(app), {
    grant_type: 'authorization_code',
    code,
    redirect_uri: app.redirect_uris[0],
    code_verifier: verifier,
  });
  assert.equal(token.status, 200);
});

test('metadata is checked as in a registration, with a pointer to the problem', async () => {
  const user = await createConsoleUser(server);
  const wrong: [body: Record<string, unknown>, pointer: string, code?: string][] = [
    [{ redirect_uris: ['http://reader.example/cb'] }, '/redirect_uris', 'invalid-redirect-uri'],
    [{ redirect_uris: ['javascript:alert(1)'] }, '/redirect_uris', 'invalid-redirect-uri'],
    [{ redirect_uris: [`${server.baseUrl}/console/callback`] }, '/redirect_uris', 'invalid-redirect-uri'],
    [{ redirect_uris: [] }, '/redirect_uris', 'invalid-redirect-uri'],
    [{ client_name: ' \u202e ' }, '/client_name', 'invalid-client-metadata'],
    [{ client_name: null }, '/client_name'],
    [{ logo_uri: 'javascript:alert(1)' }, '/logo_uri', 'invalid-client-metadata'],
    [{ grant_types: ['implicit'] }, '/grant_types/0', 'invalid-body'],
    [{ grant_types: ['password'] }, '/grant_types/0', 'invalid-body'],
    [
      { grant_types: ['client_credentials'], token_endpoint_auth_method: 'none' },
      '/grant_types',
      'invalid-client-metadata',
    ],
    [{ scope: 'read:posts write:events' }, '/scope', 'invalid-client-metadata'],
    [{ scope: 'admin' }, '/scope', 'invalid-client-metadata'],
    [{ scope: 'read:apps' }, '/scope', 'invalid-client-metadata'],
    [{ token_endpoint_auth_method: 'private_key_jwt' }, '/jwks', 'invalid-client-metadata'],
    [{ jwks: { keys: [{ kty: 'X', n: 'x'.repeat(65_536) }] } }, '/jwks', 'invalid-client-metadata'],
    // PostgreSQL would return it with 309 digits.
    [{ jwks: { keys: [{ kty: 'X', n: [1e308] }] } }, '', 'invalid-client-metadata'],
    [{ client_id: 'mine' }, '/client_id'],
    [{ client_secret: 'mine' }, '/client_secret'],
    [{ state: 'verified' }, '/state'],
    [{ require_pkce: false }, '/require_pkce'],
    [{ access_token_format: 'opaque' }, '/access_token_format'],
    [{ may_subscribe: true }, '/may_subscribe'],
    [
      { subject_type: 'pairwise', redirect_uris: ['https://a.example/', 'https://b.example/'] },
      '/subject_type',
    ],
  ];
  for (const [fields, pointer, code] of wrong) {
    const made = await user.request('POST', '/apps', { json: { ...minimal, ...fields } });
    assert.equal(made.status, 422, `${JSON.stringify(fields)}: ${made.text}`);
    assert.equal(made.body.errors[0].pointer, pointer, made.text);
    if (code !== undefined) assert.equal(made.body.code, code, made.text);
  }
  assert.deepEqual((await user.request('GET', '/apps')).body.items, []);
  for (const json of [[], 'x', 7]) assert.equal((await user.request('POST', '/apps', { json })).status, 422);
});

test('an app that authenticates may act for itself, and never gets operator-only scopes', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user, { grant_types: ['client_credentials'], redirect_uris: [] });
  assert.deepEqual(app.response_types, []);
  const { status } = await postForm(server, '/oauth/token', asClient(app), {
    grant_type: 'client_credentials',
  });
  assert.equal(status, 200);
});

test('a change is a merge patch of the whole app, checked and shown', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user, { logo_uri: 'https://reader.example/logo.png' });
  const path = `/apps/${app.client_id}`;
  const changed = await user.request('PATCH', path, {
    json: {
      client_name: 'Better',
      logo_uri: null,
      post_logout_redirect_uris: ['https://reader.example/bye'],
    },
  });
  assert.equal(changed.status, 200, changed.text);
  assert.deepEqual(
    [changed.body.client_name, changed.body.logo_uri, changed.body.post_logout_redirect_uris],
    ['Better', null, ['https://reader.example/bye']],
  );
  assert.deepEqual(changed.body.redirect_uris, minimal.redirect_uris);
  assert.equal(changed.body.secrets.length, 1);
  const wrong = await user.request('PATCH', path, { json: { redirect_uris: ['http://x.example/'] } });
  assert.equal(wrong.status, 422);
  assert.equal((await user.request('PATCH', path, { json: { client_name: null } })).status, 422);
  const patch = { headers: { 'content-type': 'application/json-patch+json' }, raw: '[]' };
  assert.equal((await user.request('PATCH', path, patch)).status, 415);
  const open = await user.request('PATCH', path, { json: { token_endpoint_auth_method: 'none' } });
  assert.deepEqual([open.status, open.body.secrets], [200, []], open.text);
  const machine = await user.request('PATCH', path, {
    json: { grant_types: ['authorization_code', 'client_credentials'] },
  });
  assert.equal(machine.status, 422, 'a public app does not speak for itself');
});

test('concurrent changes are all applied', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user);
  const path = `/apps/${app.client_id}`;
  const changes = { client_uri: 'https://reader.example', tos_uri: 'https://reader.example/tos' };
  const answers = await Promise.all(
    Object.entries(changes).map(([name, value]) => user.request('PATCH', path, { json: { [name]: value } })),
  );
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200],
  );
  const { body } = await user.request('GET', path);
  assert.deepEqual([body.client_uri, body.tos_uri], Object.values(changes));
});

test('at most two secrets are live, also when requested concurrently, and the last one stays', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user);
  const path = `/apps/${app.client_id}/secrets`;
  const asked = await Promise.all([1, 2, 3, 4].map(() => user.request('POST', path)));
  const made = asked.filter(({ status }) => status === 201);
  assert.deepEqual(
    [
      made.length,
      asked.filter(({ status, body }) => status === 409 && body.code === 'too-many-secrets').length,
    ],
    [1, 3],
  );
  const second = made[0]?.body;
  const works = async (secret: string) => {
    const client = { ...asClient(app), secret };
    const { body } = await postForm(server, '/oauth/introspect', client, { token: 'x' });
    return body.active === false;
  };
  assert.ok(await works(second.client_secret));
  assert.ok(await works(app.client_secret));
  const [first] = app.secrets;
  const deleted = await Promise.all(
    [first.id, second.id].map((id) => user.request('DELETE', `${path}/${id}`)),
  );
  assert.deepEqual(deleted.map(({ status }) => status).sort(), [204, 409]);
  assert.equal(deleted.find(({ status }) => status === 409)?.body.code, 'last-secret');
  assert.equal((await user.request('DELETE', `${path}/${newId()}`)).status, 404);
  assert.equal((await user.request('DELETE', `${path}/nothing`)).status, 404);
  const isFirstGone = deleted[0]?.status === 204;
  await until(
    async () => works(isFirstGone ? app.client_secret : second.client_secret),
    (value) => !value,
  );
  const open = await createAppOf(user, { token_endpoint_auth_method: 'none' });
  const none = await user.request('POST', `/apps/${open.client_id}/secrets`);
  assert.deepEqual([none.status, none.body.code], [409, 'no-client-secret']);
});

test('a repeated idempotency key returns the same secret', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user);
  const headers = { 'idempotency-key': newId() };
  const first = await user.request('POST', `/apps/${app.client_id}/secrets`, { headers });
  const again = await user.request('POST', `/apps/${app.client_id}/secrets`, { headers });
  assert.deepEqual([first.status, again.status], [201, 201]);
  assert.equal(again.body.client_secret, first.body.client_secret);
  const { rows } = await sql<{ body: string }>`select body from idempotency_keys`.execute(db);
  assert.ok(rows.every(({ body }) => !body.includes(first.body.client_secret)));
});

/** The response status of every action on an app. */
async function statuses(request: ConsoleUser['request'], id: string, secret: string, member: string) {
  const path = `/apps/${id}`;
  const asked: Record<string, [method: string, path: string, json?: unknown]> = {
    read: ['GET', path],
    members: ['GET', `${path}/members`],
    member: ['GET', `${path}/members/${member}`],
    change: ['PATCH', path, { contacts: ['a@example.com'] }],
    addSecret: ['POST', `${path}/secrets`],
    deleteSecret: ['DELETE', `${path}/secrets/${secret}`],
    invite: ['PUT', `${path}/members/${newId()}%40example.com`, { role: 'developer' }],
    promote: ['PUT', `${path}/members/${member}`, { role: 'owner' }],
    remove: ['DELETE', `${path}/members/${member}`],
    delete: ['DELETE', path],
  };
  const found: Record<string, number> = {};
  for (const [what, [method, at, json]] of Object.entries(asked)) {
    found[what] = (await request(method, at, json === undefined ? {} : { json })).status;
  }
  return found;
}

test('another developer and a token with the wrong scope neither see nor change an app', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const other = await createConsoleUser(server);
  await createAppOf(other);
  const [secret] = app.secrets;
  const found = await statuses(other.request, app.client_id, secret.id, owner.account.id);
  assert.deepEqual([...new Set(Object.values(found))], [404], JSON.stringify(found));
  // The token has the scope `admin`, and its account is not an administrator (any more).
  const liar = await createConsoleUser(server, { scopes: [...consoleScopes, 'admin'] });
  const lied = await statuses(liar.request, app.client_id, secret.id, owner.account.id);
  assert.deepEqual([...new Set(Object.values(lied))], [404], JSON.stringify(lied));
  const weak = await createConsoleUser(server, { scopes: ['read:apps'], account: owner.account });
  const refused = await statuses(weak.request, app.client_id, secret.id, owner.account.id);
  assert.deepEqual(
    Object.entries(refused)
      .filter(([, status]) => status === 200)
      .map(([what]) => what),
    ['read', 'members', 'member'],
  );
  assert.ok(Object.values(refused).every((status) => status === 200 || status === 403));
  const client = await createTestClient(server, { scopes: ['read:apps', 'write:apps'] });
  const { accessToken } = await mintAccessToken(server, { client, scopes: ['read:apps', 'write:apps'] });
  const machine = requester(server, accessToken);
  assert.equal((await machine('GET', `/apps/${app.client_id}`)).status, 404);
  assert.equal((await machine('GET', '/apps')).body.code, 'account-required');
  assert.equal((await machine('POST', '/apps', { json: minimal })).body.code, 'account-required');
  for (const id of [consoleClientId, 'nuncio-docs', 'x%00', '%ff', 'no-such']) {
    const { status } = await owner.request('GET', `/apps/${id}`);
    assert.ok([400, 404].includes(status), `${id}: ${status}`);
  }
  assert.equal((await owner.request('GET', `/apps/${app.client_id}`)).status, 200);
});

/** A new user becomes a member by invitation. */
async function join(owner: ConsoleUser, app: { client_id: string }, role: string): Promise<ConsoleUser> {
  const member = await createConsoleUser(server);
  const path = `/apps/${app.client_id}/members/${encodeURIComponent(member.account.email)}`;
  const invited = await owner.request('PUT', path, { json: { role } });
  assert.equal(invited.status, 201, invited.text);
  const received = await member.request('GET', '/app-invitations');
  assert.equal(received.body.items.length, 1, received.text);
  const [invitation] = received.body.items;
  assert.equal((await member.request('GET', `/apps/${app.client_id}`)).status, 404);
  const accepted = await member.request('POST', invitation._links.accept.href);
  assert.deepEqual([accepted.status, accepted.body.role, accepted.body.state], [200, role, 'active']);
  return member;
}

test('a developer edits the app and its secrets, and manages neither members nor deletion', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const developer = await join(owner, app, 'developer');
  const [secret] = app.secrets;
  const found = await statuses(developer.request, app.client_id, secret.id, owner.account.id);
  assert.deepEqual(found, {
    ...{ read: 200, members: 200, member: 200, change: 200, addSecret: 201, deleteSecret: 204 },
    ...{ invite: 403, promote: 403, remove: 403, delete: 403 },
  });
  const self = `/apps/${app.client_id}/members/${developer.account.id}`;
  assert.equal((await developer.request('PUT', self, { json: { role: 'owner' } })).status, 403);
  assert.equal((await developer.request('DELETE', self)).status, 204, 'everybody may leave');
  assert.equal((await developer.request('GET', `/apps/${app.client_id}`)).status, 404);
});

test('an inviter does not learn who has an account', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const real = await createConsoleUser(server);
  const shapes = [];
  for (const email of [real.account.email, 'nobody-at-all@example.com']) {
    const path = `/apps/${app.client_id}/members/${encodeURIComponent(email)}`;
    const put = await owner.request('PUT', path, { json: { role: 'developer' } });
    const read = await owner.request('GET', path);
    const again = await owner.request('PUT', path, { json: { role: 'owner' } });
    shapes.push(
      [put, read, again].map(({ status, body }) => [
        status,
        { ...body, email: 0, created_at: 0, expires_at: 0, _links: 0 },
      ]),
    );
  }
  assert.deepEqual(shapes[0], shapes[1]);
  // Account ids reveal nothing either.
  for (const id of [real.account.id, newId()]) {
    const put = await owner.request('PUT', `/apps/${app.client_id}/members/${id}`, {
      json: { role: 'owner' },
    });
    assert.equal(put.status, 404);
  }
  const { body } = await owner.request('GET', `/apps/${app.client_id}/members`);
  assert.deepEqual(
    body.items.map((member: { state: string }) => member.state),
    ['active', 'invited', 'invited'],
  );
});

test('an invitation is for one address and works once, until it is declined, revoked or expired', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const invited = await createConsoleUser(server);
  const other = await createConsoleUser(server);
  const path = `/apps/${app.client_id}/members/${encodeURIComponent(invited.account.email)}`;
  const put = () => owner.request('PUT', path, { json: { role: 'developer' } });
  const received = async () => (await invited.request('GET', '/app-invitations')).body.items;

  await put();
  const [first] = await received();
  assert.deepEqual(
    [first.app.client_name, first.invited_by.email, first.role],
    ['Reader', owner.account.email, 'developer'],
  );
  for (const [method, at] of [
    ['GET', first._links.self.href],
    ['POST', first._links.accept.href],
    ['DELETE', first._links.self.href],
  ]) {
    assert.equal((await other.request(method as string, at)).status, 404);
    assert.equal((await owner.request(method as string, at)).status, 404);
  }
  assert.equal((await invited.request('GET', first._links.self.href)).status, 200);
  assert.equal((await invited.request('DELETE', first._links.self.href)).status, 204);
  assert.equal((await invited.request('POST', first._links.accept.href)).status, 404);

  await put();
  assert.equal((await owner.request('DELETE', path)).status, 204);
  assert.deepEqual(await received(), []);
  assert.equal((await owner.request('DELETE', path)).status, 404);

  await put();
  const [late] = await received();
  await sql`update app_invitations set expires_at = now() where id = ${late.id}`.execute(db);
  assert.equal((await invited.request('POST', late._links.accept.href)).status, 404);

  await put();
  const [last] = await received();
  const accepted = await Promise.all([1, 2, 3].map(() => invited.request('POST', last._links.accept.href)));
  assert.deepEqual(accepted.map(({ status }) => status).sort(), [200, 404, 404]);
});

test('the last owner stays, also when two leave concurrently', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const path = (user: ConsoleUser) => `/apps/${app.client_id}/members/${user.account.id}`;
  const alone = await owner.request('DELETE', path(owner));
  assert.deepEqual([alone.status, alone.body.code], [409, 'last-owner']);
  const demoted = await owner.request('PUT', path(owner), { json: { role: 'developer' } });
  assert.deepEqual([demoted.status, demoted.body.code], [409, 'last-owner']);
  for (let round = 0; round < 5; round += 1) {
    const second = await join(owner, app, 'owner');
    const left = await Promise.all([
      owner.request('DELETE', path(owner)),
      second.request('PUT', path(second), { json: { role: 'developer' } }),
    ]);
    assert.deepEqual(left.filter(({ status }) => status === 409).length, 1, JSON.stringify(left));
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from app_members where client_id = ${app.client_id} and role = 'owner'`.execute(
      db,
    );
    assert.equal(rows[0]?.count, 1);
    await sql`delete from app_members where client_id = ${app.client_id}`.execute(db);
    await sql`
      insert into app_members (client_id, account_id, role)
      values (${app.client_id}, ${owner.account.id}, 'owner')`.execute(db);
  }
});

test('deleting an app ends everything users granted it', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const { accessToken } = await mintAccessToken(server, {
    account: owner.account,
    client: { id: app.client_id },
    scopes: ['read:posts'],
  });
  const asApp = requester(server, accessToken);
  assert.equal((await asApp('GET', '/articles')).status, 200);
  assert.equal((await owner.request('DELETE', `/apps/${app.client_id}`)).status, 204);
  assert.equal((await owner.request('DELETE', `/apps/${app.client_id}`)).status, 404);
  await until(
    async () => (await asApp('GET', '/articles')).status,
    (status) => status === 401,
  );
});

test('an administrator manages every app, adds members by id, and is named in the audit log', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const path = `/apps/${app.client_id}`;
  assert.equal((await admin.request('GET', path)).body.role, 'admin');
  const friend = await createConsoleUser(server);
  const added = await admin.request('PUT', `${path}/members/${friend.account.id}`, {
    json: { role: 'owner' },
  });
  assert.deepEqual([added.status, added.body.state], [201, 'active']);
  assert.equal((await friend.request('GET', path)).body.role, 'owner');
  const { rows } = await sql<{ kind: string; actor: string }>`
    select kind, actor from audit_entries where client_id = ${app.client_id} order by id`.execute(db);
  assert.deepEqual(rows, [
    { kind: 'client.registered', actor: owner.account.id },
    { kind: 'app.member_added', actor: admin.account.id },
  ]);
});

test('members read apps managed elsewhere and change them where they come from', async () => {
  const member = await createConsoleUser(server);
  for (const origin of ['operator', 'registration'] as const) {
    const client = await createTestClient(server, { origin });
    await sql`
      insert into app_members (client_id, account_id, role)
      values (${client.id}, ${member.account.id}, 'owner')`.execute(db);
    const path = `/apps/${client.id}`;
    assert.equal((await member.request('GET', path)).body.origin, origin);
    const changed = await member.request('PATCH', path, { json: { client_name: 'Mine' } });
    assert.deepEqual([changed.status, changed.body.code], [403, 'app-managed-elsewhere']);
    assert.equal((await member.request('DELETE', path)).status, 403);
  }
});

test('an account owns at most 50 apps, also when they are created concurrently', async () => {
  const user = await createConsoleUser(server);
  const app = await createAppOf(user);
  await sql`
    with made as (
      insert into clients (id, origin, name) select 'many-' || n, 'account', 'Many' from generate_series(1, 48) n
      returning id)
    insert into app_members (client_id, account_id, role) select id, ${user.account.id}, 'owner' from made`.execute(
    db,
  );
  const made = await Promise.all([1, 2, 3].map(() => user.request('POST', '/apps', { json: minimal })));
  assert.deepEqual(made.map(({ status }) => status).sort(), [201, 409, 409]);
  const { body } = await user.request('GET', '/apps?limit=30');
  assert.equal(body.items.length, 30);
  const next = await user.request('GET', body._links.next.href);
  assert.deepEqual([next.body.items.length, next.body._links.next], [20, undefined]);
  assert.equal((await user.request('GET', `/apps/${app.client_id}`)).status, 200);
});

test('a suspended app gets no tokens, no access and no deliveries until it is reinstated', async (t) => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const client = asClient(app);
  const account = (await createConsoleUser(server)).account;
  const { code, verifier } = await obtainCode(server, {
    account,
    client,
    scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
  });
  const { body: tokens } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    redirect_uri: client.redirectUri,
    code_verifier: verifier,
  });
  const request = requester(server, tokens.access_token as string);
  const subscriber = await startSubscriber(t);
  await subscribe({ request }, { url: subscriber.url, kinds: ['push'] });
  const publisher = await createPublisher(server);
  await publish(publisher, account, ['before']);
  await subscriber.waitFor(1);

  await sql`update clients set suspended_at = now() where id = ${app.client_id}`.execute(db);
  await until(
    async () => (await request('GET', '/articles')).status,
    (status) => status === 401,
  );
  const refresh = () =>
    postForm(server, '/oauth/token', client, {
      grant_type: 'refresh_token',
      refresh_token: tokens.refresh_token as string,
    });
  await until(
    async () => (await refresh()).body.error,
    (error) => error === 'invalid_client',
  );
  const { challenge } = createPkce();
  const page = await new TestBrowser(server.baseUrl).open(
    authorizationUrl(server, client, { code_challenge: challenge, code_challenge_method: 'S256' }),
  );
  assert.equal(page.leftTo, null);
  assert.match(page.text, /is suspended/);
  await publish(publisher, account, ['meanwhile']);
  await fannedOut(server);
  assert.equal((await owner.request('GET', `/apps/${app.client_id}`)).body.state, 'suspended');

  await sql`update clients set suspended_at = null where id = ${app.client_id}`.execute(db);
  const renewed = await until(refresh, ({ status }) => status === 200);
  assert.equal(
    (await requester(server, renewed.body.access_token as string)('GET', '/articles')).status,
    200,
  );
  assert.equal((await request('GET', '/articles')).status, 401, 'the revoked token stays revoked');
  await publish(publisher, account, ['after']);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(String(body)).ref),
    ['refs/heads/before', 'refs/heads/after'],
  );
});

test('a verified app is unverified when a member changes it, and not when an administrator does', async () => {
  const owner = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  for (const [user, change, state] of [
    [owner, { contacts: ['a@example.com'] }, 'verified'],
    [owner, { client_name: 'Your Bank' }, 'unverified'],
    [owner, { redirect_uris: ['https://elsewhere.example/'] }, 'unverified'],
    [owner, { logo_uri: 'https://elsewhere.example/logo.png' }, 'unverified'],
    [owner, { client_uri: 'https://elsewhere.example/' }, 'unverified'],
    [admin, { client_name: 'Corrected' }, 'verified'],
  ] as const) {
    const app = await createAppOf(owner);
    await sql`update clients set verified_at = now() where id = ${app.client_id}`.execute(db);
    const changed = await user.request('PATCH', `/apps/${app.client_id}`, { json: change });
    assert.equal(changed.body.state, state, JSON.stringify(change));
  }
});

test('only members try an unverified app when apps are reviewed, and only admins create apps when configured', async (t) => {
  const platform = createPlatform({ ...shipped, apps: { creation: 'admins', review: true } });
  const own = await startTestServer(t, {}, 'dev', platform);
  const admin = await createConsoleUser(own, { isAdmin: true });
  const user = await createConsoleUser(own);
  const refused = await user.request('POST', '/apps', { json: minimal });
  assert.deepEqual([refused.status, refused.body.code], [403, 'app-creation-restricted']);
  const made = await admin.request('POST', '/apps', { json: minimal });
  const client = asClient(made.body);
  const attempt = async (account: ConsoleUser['account']) =>
    (await obtainCode(own, { account, client, scopes: ['read:posts'] })).redirect.searchParams;
  assert.ok((await attempt(admin.account)).get('code'));
  assert.equal((await attempt(user.account)).get('error'), 'access_denied');
  await sql`update clients set verified_at = now() where id = ${client.id}`.execute(own.db);
  await until(
    async () => (await attempt(user.account)).has('code'),
    (value) => value,
  );
});
