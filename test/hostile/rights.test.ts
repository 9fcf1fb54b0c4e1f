/** Attacks by holders of machines' rights: no scope of an application or administrator grows into another one. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { userCreate } from '../../src/commands/user_create.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createGrant } from '../../src/grants/grant.ts';
import { loadPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createAccountsClient, externalPath } from '../support/clients/accounts_client.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
} from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const platform = await loadPlatform(null);

function startWith(administrators: boolean) {
  const login = { url: 'https://app.example.com/login', acrValues: [], administrators };
  return startTestServer({ after }, {}, 'dev', {
    ...platform,
    accounts: { ...platform.accounts, login },
  });
}

const server = await startWith(false);
const { db } = server;

const codeOf = ({ status, body }: { status: number; body: { code?: string } }) => `${status} ${body.code}`;

test('attack: an administrator gets no secret of an operator’s client, by any way', async () => {
  const machine = await createTestClient(server, { scopes: ['write:logins', 'write:accounts'] });
  const admin = await createConsoleUser(server, { isAdmin: true });
  const automation = await createTestClient(server, { scopes: ['admin', 'read:apps', 'write:apps'] });
  const asMachine = requester(server, await clientToken(server, automation, automation.scopes));
  const member = await createConsoleUser(server);
  const path = `/apps/${machine.id}`;
  const { body: app } = await admin.request('GET', path);
  for (const account of [admin.account.id, member.account.id]) {
    const added = await admin.request('PUT', `${path}/members/${account}`, { json: { role: 'owner' } });
    assert.equal(added.status, 201, added.text);
  }
  for (const request of [admin.request, asMachine, member.request]) {
    const headers = { 'idempotency-key': newId() };
    assert.equal(codeOf(await request('POST', `${path}/secrets`, { headers })), '403 app-managed-elsewhere');
    const removed = await request('DELETE', `${path}/secrets/${app.secrets[0].id}`);
    assert.equal(codeOf(removed), '403 app-managed-elsewhere');
    for (const [method, target] of [
      ['PATCH', path],
      ['DELETE', path],
      ['DELETE', `${path}/logo`],
    ] as const) {
      const json = method === 'PATCH' ? { json: { token_endpoint_auth_method: 'none' } } : {};
      assert.equal(codeOf(await request(method, target, json)), '403 app-managed-elsewhere', target);
    }
  }
  const { rows } = await sql`select from client_secrets where client_id = ${machine.id}`.execute(db);
  assert.equal(rows.length, 1);
});

test('attack: write:accounts disables, deletes, readdresses and disconnects neither administrators nor local accounts', async () => {
  const { request } = await createAccountsClient(server);
  const app = await createTestClient(server);
  const local = await createTestAccount(server);
  const admin = await createTestAccount(server, { isAdmin: true });
  const externalId = newId();
  const address = 'boss@app.example';
  const json = { email: address, email_verified: true };
  const { body: external } = await request('PUT', externalPath(externalId), { json });
  await sql`update accounts set is_admin = true where id = ${external.id}`.execute(db);
  const snapshot = async () =>
    (
      await sql`
        select a.id, a.email, a.email_verified, a.disabled_at, g.withdrawn_at
        from accounts a join grants g on g.account_id = a.id
        where a.id in (${local.id}, ${admin.id}, ${external.id}) order by a.id`.execute(db)
    ).rows;
  const grants = new Map<string, string>();
  for (const { id } of [local, admin, external]) {
    grants.set(id, await createGrant(db, { accountId: id, clientId: app.id, scopes: ['read:posts'] }));
  }
  const before = await snapshot();
  assert.equal(before.length, 3);
  for (const [id, code] of [
    [local.id, '409 local-account'],
    [admin.id, '409 administrator'],
    [external.id, '409 administrator'],
  ] as const) {
    for (const change of [
      { disabled: true },
      { email: 'mine@evil.example' },
      { email: null },
      { email_verified: id !== external.id },
      { name: 'Ann', email: 'mine@evil.example', email_verified: true },
    ]) {
      const changed = await request('PATCH', `/accounts/${id}`, { json: change });
      assert.equal(codeOf(changed), code, JSON.stringify(change));
    }
    assert.equal(codeOf(await request('DELETE', `/accounts/${id}`)), code);
    assert.equal(codeOf(await request('DELETE', `/grants/${grants.get(id)}`)), code);
    assert.equal((await request('GET', `/accounts/${id}/grants`)).status, 200);
  }
  const other = newId();
  for (const change of [{ email: 'mine@evil.example' }, { email_verified: false }]) {
    const put = await request('PUT', externalPath(externalId), { json: change });
    assert.equal(codeOf(put), '409 administrator');
    const list = [{ external_id: other }, { external_id: externalId, ...change }];
    assert.equal(codeOf(await request('POST', '/accounts', { json: list })), '409 administrator');
  }
  assert.deepEqual((await request('GET', `/accounts?external_id=${other}`)).body.items, []);
  assert.deepEqual(await snapshot(), before);
  // The application's regular synchronization goes on.
  const same = { ...json, name: 'The boss', disabled: false };
  assert.equal((await request('PUT', externalPath(externalId), { json: same })).body.name, 'The boss');
});

/** An application that signs users in. */
async function createApplication(on: TestServer) {
  const machine = await createTestClient(on, { scopes: ['write:logins'] });
  const request = requester(on, await clientToken(on, machine, ['write:logins']));
  const app = await createTestClient(on);
  /** Begins a sign-in and answers for the application. */
  const signIn = async (account: object, browser = new TestBrowser(on.baseUrl)) => {
    const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
    const page = await browser.open(authorizationUrl(on, app, { scope: 'read:posts', ...pkce }));
    const id = page.leftTo?.searchParams.get('login_request');
    assert.ok(id, page.text);
    const answer = await request('POST', `/login-requests/${id}/accept`, { json: { account } });
    return { browser, answer };
  };
  return { request, signIn };
}

function makeAdmin(on: TestServer, externalId: string) {
  const config = { ...on.config, databaseUrl: on.databaseUrl };
  const values = { 'external-id': externalId, admin: true };
  return userCreate.run({ values, positionals: [] }, { config, print: () => {}, printError: () => {} });
}

test('attack: write:logins signs in no administrator, nor a user who becomes one', async () => {
  const { request, signIn } = await createApplication(server);
  const externalId = newId();
  const account = { external_id: externalId };

  const signedIn = await signIn(account);
  assert.match((await signedIn.browser.open(signedIn.answer.body.redirect_to)).text, /value="allow"/);
  const accepted = await signIn(account);
  const [opened, unopened] = [
    await request('POST', '/account-links', { json: { account } }),
    await request('POST', '/account-links', { json: { account } }),
  ];
  const visitor = new TestBrowser(server.baseUrl);
  assert.equal((await visitor.open(opened.body.url)).response.status, 200);
  await makeAdmin(server, externalId);

  // What the application began before is over.
  assert.ok((await signedIn.browser.open(`${server.baseUrl}/account`)).leftTo, 'signed out');
  assert.equal((await accepted.browser.open(accepted.answer.body.redirect_to)).response.status, 400);
  assert.ok((await visitor.open(`${server.baseUrl}/account`)).leftTo, 'signed out');
  assert.equal((await new TestBrowser(server.baseUrl).open(unopened.body.url)).response.status, 400);

  assert.equal(codeOf((await signIn(account)).answer), '409 administrator');
  assert.equal(codeOf(await request('POST', '/account-links', { json: { account } })), '409 administrator');
  const { rows } = await sql<{ id: string }>`
    select id from accounts where external_id = ${externalId}`.execute(db);
  const byId = await request('POST', '/account-links', { json: { account: rows[0]?.id } });
  assert.equal(codeOf(byId), '409 administrator');
});

test('attack: a sign-in or link that races the promotion of its user is refused', async () => {
  const { request, signIn } = await createApplication(server);
  const account = { external_id: newId() };
  const promote = () =>
    sql`update accounts set is_admin = true where external_id = ${account.external_id}`.execute(db);
  const demote = () =>
    sql`update accounts set is_admin = false where external_id = ${account.external_id}`.execute(db);
  const accepted = await signIn(account);
  const link = async () => (await request('POST', '/account-links', { json: { account } })).body.url;
  const [opened, unopened] = [await link(), await link()];
  const visitor = new TestBrowser(server.baseUrl);
  assert.equal((await visitor.open(opened)).response.status, 200);
  // Without the command, which would end them.
  await promote();
  assert.equal((await accepted.browser.open(accepted.answer.body.redirect_to)).response.status, 400);
  assert.ok((await visitor.open(`${server.baseUrl}/account`)).leftTo);
  assert.equal((await new TestBrowser(server.baseUrl).open(unopened)).response.status, 400);
  await demote();
  assert.equal((await visitor.open(`${server.baseUrl}/account`)).response.status, 200);
});

test('with administrators: true the application signs in administrators, and does not change their address', async () => {
  const own = await startWith(true);
  const { signIn } = await createApplication(own);
  const externalId = newId();
  await makeAdmin(own, externalId);
  const account = {
    external_id: externalId,
    name: 'The boss',
    email: 'a@evil.example',
    email_verified: true,
  };
  const { browser, answer } = await signIn(account);
  assert.equal(answer.status, 200, answer.text);
  assert.match((await browser.open(answer.body.redirect_to)).text, /value="allow"/);
  const { rows } = await sql`
    select name, email, is_admin from accounts where external_id = ${externalId}`.execute(own.db);
  assert.deepEqual(rows, [{ name: 'The boss', email: null, is_admin: true }]);
});
