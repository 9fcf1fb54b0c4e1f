/**
 * Subscriptions of users: created with the console's token, they receive all of the user's own events, outlive that
 * token and end with the account. Also what that token may do with the subscriptions of the user's apps. Each right is
 * also tested with those who lack it.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId, docsClientId } from '../../../src/clients/own_clients.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { withdrawGrantsOfClient } from '../../../src/grants/grant.ts';
import { ensureOwnClients } from '../../../src/web/own_clients.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { runCommand } from '../../support/servers/process.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  type Request,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';
import { accessStatuses, fullAccess, noAccess } from '../../support/webhooks/subscription_access.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const both = ['read:webhooks', 'write:webhooks'];

/** The API as the console calls it with a user's token. */
async function consoleOf(account: { id: string }, scopes = both): Promise<Request> {
  const client = { id: consoleClientId };
  return requester(server, (await mintAccessToken(server, { account, client, scopes })).accessToken);
}

async function createUser() {
  const account = await createTestAccount(server);
  return { account, request: await consoleOf(account) };
}

const url = 'https://example.com/hooks';

test('a user’s own subscription gets all events of that user, through any app, and nobody else’s', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createUser();
  const made = await subscribe(user, { url: subscriber.url });
  assert.deepEqual([made.owner, made.grant, made.client], ['user', null, null]);
  const app = await createApp(server, { account: user.account });
  await app.request('POST', '/articles', { json: { title: 'by an app' } });
  await publisher('POST', '/events', {
    json: { kind: 'invoice.paid', account: user.account.id, body: await exampleOf('invoice.paid') },
  });
  await publish(publisher, await createTestAccount(server), ['another’s']);
  await publish(publisher, user.account, ['last']);
  const received = await subscriber.waitFor(3);
  // The subscription is not ordered, so deliveries may overtake each other on their way.
  const bySequence = received.map(
    ({ headers }) => `${headers['nuncio-sequence']} ${headers['nuncio-event']}`,
  );
  assert.deepEqual(bySequence.sort(), ['1 article.created', '2 invoice.paid', '3 push']);
});

async function exampleOf(name: string): Promise<unknown> {
  const { body } = await publisher('GET', '/event-kinds');
  return body.items.find((kind: { name: string }) => kind.name === name).example;
}

test('a user’s subscription outlives the console’s token and grant, and ends with the account', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createUser();
  const { id } = await subscribe(user, { url: subscriber.url });
  assert.equal(await withdrawGrantsOfClient(db, user.account.id, consoleClientId), 1);
  await publish(publisher, user.account, ['still']);
  await subscriber.waitFor(1);
  await until(
    async () => (await user.request('GET', '/subscriptions')).status,
    (status) => status === 401,
  );
  const later = await consoleOf(user.account);
  assert.equal((await later('GET', `/subscriptions/${id}`)).status, 200);
  await sql`delete from accounts where id = ${user.account.id}`.execute(db);
  const { rows } = await sql<{ state: string }>`select state from subscriptions where id = ${id}`.execute(db);
  assert.equal(rows[0]?.state, 'ended');
  // The token stays valid for minutes, but a deleted account gets no new subscription.
  const created = await later('POST', '/subscriptions', { json: { url, kinds: ['*'] } });
  assert.ok([401, 409].includes(created.status), String(created.status));
});

test('webhooks 77: a user’s own subscription is hidden from other users, apps and clients', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const user = await createUser();
  const { id } = await subscribe(user, { url: subscriber.url });
  await publish(publisher, user.account, ['once']);
  await subscriber.waitFor(1);
  const { body } = await user.request('GET', `/subscriptions/${id}/deliveries`);
  const delivery = body.items[0].id;
  const strangers = {
    'another user': (await createUser()).request,
    'an app of the user': (await createApp(server, { account: user.account })).request,
    'the reference, signed in to by the user': requester(
      server,
      (await mintAccessToken(server, { account: user.account, client: { id: docsClientId }, scopes: both }))
        .accessToken,
    ),
    'a client for itself': (await createSubscribingClient(server)).request,
  };
  for (const [who, request] of Object.entries(strangers)) {
    assert.deepEqual(await accessStatuses(request, id, delivery), noAccess, who);
    assert.deepEqual((await request('GET', '/subscriptions')).body.items, [], who);
  }
  const narrow = await accessStatuses(await consoleOf(user.account, ['read:webhooks']), id, delivery);
  assert.deepEqual(narrow, {
    ...{ read: 200, log: 200, delivery: 200, resend: 403, test: 403 },
    ...{ secret: 403, rotate: 403, change: 403, recover: 403, end: 403 },
  });
  const created = await (await consoleOf(user.account, ['read:webhooks']))('POST', '/subscriptions', {
    json: { url, kinds: ['*'] },
  });
  assert.equal(created.status, 403);
  assert.deepEqual(await accessStatuses(user.request, id, delivery), fullAccess);
});

test('a user sees, tests, resends and ends what their apps created, and the app owns the rest', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const user = await createUser();
  const app = await createApp(server, { account: user.account });
  const { id } = await subscribe(app, { url: subscriber.url });
  const own = await subscribe(user, { url });
  await publish(publisher, user.account, ['once']);
  await subscriber.waitFor(1);
  const seen = await user.request('GET', '/subscriptions');
  assert.deepEqual(
    seen.body.items.map((one: Record<string, unknown>) => [one.id, one.owner, one.grant, one.client]),
    [
      [id, 'grant', app.grantId, app.clientId],
      [own.id, 'user', null, null],
    ],
  );
  const links = seen.body.items.map(({ _links }: { _links: object }) => Object.keys(_links).sort());
  assert.deepEqual(links, [
    ['deliveries', 'health', 'self', 'test'],
    ['deliveries', 'events', 'health', 'recover', 'rotate-secret', 'secret', 'self', 'test'],
  ]);
  const { body } = await user.request('GET', `/subscriptions/${id}/deliveries`);
  const delivery = body.items[0].id;
  const { body: details } = await user.request('GET', `/deliveries/${delivery}`);
  assert.equal(details.attempts[0].status, 500);
  assert.deepEqual(await accessStatuses((await createUser()).request, id, delivery), noAccess);
  const before = await app.request('GET', `/subscriptions/${id}/secret`);
  assert.deepEqual(await accessStatuses(user.request, id, delivery), {
    ...{ read: 200, log: 200, delivery: 200, resend: 202, test: 202 },
    ...{ secret: 403, rotate: 403, change: 403, recover: 403, end: 204 },
  });
  assert.equal(before.status, 200);
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).status, 404);
  // After a withdrawal the user no longer sees the app's subscriptions.
  const second = await subscribe(app, { url });
  await withdrawGrantsOfClient(db, user.account.id, app.clientId);
  assert.equal((await user.request('GET', `/subscriptions/${second.id}`)).status, 404);
});

test('a client’s own subscription belongs to no user, also when it gets their events', async () => {
  const user = await createUser();
  const client = await createSubscribingClient(server);
  await mintAccessToken(server, { account: user.account, client: client.client, scopes: both });
  const made = await subscribe(client, { url });
  assert.deepEqual([made.owner, made.client], ['client', client.client.id]);
  assert.equal((await user.request('GET', `/subscriptions/${made.id}`)).status, 404);
});

test('the console’s client acts for a user or not at all', async () => {
  const { accessToken } = await mintAccessToken(server, { client: { id: consoleClientId }, scopes: both });
  const created = await requester(server, accessToken)('POST', '/subscriptions', {
    json: { url, kinds: ['*'] },
  });
  assert.equal(created.status, 403);
});

test('a user’s quota does not depend on their apps’ subscriptions', async () => {
  const user = await createUser();
  const app = await createApp(server, { account: user.account });
  const { id } = await subscribe(app, { url });
  const fill = (owner: string, count: number) =>
    sql`
    insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
    select gen_random_uuid(), (random() * 1e15)::bigint, ${owner}, case when ${owner} = 'grant' then s.grant_id end,
      s.account_id, case when ${owner} = 'grant' then s.client_id end, s.url, s.kinds, s.signature, s.secret
    from subscriptions s, generate_series(1, ${count}::int) where s.id = ${id}`.execute(db);
  await fill('grant', defaultQuotas.subscriptionsPerGrant - 1);
  assert.equal((await app.request('POST', '/subscriptions', { json: { url, kinds: ['*'] } })).status, 422);
  await fill('user', defaultQuotas.subscriptionsPerGrant - 1);
  await subscribe(user, { url });
  assert.equal((await user.request('POST', '/subscriptions', { json: { url, kinds: ['*'] } })).status, 422);
});

const consoleClient = {
  id: consoleClientId,
  secret: null,
  authMethod: 'none',
  redirectUri: `${server.baseUrl}/console/callback`,
} as TestClient;

test('the console acts for whoever signs in, without consent, by code and PKCE to its own address', async () => {
  const account = await createTestAccount(server);
  const { verifier, challenge } = createPkce();
  const parameters = { scope: both.join(' '), code_challenge: challenge, code_challenge_method: 'S256' };
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(authorizationUrl(server, consoleClient, parameters));
  const { email, password } = account;
  assert.match(login.text, /Console/);
  const { url: arrived } = await browser.submit(login, { email, password, action: 'login' });
  assert.ok(arrived.startsWith(`${consoleClient.redirectUri}?`), arrived);
  const code = new URL(arrived).searchParams.get('code') as string;
  const exchange = { grant_type: 'authorization_code', code, redirect_uri: consoleClient.redirectUri };
  const form = { ...exchange, code_verifier: verifier };
  const { status, body: tokens } = await postForm(server, '/oauth/token', consoleClient, form);
  assert.deepEqual([status, tokens.scope], [200, both.join(' ')]);
  const request = requester(server, tokens.access_token as string);
  assert.equal((await subscribe({ request }, { url })).owner, 'user');
  const again = { grant_type: 'refresh_token', refresh_token: tokens.refresh_token as string };
  assert.equal((await postForm(server, '/oauth/token', consoleClient, again)).status, 200);

  const elsewhere = new URLSearchParams({
    client_id: consoleClientId,
    response_type: 'code',
    redirect_uri: 'https://elsewhere.example/console/callback',
    code_challenge: 'x'.repeat(43),
    code_challenge_method: 'S256',
  });
  const refused = await fetch(`${server.baseUrl}/oauth/authorize?${elsewhere}`, { redirect: 'manual' });
  assert.equal(refused.status, 400);
  for (const other of [
    { grant_type: 'client_credentials', client_id: consoleClientId },
    {
      grant_type: 'password',
      client_id: consoleClientId,
      username: email,
      password,
    },
  ]) {
    const answered = await postForm(server, '/oauth/token', null, other as Record<string, string>);
    assert.ok([400, 401].includes(answered.status), JSON.stringify(answered.body));
  }
});

test('nobody registers the ids and addresses of the server’s own apps', async () => {
  const settings = {
    ...{ DATABASE_URL: server.databaseUrl, PORT: new URL(server.baseUrl).port },
    NUNCIO_SECRET: 'a secret for tests, 32 bytes or more',
  };
  const create = ['client', 'create', '--name', 'Mine'];
  for (const id of [consoleClientId, docsClientId]) {
    const words = [...create, '--id', id, '--redirect-uri', 'https://mine.example/cb'];
    const created = await runCommand(words, settings);
    assert.equal(created.code, 1);
    assert.match(created.stderr, /nuncio-(?:console|docs) is reserved for an app of this server/);
    const deleted = await runCommand(['client', 'delete', id], settings);
    assert.equal(deleted.code, 1);
    const rotated = await runCommand(['client', 'rotate-secret', id], settings);
    assert.equal(rotated.code, 1);
  }
  const { code, stderr } = await runCommand(
    [...create, '--redirect-uri', consoleClient.redirectUri],
    settings,
  );
  assert.deepEqual([code, /is reserved for an app of this server/.test(stderr)], [2, true]);

  for (const own of [consoleClient.redirectUri, `${server.baseUrl}/elsewhere`]) {
    const registered = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ client_id: consoleClientId, redirect_uris: [own] }),
    });
    assert.equal(registered.status, 400);
    assert.equal(((await registered.json()) as { error: string }).error, 'invalid_redirect_uri');
  }
  const registered = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_id: consoleClientId, redirect_uris: ['https://mine.example/cb'] }),
  });
  assert.notEqual(((await registered.json()) as { client_id: string }).client_id, consoleClientId);
  for (const method of ['GET', 'PUT', 'DELETE']) {
    const managed = await fetch(`${server.baseUrl}/oauth/register/${consoleClientId}`, {
      method,
      headers: { authorization: `Bearer ${newId()}` },
    });
    assert.equal(managed.status, 401);
  }
});

test('a start removes a foreign row of an own app’s id, follows addresses, keeps disabled apps disabled', async (t) => {
  const own = await startTestServer(t);
  await sql`delete from clients where id = ${consoleClientId}`.execute(own.db);
  const account = await createTestAccount(own);
  const other = await createTestClient(own, { name: 'Somebody’s' });
  await sql`update clients set id = ${consoleClientId} where id = ${other.id}`
    .execute(own.db)
    .catch(async () => {
      await sql`delete from client_secrets where client_id = ${other.id}`.execute(own.db);
      await sql`update clients set id = ${consoleClientId} where id = ${other.id}`.execute(own.db);
    });
  const { grantId } = await mintAccessToken(own, { account, client: { id: consoleClientId }, scopes: both });
  await ensureOwnClients(own.db, own.baseUrl, both);
  const { rows } = await sql<{ withdrawn_at: Date | null }>`
    select withdrawn_at from grants where id = ${grantId}`.execute(own.db);
  assert.notEqual(rows[0]?.withdrawn_at, null);

  await sql`update clients set disabled_at = now() where id = ${consoleClientId}`.execute(own.db);
  await ensureOwnClients(own.db, 'https://moved.example', both);
  const { rows: clients } = await sql<{ redirect_uris: string[]; disabled_at: Date | null }>`
    select redirect_uris, disabled_at from clients where id = ${consoleClientId}`.execute(own.db);
  assert.deepEqual(clients[0]?.redirect_uris, ['https://moved.example/console/callback']);
  assert.notEqual(clients[0]?.disabled_at, null);
});
