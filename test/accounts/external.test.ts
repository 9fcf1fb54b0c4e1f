/** Accounts of another application: external ids, the accounts API, and events for unknown users. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId, docsClientId } from '../../src/clients/own_clients.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createGrant } from '../../src/grants/grant.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createAccountsClient, externalPath } from '../support/clients/accounts_client.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorize,
  clientToken,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  postForm,
} from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '1' });
const { db } = server;
const { client, scopes, request, find } = await createAccountsClient(server);
const path = externalPath;

const oddIds = {
  'as long as it may be': 'ä'.repeat(255),
  'of 255 emoji': '😀'.repeat(255),
  'like an account id': '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
  'with slashes': 'a/b//c',
  'with an encoded slash': 'a%2Fb',
  'with dots': '../../admin',
  'with a question mark': 'a?b=c#d&e;f',
  'with quotes': `'"\\;--`,
  'with spaces around': ' 7 ',
  'with two letters for one': 'e\u0301',
  'of no width': '\u200b\u202e',
};

for (const [name, externalId] of Object.entries(oddIds)) {
  test(`an external id ${name} is stored and found exactly`, async () => {
    const made = await request('PUT', path(externalId), { json: { name: 'Ann' } });
    assert.equal(made.status, 201, made.text);
    assert.equal(made.body.external_id, externalId);
    assert.equal(made.headers.get('location'), `/accounts/${made.body.id}`);
    assert.notEqual(made.body.id, externalId);
    assert.deepEqual(
      (await find(externalId)).map(({ id }: { id: string }) => id),
      [made.body.id],
    );
    const again = await request('PUT', path(externalId), { json: {} });
    assert.deepEqual([again.status, again.body.id, again.body.name], [200, made.body.id, 'Ann']);
    const event = { kind: 'push', account: { external_id: externalId }, body: pushBody() };
    const { status, body } = await request('POST', '/events', { json: event });
    assert.equal(status, 202);
    const { rows } = await sql<{ account_id: string }>`
      select account_id from events where id = ${body.id}`.execute(db);
    assert.equal(rows[0]?.account_id, made.body.id);
  });
}

test('external ids that differ in case or Unicode composition are different accounts', async () => {
  const ids = ['User-1', 'user-1', 'USER-1', 'é', 'e\u0301\u0301', 'e\u0301 '];
  const made = await request('POST', '/accounts', { json: ids.map((id) => ({ external_id: id })) });
  assert.equal(made.status, 200, made.text);
  assert.equal(new Set(made.body.items.map(({ id }: { id: string }) => id)).size, ids.length);
  for (const id of ids) assert.equal((await find(id)).length, 1, id);
});

test('an external id that looks like another account’s id is not mistaken for it', async () => {
  const other = await createTestAccount(server);
  const made = await request('PUT', path(other.id), { json: {} });
  assert.equal(made.status, 201);
  assert.notEqual(made.body.id, other.id);
  const byId = { kind: 'push', account: other.id, body: pushBody() };
  const byExternalId = { kind: 'push', account: { external_id: other.id }, body: pushBody() };
  const { body } = await request('POST', '/events', { json: [byId, byExternalId] });
  const { rows } = await sql<{ account_id: string }>`
    select account_id from events where id = any(${body.ids}::text[]) order by position`.execute(db);
  assert.deepEqual(
    rows.map(({ account_id }) => account_id),
    [other.id, made.body.id],
  );
});

test('an invalid external id is refused everywhere', async () => {
  for (const bad of [
    '',
    'x'.repeat(256),
    '😀'.repeat(256),
    'a\nb',
    'a\u007f',
    'a\u0085',
    'a\u0000',
    '\ud800',
    1.5,
    true,
    [7],
    null,
  ]) {
    const label = JSON.stringify(bad);
    const event = { kind: 'push', account: { external_id: bad }, body: pushBody() };
    const published = await request('POST', '/events', { json: event });
    assert.equal(published.status, 422, `${label}: ${published.text}`);
    assert.equal(published.body.errors[0].pointer, '/account', label);
    const put = await request('POST', '/accounts', { json: [{ external_id: bad }] });
    assert.equal(put.status, 422, `${label}: ${put.text}`);
  }
  for (const bad of ['x'.repeat(256), 'a%0Ab', '%00', '%C2%85']) {
    assert.equal((await request('PUT', `/accounts/external/${bad}`, { json: {} })).status, 400, bad);
    assert.equal((await request('GET', `/accounts?external_id=${bad}`)).status, 400, bad);
  }
  const two = { kind: 'push', account: { external_id: 'a', id: newId() }, body: pushBody() };
  assert.equal((await request('POST', '/events', { json: two })).status, 422);
});

test('an integer as external id is the account of its decimal text wherever a machine client sends one', async () => {
  const { status, body: made } = await request('PUT', path('4711'), { json: { name: 'Ann' } });
  assert.equal(status, 201);
  const account = { external_id: 4711 };
  const published = await request('POST', '/events', { json: { kind: 'push', account, body: pushBody() } });
  assert.equal(published.status, 202, published.text);
  const { rows } = await sql<{ account_id: string }>`
    select account_id from events where id = ${published.body.id}`.execute(db);
  assert.equal(rows[0]?.account_id, made.id);
  const link = await request('POST', '/account-links', { json: { account } });
  assert.equal(link.status, 201, link.text);
  const put = await request('POST', '/accounts', { json: [account, { external_id: -1 }] });
  assert.equal(put.status, 200, put.text);
  const items = put.body.items as { id: string; external_id: string }[];
  assert.equal(items[0]?.id, made.id);
  assert.deepEqual(
    items.map((item) => item.external_id),
    ['4711', '-1'],
  );
  const twice = await request('POST', '/accounts', { json: [account, { external_id: '4711' }] });
  assert.deepEqual([twice.status, twice.body.errors[0].code], [422, 'duplicate']);
});

test('a number that is no safe integer is refused as external id with a message about numbers', async () => {
  for (const bad of ['1.5', '9007199254740992', '9007199254740993', '1e300', 'true']) {
    const { status, body } = await request('POST', '/accounts', {
      raw: `{"external_id":${bad}}`,
      headers: { 'content-type': 'application/json' },
    });
    assert.equal(status, 422, bad);
    assert.equal(body.errors[0].pointer, '/external_id');
    assert.match(
      body.errors[0].message,
      /or an integer up to 9007199254740991 \(send other numbers as strings\)$/,
    );
  }
});

test('concurrent events for an unknown user create one account', async () => {
  const externalId = newId();
  const event = () => ({ kind: 'push', account: { external_id: externalId }, body: pushBody() });
  const requests = Array.from({ length: 24 }, (_each, index) => {
    if (index % 4 === 0) return request('POST', '/events', { json: [event(), event()] });
    if (index % 4 === 1) return request('POST', '/events', { json: { ...event(), id: newId() } });
    if (index % 4 === 2)
      return request('POST', '/events', { json: event(), headers: { 'idempotency-key': newId() } });
    return request('POST', '/events', { json: event() });
  });
  for (const { status, text } of await Promise.all(requests)) assert.equal(status, 202, text);
  const found = await find(externalId);
  assert.equal(found.length, 1);
  assert.deepEqual([found[0].email, found[0].name, found[0].disabled], [null, null, false]);
  const { rows } = await sql<{ count: string }>`
    select count(*) from events where account_id = ${found[0].id}`.execute(db);
  assert.equal(Number(rows[0]?.count), 30);
});

test('concurrent lists with the same new users in different orders create each user once', async () => {
  const ids = Array.from({ length: 40 }, () => newId());
  const json = (given: string[]) =>
    given.map((id) => ({ kind: 'push', account: { external_id: id }, body: pushBody() }));
  const answers = await Promise.all(
    Array.from({ length: 8 }, (_each, index) =>
      request('POST', '/events', { json: json(index % 2 === 0 ? ids : ids.toReversed()) }),
    ),
  );
  for (const { status, text } of answers) assert.equal(status, 202, text);
  const { rows } = await sql<{ count: string }>`
    select count(*) from accounts where external_id = any(${ids}::text[])`.execute(db);
  assert.equal(Number(rows[0]?.count), ids.length);
});

test('a refused list creates no account and no event', async () => {
  const externalId = newId();
  const good = { kind: 'push', account: { external_id: externalId }, body: pushBody() };
  const answer = await request('POST', '/events', { json: [good, { ...good, account: newId() }] });
  assert.deepEqual([answer.status, answer.body.code], [422, 'unknown-account']);
  assert.deepEqual(await find(externalId), []);
});

test('a request creates and changes a thousand accounts, and omitted members stay', async () => {
  const ids = Array.from({ length: 1_000 }, (_each, index) => `bulk-${index}`);
  const json = ids.map((id) => ({ external_id: id, email: `${id}@example.com`, name: `Name ${id}` }));
  const key = { 'idempotency-key': newId() };
  const made = await request('POST', '/accounts', { json, headers: key });
  assert.equal(made.status, 200, made.text);
  assert.deepEqual(
    made.body.items.map(({ external_id: id }: { external_id: string }) => id),
    ids,
  );
  assert.ok(made.body.items.every((item: { is_new: boolean }) => item.is_new));
  const replayed = await request('POST', '/accounts', { json, headers: key });
  assert.equal(replayed.headers.get('idempotency-replayed'), 'true');
  assert.equal(replayed.text, made.text);
  const again = await request('POST', '/accounts', {
    json: ids.map((id) => ({ external_id: id, email_verified: true })),
  });
  assert.ok(again.body.items.every((item: { is_new: boolean }) => !item.is_new));
  const [account] = await find('bulk-999');
  assert.deepEqual(
    [account.email, account.email_verified, account.name],
    ['bulk-999@example.com', true, 'Name bulk-999'],
  );
  const tooMany = await request('POST', '/accounts', { json: [...json, { external_id: 'one more' }] });
  assert.equal(tooMany.status, 422);
  const twice = await request('POST', '/accounts', { json: [{ external_id: 'x' }, { external_id: 'x' }] });
  assert.deepEqual([twice.status, twice.body.errors[0].pointer], [422, '/1/external_id']);
  assert.deepEqual(await find('x'), []);
  const pages: string[] = [];
  for (let next = '/accounts?limit=200'; next !== undefined; ) {
    const { body } = await request('GET', next);
    pages.push(...body.items.map(({ id }: { id: string }) => id));
    next = body._links.next?.href;
  }
  const { rows } = await sql<{ id: string }>`select id from accounts order by id`.execute(db);
  assert.deepEqual(
    pages,
    rows.map(({ id }) => id),
  );
});

test('an external account with a local account’s address is separate and signs nobody in', async () => {
  const local = await createTestAccount(server);
  const external = newId();
  const made = await request('PUT', path(external), {
    json: { email: local.email.toUpperCase(), email_verified: true },
  });
  assert.deepEqual([made.status, made.body.email], [201, local.email]);
  assert.notEqual(made.body.id, local.id);
  const second = await request('PUT', path(`${external}-2`), { json: { email: local.email } });
  assert.equal(second.status, 201, 'two external accounts can share an address');
  // The local account still signs in, and the grant is its own.
  const app = await createTestClient(server);
  const { grantId } = await authorize(server, { account: local, client: app, scopes: ['read:profile'] });
  const { rows } = await sql<{
    account_id: string;
  }>`select account_id from grants where id = ${grantId}`.execute(db);
  assert.equal(rows[0]?.account_id, local.id);
  // The application may not change the address of a local account.
  for (const json of [{ email: 'mallory@example.com' }, { email_verified: true }]) {
    const changed = await request('PATCH', `/accounts/${local.id}`, { json });
    assert.deepEqual([changed.status, changed.body.code], [409, 'local-account']);
  }
  assert.equal((await request('PATCH', `/accounts/${local.id}`, { json: { name: 'New' } })).body.name, 'New');
});

test('an external account’s unverified address accepts no invitation', async () => {
  const owner = await createConsoleUser(server);
  const app = await owner.request('POST', '/apps', {
    json: { client_name: 'Theirs', redirect_uris: ['https://reader.example/'] },
  });
  const email = `${newId()}@example.com`;
  const invited = await owner.request('PUT', `/apps/${app.body.client_id}/members/${email}`, {
    json: { role: 'owner' },
  });
  assert.equal(invited.status, 201);
  const { body: account } = await request('PUT', path(newId()), { json: { email } });
  const console_ = await createTestClient(server, { scopes: ['read:apps', 'write:apps'] });
  const { accessToken } = await mintAccessToken(server, {
    account,
    client: console_,
    scopes: ['read:apps', 'write:apps'],
  });
  const thief = requester(server, accessToken);
  assert.deepEqual((await thief('GET', '/app-invitations')).body.items, []);
  const { rows } = await sql<{ id: string }>`select id from app_invitations where email = ${email}`.execute(
    db,
  );
  assert.equal((await thief('POST', `/app-invitations/${rows[0]?.id}/accept`)).status, 404);
  await request('PATCH', `/accounts/${account.id}`, { json: { email_verified: true } });
  assert.equal(
    (await thief('GET', '/app-invitations')).body.items.length,
    1,
    'the application vouches for it',
  );
});

test('an address names an app member only when it is verified and unique', async () => {
  const owner = await createConsoleUser(server);
  const victim = await createTestAccount(server);
  const made = await owner.request('POST', '/apps', {
    json: { client_name: 'Theirs', redirect_uris: ['https://reader.example/'] },
  });
  const app = `/apps/${made.body.client_id}`;
  const join = async () => {
    const { body } = await request('PUT', path(newId()), { json: {} });
    await sql`
      insert into app_members (client_id, account_id, role)
      values (${made.body.client_id}, ${body.id}, 'developer')`.execute(db);
    return body.id as string;
  };
  const rolesOf = async (...ids: string[]) => {
    const { rows } = await sql<{ role: string }>`
      select role from app_members
      where client_id = ${made.body.client_id} and account_id = any(${ids}::uuid[])`.execute(db);
    return rows.map(({ role }) => role);
  };
  const thief = await join();
  await request('PATCH', `/accounts/${thief}`, { json: { email: victim.email } });
  const byAddress = `${app}/members/${encodeURIComponent(victim.email)}`;
  assert.equal((await owner.request('GET', byAddress)).status, 404);
  assert.equal((await owner.request('GET', `${app}/members/${thief}`)).body.email, null);
  const put = await owner.request('PUT', byAddress, { json: { role: 'owner' } });
  assert.deepEqual([put.status, put.body.state, put.body.account], [201, 'invited', null]);
  assert.equal((await owner.request('DELETE', byAddress)).status, 204, 'takes the invitation back');
  assert.deepEqual(await rolesOf(thief), ['developer']);
  assert.equal((await owner.request('DELETE', byAddress)).status, 404);

  // The inviting account is shown without an address if the address is unverified.
  await owner.request('PUT', byAddress, { json: { role: 'developer' } });
  await sql`update app_invitations set invited_by = ${thief} where email = ${victim.email}`.execute(db);
  // Only invitations of owners count.
  const setRole = (role: string) =>
    sql`update app_members set role = ${role} where account_id = ${thief}`.execute(db);
  await setRole('owner');
  const invited = await createConsoleUser(server, { account: victim });
  const [received] = (await invited.request('GET', '/app-invitations')).body.items;
  assert.equal(received.invited_by.email, null);
  await owner.request('DELETE', byAddress);
  await setRole('developer');

  await request('PATCH', `/accounts/${thief}`, { json: { email_verified: true } });
  const verified = await owner.request('GET', byAddress);
  assert.deepEqual([verified.body.account, verified.body.email], [thief, victim.email]);
  const second = await join();
  await request('PATCH', `/accounts/${second}`, { json: { email: victim.email, email_verified: true } });
  for (const [method, json] of [
    ['GET', undefined],
    ['PUT', { role: 'owner' }],
    ['DELETE', undefined],
  ] as const) {
    const { status, body } = await owner.request(method, byAddress, json === undefined ? {} : { json });
    assert.deepEqual([status, body.code], [409, 'ambiguous-address'], method);
  }
  assert.deepEqual(await rolesOf(thief, second), ['developer', 'developer']);
});

const routes = [
  ['GET', '/accounts'],
  ['GET', '/accounts?external_id=a'],
  ['POST', '/accounts'],
  ['PUT', '/accounts/external/a'],
  ['GET', '/accounts/ID'],
  ['PATCH', '/accounts/ID'],
  ['DELETE', '/accounts/ID'],
  ['GET', '/accounts/ID/grants'],
  ['GET', '/grants/GRANT'],
  ['DELETE', '/grants/GRANT'],
  ['POST', '/account-links'],
] as const;

test('every caller but the operator’s machine clients with the scope is refused and learns nothing', async () => {
  const { body: account } = await request('PUT', path(newId()), { json: { email: 'secret@example.com' } });
  const app = await createApp(server, { account });
  const machine = await createTestClient(server, { scopes: ['write:events', 'admin'] });
  const withoutScope = requester(server, await clientToken(server, machine, ['write:events', 'admin']));
  // Tokens with more scopes than the server issues: of a user, of an app that registered itself, of a client that
  // lost the scope.
  const user = await mintAccessToken(server, { account, client, scopes });
  const registered = await createTestClient(server, { origin: 'registration', scopes });
  const ofRegistered = await mintAccessToken(server, { client: registered, scopes });
  const made = await createTestClient(server, { origin: 'account', scopes });
  const ofMade = await mintAccessToken(server, { client: made, scopes });
  const lost = await mintAccessToken(server, { client: machine, scopes });
  const strangers = {
    'another scope': withoutScope,
    'a user': requester(server, user.accessToken),
    'a registered app': requester(server, ofRegistered.accessToken),
    'an app of an account': requester(server, ofMade.accessToken),
    'a client that lost it': requester(server, lost.accessToken),
    'an app of the user': app.request,
  };
  for (const [who, ask] of Object.entries(strangers)) {
    for (const [method, route] of routes) {
      const answers = [];
      for (const [id, grant] of [
        [account.id, app.grantId],
        [newId(), newId()],
      ]) {
        const url = route.replace('ID', id as string).replace('GRANT', grant as string);
        const json = { account: id, external_id: 'a' };
        const answer = await ask(method, url, method === 'GET' || method === 'DELETE' ? {} : { json });
        assert.equal(answer.status, 403, `${who}: ${method} ${url} ${answer.text}`);
        answers.push([answer.body.code, answer.body.detail]);
      }
      assert.deepEqual(answers[0], answers[1], `${who}: ${method} ${route}`);
    }
  }
});

test('the scopes go to the operator’s machine clients, and no user can grant them', async () => {
  const account = await createTestAccount(server);
  const asked = await createTestClient(server, { scopes: ['read:posts', ...scopes] });
  // A user cannot grant these scopes: the authorization request is rejected.
  await assert.rejects(
    authorize(server, { account, client: asked, scopes: ['read:accounts'] }),
    /invalid_scope/,
  );
  const { scope } = await authorize(server, { account, client: asked, scopes: [] });
  assert.equal(scope, 'read:posts');
  const registered = await createTestClient(server, { origin: 'account', scopes });
  const form = { grant_type: 'client_credentials', scope: 'write:accounts' };
  const { status, body } = await postForm(server, '/oauth/token', registered, form);
  assert.deepEqual([status, body.error], [400, 'invalid_scope']);
  const response = await fetch(`${server.baseUrl}/.well-known/oauth-protected-resource`);
  const metadata = (await response.json()) as { scopes_supported: string[] };
  for (const name of scopes) assert.ok(!metadata.scopes_supported.includes(name), name);
});

test('disabling an account stops its tokens, sessions and deliveries, like the operator’s command', async (t) => {
  const subscriber = await startSubscriber(t);
  const externalId = newId();
  const { body: account } = await request('PUT', path(externalId), { json: { name: 'Ann' } });
  const app = await createApp(server, { account });
  await subscribe(app, { url: subscriber.url });
  const publisher = await createPublisher(server);
  const publish = () =>
    publisher('POST', '/events', {
      json: { kind: 'push', account: { external_id: externalId }, body: pushBody() },
    });
  await publish();
  await subscriber.waitFor(1);
  const { rows: links } = await openLink(externalId);
  assert.equal(links.length, 1);
  const disabled = await request('PUT', path(externalId), { json: { disabled: true } });
  assert.deepEqual([disabled.status, disabled.body.disabled, disabled.body.name], [200, true, 'Ann']);
  await until(
    async () => (await app.request('GET', '/subscriptions')).status,
    (status) => status === 401,
  );
  assert.equal((await publish()).status, 202, 'publishing goes on');
  await fannedOut(server);
  assert.equal(subscriber.received.length, 1);
  assert.equal((await openLink(externalId)).status, 409);
  const { rows } = await sql`select from account_links where account_id = ${account.id}`.execute(db);
  assert.equal(rows.length, 0);
  const kept = await request('PUT', path(externalId), { json: { name: 'Ann B' } });
  assert.equal(kept.body.disabled, true, 'another change does not enable the account');
  assert.equal(
    (await request('PATCH', `/accounts/${account.id}`, { json: { disabled: false } })).body.disabled,
    false,
  );
  assert.deepEqual(
    (await request('GET', `/accounts/${account.id}/grants`)).body.items,
    [],
    'ended sessions and grants stay ended',
  );

  async function openLink(id: string) {
    const { status, body } = await request('POST', '/account-links', {
      json: { account: { external_id: id } },
    });
    if (status === 201) await new TestBrowser(server.baseUrl).open(body.url);
    const { rows } = await sql`select from account_links where account_id = ${account.id}`.execute(db);
    return { status, rows };
  }
});

test('a machine client cannot disable, delete or sign in administrators', async () => {
  const admin = await createTestAccount(server, { isAdmin: true });
  const externalId = newId();
  const { body: external } = await request('PUT', path(externalId), { json: {} });
  await sql`update accounts set is_admin = true where id = ${external.id}`.execute(db);
  for (const [method, url, json] of [
    ['PATCH', `/accounts/${admin.id}`, { disabled: true }],
    ['DELETE', `/accounts/${admin.id}`, undefined],
    ['PUT', path(externalId), { disabled: true }],
    ['POST', '/accounts', [{ external_id: externalId, disabled: true }]],
    ['POST', '/account-links', { account: admin.id }],
  ] as const) {
    const answer = await request(method, url, json === undefined ? {} : { json });
    assert.equal(answer.status, 409, `${method} ${url}: ${answer.text}`);
  }
  const { rows } = await sql`
    select from accounts where id in (${admin.id}, ${external.id}) and disabled_at is null`.execute(db);
  assert.equal(rows.length, 2);
});

test('a machine client enables only what the accounts API disabled', async () => {
  const admin = await createConsoleUser(server, { isAdmin: true });
  const externalId = newId();
  const { body: account } = await request('PUT', path(externalId), { json: { name: 'Ann' } });
  const self = `/accounts/${account.id}`;
  const state = async () => (await request('GET', self)).body.disabled;
  const other = newId();
  const enable = [
    ['PATCH', self, { disabled: false }],
    ['PUT', path(externalId), { disabled: false, name: 'Changed' }],
    ['POST', '/accounts', [{ external_id: other }, { external_id: externalId, disabled: false }]],
  ] as const;
  const requireRefused = async () => {
    for (const [method, url, json] of enable) {
      const { status, body } = await request(method, url, { json });
      assert.deepEqual([status, body.code], [403, 'disabled-by-operator'], method);
      if (method !== 'PATCH') assert.ok(body.detail.includes(externalId), body.detail);
    }
    assert.equal(await state(), true);
    assert.deepEqual(await find(other), [], 'a list is rejected as a whole');
  };
  await request('PUT', path(externalId), { json: { disabled: false } });
  assert.equal(await state(), false, 'an enabled account stays enabled');

  assert.equal((await admin.request('POST', `/admin${self}/disable`)).status, 200);
  await requireRefused();
  // Disabling the account again does not change who disabled it.
  assert.equal((await request('PATCH', self, { json: { disabled: true } })).status, 200);
  await requireRefused();
  assert.equal((await request('PUT', path(externalId), { json: { name: 'Ann B' } })).body.name, 'Ann B');
  assert.equal((await admin.request('POST', `/admin${self}/enable`)).body.state, 'active');

  await request('PATCH', self, { json: { disabled: true } });
  assert.equal((await request('PUT', path(externalId), { json: { disabled: false } })).body.disabled, false);
  await request('PATCH', self, { json: { disabled: true } });
  await admin.request('POST', `/admin${self}/disable`);
  await requireRefused();
  await admin.request('POST', `/admin${self}/enable`);
  await request('PATCH', self, { json: { disabled: true } });
  assert.equal((await request('PATCH', self, { json: { disabled: false } })).body.disabled, false);
});

test('a machine client can neither disable nor enable administrators and local accounts', async () => {
  const local = await createTestAccount(server);
  const admin = await createTestAccount(server, { isAdmin: true });
  const externalId = newId();
  const { body: external } = await request('PUT', path(externalId), { json: {} });
  await sql`update accounts set is_admin = true where id = ${external.id}`.execute(db);
  for (const isDisabled of [false, true]) {
    await sql`
      update accounts set disabled_at = ${isDisabled ? new Date() : null}
      where id in (${local.id}, ${admin.id}, ${external.id})`.execute(db);
    const json = { disabled: !isDisabled };
    for (const [method, url, given, code] of [
      ['PATCH', `/accounts/${local.id}`, json, 'local-account'],
      ['PATCH', `/accounts/${admin.id}`, json, 'administrator'],
      ['PATCH', `/accounts/${external.id}`, json, 'administrator'],
      ['PUT', path(externalId), json, 'administrator'],
      ['POST', '/accounts', [{ external_id: externalId, ...json }], 'administrator'],
    ] as const) {
      const { status, body } = await request(method, url, { json: given });
      assert.deepEqual([status, body.code], [409, code], `${method} ${url}`);
    }
    for (const { id } of [local, admin, external]) {
      assert.equal((await request('GET', `/accounts/${id}`)).body.disabled, isDisabled);
    }
  }
});

test('an account’s grants of the server’s own apps are marked, and listed only on request', async () => {
  const { body: account } = await request('PUT', path(newId()), { json: {} });
  const app = await createApp(server, { account });
  const own = [consoleClientId, docsClientId];
  for (const clientId of own) await createGrant(db, { accountId: account.id, clientId, scopes: ['openid'] });
  const listed = async (query: string) =>
    (await request('GET', `/accounts/${account.id}/grants${query}`)).body.items.map(
      ({ client, first_party: isOwn }: Record<string, unknown>) => [client, isOwn],
    );
  assert.deepEqual(await listed(''), [[app.clientId, false]]);
  assert.deepEqual(await listed('?first_party=false'), [[app.clientId, false]]);
  assert.deepEqual(
    await listed('?first_party=true&limit=5'),
    own.toReversed().map((id) => [id, true]),
  );
  assert.equal((await request('GET', `/accounts/${account.id}/grants?first_party=1`)).status, 400);
});

test('an account’s grants are listed in the user’s words and withdrawn', async () => {
  const { body: account } = await request('PUT', path(newId()), { json: {} });
  const { body: other } = await request('PUT', path(newId()), { json: {} });
  const app = await createApp(server, { account });
  const theirs = await createApp(server, { account: other });
  for (let count = 0; count < 3; count += 1) {
    await createGrant(db, { accountId: account.id, clientId: app.clientId, scopes: ['read:posts'] });
  }
  const first = await request('GET', `/accounts/${account.id}/grants?limit=3`);
  const second = await request('GET', first.body._links.next.href);
  assert.equal(first.body.items.length + second.body.items.length, 4);
  const grant = second.body.items[0];
  assert.equal(grant.id, app.grantId);
  assert.equal(grant.scope_descriptions['write:webhooks'], 'receive your events as they happen');
  assert.deepEqual((await request('GET', `/grants/${grant.id}`)).body, grant);
  assert.equal((await request('DELETE', `/grants/${grant.id}`)).status, 204);
  assert.equal((await request('DELETE', `/grants/${grant.id}`)).status, 404);
  await until(
    async () => (await app.request('GET', '/subscriptions')).status,
    (status) => status === 401,
  );
  assert.equal((await theirs.request('GET', '/subscriptions')).status, 200);
  const { rows } = await sql<{ actor: string }>`
    select actor from audit_entries where kind = 'grant.withdrawn' and grant_id = ${grant.id}`.execute(db);
  assert.deepEqual(rows, [{ actor: `client:${client.id}` }]);
});

test('an invalid member is refused with its place', async () => {
  const { body: account } = await request('PUT', path(newId()), { json: {} });
  for (const [json, pointer] of [
    [{ email: 'nobody' }, '/email'],
    [{ email: 'a@b\u0000' }, '/email'],
    [{ email_verified: 'yes' }, '/email_verified'],
    [{ name: '' }, '/name'],
    [{ name: 'x'.repeat(201) }, '/name'],
    [{ name: 'a\nb' }, '/name'],
    [{ disabled: null }, '/disabled'],
    [{ is_admin: true }, '/is_admin'],
    [{ external_id: 'other' }, '/external_id'],
    [[], ''],
    [null, ''],
  ] as const) {
    const answer = await request('PATCH', `/accounts/${account.id}`, { json });
    assert.equal(answer.status, 422, `${JSON.stringify(json)}: ${answer.text}`);
    assert.equal(answer.body.errors[0].pointer, pointer);
  }
  const jsonPatch = { 'content-type': 'application/json-patch+json' };
  const patched = await request('PATCH', `/accounts/${account.id}`, { raw: '[]', headers: jsonPatch });
  assert.equal(patched.status, 415);
  for (const url of ['/accounts/x', '/accounts/x/grants', '/grants/x', `/accounts/${newId()}`]) {
    assert.equal((await request('GET', url)).status, 404, url);
  }
  assert.equal((await request('GET', '/accounts?email=a')).status, 400);
});
