/**
 * An app's own subscriptions: created by its members, they receive the events of every account that granted the app,
 * and of no other, within each grant's scopes. Members have no access to the subscriptions of users' grants.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import type { AppSubscriptions } from '../../src/webhooks/subscriptions/app_subscription_modes.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  type TestClient,
} from '../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';
import { createPublisher, fannedOut, publish, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';
import { accessStatuses, fullAccess, noAccess } from '../support/webhooks/subscription_access.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const url = 'https://example.com/hooks';

async function createAppOf(user: ConsoleUser, fields: Record<string, unknown> = {}) {
  const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'], ...fields };
  const made = await user.request('POST', '/apps', { json });
  assert.equal(made.status, 201, made.text);
  return made.body;
}

async function addMember(app: { client_id: string }, role = 'developer'): Promise<ConsoleUser> {
  const member = await createConsoleUser(server);
  await sql`
    insert into app_members (client_id, account_id, role)
    values (${app.client_id}, ${member.account.id}, ${role})`.execute(db);
  return member;
}

/** A user grants an app these scopes. */
async function grant(app: { client_id: string }, scopes: string[], on: TestServer = server) {
  const account = await createTestAccount(on);
  const minted = await mintAccessToken(on, { account, client: { id: app.client_id }, scopes });
  return { account, request: requester(on, minted.accessToken), grantId: minted.grantId as string };
}

async function subscribeApp(user: ConsoleUser, app: { client_id: string }, fields = {}) {
  const json = { url, kinds: ['push'], ...fields };
  const made = await user.request('POST', `/apps/${app.client_id}/subscriptions`, { json });
  assert.equal(made.status, 201, made.text);
  return made.body;
}

test('an app subscription gets the events of every account that granted the app, within each grant’s scopes', async (t) => {
  const subscriber = await startSubscriber(t);
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const made = await subscribeApp(owner, app, { url: subscriber.url, kinds: ['*'] });
  assert.deepEqual([made.owner, made.client, made.grant], ['client', app.client_id, null]);
  assert.match(made.secret, /^whsec_/);
  const reads = await grant(app, ['read:posts']);
  const profile = await grant(app, ['read:profile']);
  await publish(publisher, reads.account, ['granted']);
  await publish(publisher, profile.account, ['not within the scopes']);
  await publish(publisher, await createTestAccount(server), ['a stranger’s']);
  await publish(publisher, owner.account, ['a member’s own']);
  await publish(publisher, reads.account, ['last']);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(String(body)).ref),
    ['refs/heads/granted', 'refs/heads/last'],
  );
  const log = await owner.request('GET', `/subscriptions/${made.id}/deliveries`);
  assert.equal(log.body.items.length, 2);
  const detail = await owner.request('GET', `/deliveries/${log.body.items[0].id}`);
  assert.equal(detail.body.body.ref, 'refs/heads/last');
});

test('members of either role have all its operations, and strangers and the app’s users none', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const other = await createConsoleUser(server);
  const otherApp = await createAppOf(other);
  await subscribeApp(other, otherApp);
  const user = await grant(app, ['read:posts', 'read:webhooks', 'write:webhooks']);
  const userConsole = requester(
    server,
    (
      await mintAccessToken(server, {
        account: user.account,
        client: { id: 'nuncio-console' },
        scopes: ['read:apps', 'write:apps', 'read:webhooks', 'write:webhooks'],
      })
    ).accessToken,
  );
  const admin = await createConsoleUser(server, { isAdmin: true });
  const developer = await addMember(app);
  for (const member of [developer, owner]) {
    const { id } = await subscribeApp(member, app);
    const { body: tried } = await member.request('POST', `/subscriptions/${id}/test`);
    for (const [who, request] of Object.entries({
      other: other.request,
      grant: user.request,
      user: userConsole,
      admin: admin.request,
    })) {
      assert.deepEqual(await accessStatuses(request, id, tried.delivery), noAccess, who);
    }
    assert.deepEqual(await accessStatuses(member.request, id, tried.delivery), fullAccess);
  }
  for (const method of ['GET', 'POST']) {
    const json = method === 'POST' ? { json: { url, kinds: ['push'] } } : {};
    const path = `/apps/${app.client_id}/subscriptions`;
    assert.equal((await other.request(method, path, json)).status, 404);
    assert.equal((await userConsole(method, path, json)).status, 404);
    assert.equal((await admin.request(method, path, json)).status, 404);
  }
  const listed = await owner.request('GET', '/subscriptions');
  assert.deepEqual(listed.body.items, [], 'the list of the user’s own is not mixed with it');
});

test('a member gets nothing that belongs to the grants of the app’s users', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  await subscribeApp(owner, app);
  const user = await grant(app, ['read:posts', 'read:webhooks', 'write:webhooks']);
  const ofGrant = await subscribe(user, { url });
  const { body: tried } = await user.request('POST', `/subscriptions/${ofGrant.id}/test`);
  assert.deepEqual(await accessStatuses(owner.request, ofGrant.id, tried.delivery), noAccess);
  const { body } = await owner.request('GET', `/apps/${app.client_id}/subscriptions`);
  assert.equal(body.items.length, 1);
});

test('a former member and a token without the apps’ scopes have no access', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const developer = await addMember(app);
  const { id } = await subscribeApp(developer, app);
  const { body: tried } = await developer.request('POST', `/subscriptions/${id}/test`);
  const scopes = ['read:webhooks', 'write:webhooks'];
  const weak = await createConsoleUser(server, { scopes, account: owner.account });
  assert.deepEqual(await accessStatuses(weak.request, id, tried.delivery), noAccess);
  const half = await createConsoleUser(server, { scopes: [...scopes, 'read:apps'], account: owner.account });
  const found = await accessStatuses(half.request, id, tried.delivery);
  assert.deepEqual({ ...found, read: 0, log: 0, delivery: 0 }, { ...noAccess, read: 0, log: 0, delivery: 0 });
  assert.deepEqual([found.read, found.log, found.delivery], [200, 200, 200]);
  await owner.request('DELETE', `/apps/${app.client_id}/members/${developer.account.id}`);
  assert.deepEqual(await accessStatuses(developer.request, id, tried.delivery), noAccess);
});

for (const [mode, scopes, isTold] of [
  ['all', ['read:posts'], true],
  ['verified', ['read:posts'], true],
  ['off', ['read:posts'], false],
  ['all', ['write:posts'], false],
  ['all', ['read:posts', 'write:webhooks'], false],
] as [AppSubscriptions, string[], boolean][]) {
  const not = isTold ? '' : 'not ';
  test(`users are ${not}told of the events that an app with ${scopes.join(' ')} may receive when appSubscriptions is ${mode}`, async (t) => {
    const platform = createPlatform({ ...shipped, webhooks: { appSubscriptions: mode } });
    const own = await startTestServer(t, {}, 'dev', platform);
    const client = await createTestClient(own, { origin: 'account' });
    const account = await createTestAccount(own);
    const { browser } = await obtainCode(own, { account, client, scopes: ['openid'] });
    const challenge = createPkce().challenge;
    const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
    const consent = await browser.open(authorizationUrl(own, client, { scope: scopes.join(' '), ...pkce }));
    assert.match(consent.text, /value="allow"/);
    const told = /receive your events that these permissions cover, as they happen/;
    assert.equal(told.test(consent.text), isTold, consent.text);
    await browser.submit(consent, { action: 'allow' });
    const page = await browser.open(`${own.baseUrl}/account`);
    assert.ok(page.text.includes(client.name));
    assert.equal(told.test(page.text), isTold, page.text);
    // A client that the operator marked may have subscriptions in any case.
    await sql`update clients set may_subscribe = true where id = ${client.id}`.execute(own.db);
    const isReader = !scopes.includes('write:webhooks') && scopes.includes('read:posts');
    assert.equal(told.test((await browser.open(`${own.baseUrl}/account`)).text), isReader);
  });
}

test('an app has at most 20 subscriptions, also when they are created concurrently', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner, {
    grant_types: ['authorization_code', 'client_credentials'],
    scope: 'read:webhooks write:webhooks',
  });
  const client = { id: app.client_id, secret: app.client_secret, authMethod: 'client_secret_basic' };
  const token = await clientToken(server, client as TestClient, ['write:webhooks']);
  const asApp = requester(server, token);
  for (let count = 0; count < 17; count += 1) await subscribeApp(owner, app);
  const json = { url, kinds: ['push'] };
  const made = await Promise.all([
    ...[1, 2, 3].map(() => owner.request('POST', `/apps/${app.client_id}/subscriptions`, { json })),
    ...[1, 2, 3].map(() => asApp('POST', '/subscriptions', { json })),
  ]);
  assert.deepEqual(made.map(({ status }) => status).sort(), [201, 201, 201, 422, 422, 422]);
  const codes = made.flatMap(({ status, body }) => (status === 422 ? [body.code] : []));
  assert.deepEqual(new Set(codes), new Set(['quota-own-subscriptions']));
});

test('attack: an app’s own filters stay so small that its users’ events are quickly fanned out', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const path = `/apps/${app.client_id}/subscriptions`;
  // Its condition becomes the longest for its size.
  const filterOf = (count: number, longest = 4) => ({
    all: Array.from({ length: 10 }, (_, condition) => ({
      path: '/ref',
      in: Array.from({ length: count }, (_, index) =>
        `${condition}${index}`.padEnd(index === 0 ? longest : 1, 'x'),
      ),
    })),
  });
  let count = 1;
  while (JSON.stringify(filterOf(count + 1)).length <= 2_048) count += 1;
  const largest = filterOf(count);
  const json = { url, kinds: ['push'], filter: largest };
  for (let index = 0; index < 20; index += 1) {
    const { status, text } = await owner.request('POST', path, { json });
    assert.equal(status, 201, text);
  }
  const { rows } = await sql<{ cost: string }>`
    select sum(1 + filter_weight) as cost from subscriptions where client_id = ${app.client_id}`.execute(db);
  // Such an account's turns do not wait for the rests of others.
  assert.ok(Number(rows[0]?.cost) <= 250, `${rows[0]?.cost}`);

  const larger = filterOf(count, 1_000);
  const [id] = (await owner.request('GET', path)).body.items.map((item: { id: string }) => item.id);
  const refused = [
    await owner.request('POST', path, { json: { ...json, filter: larger } }),
    await owner.request('PATCH', `/subscriptions/${id}`, { json: { filter: larger } }),
  ];
  for (const { status, body } of refused) {
    assert.deepEqual([status, body.code], [422, 'filter-too-large']);
  }
});

test('deliveries held while a grant was withdrawn are not shown', async () => {
  const owner = await createConsoleUser(server);
  const app = await createAppOf(owner);
  const { id } = await subscribeApp(owner, app);
  await owner.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
  const user = await grant(app, ['read:posts']);
  await publish(publisher, user.account, ['held']);
  const log = await until(
    async () => (await owner.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items.length === 1,
  );
  const path = `/deliveries/${log[0].id}`;
  assert.equal((await owner.request('GET', path)).body.body.ref, 'refs/heads/held');
  await sql`update grants set withdrawn_at = now() where id = ${user.grantId}`.execute(db);
  assert.equal((await owner.request('GET', path)).body.body, null);
});

test('with appSubscriptions: verified, deliveries begin and end with the verification', async (t) => {
  const platform = createPlatform({ ...shipped, webhooks: { appSubscriptions: 'verified' } });
  const own = await startTestServer(t, {}, 'dev', platform);
  const subscriber = await startSubscriber(t);
  const publishHere = await createPublisher(own);
  const owner = await createConsoleUser(own);
  const app = await createAppOf(owner);
  const json = { url: subscriber.url, kinds: ['push'] };
  const path = `/apps/${app.client_id}/subscriptions`;
  const refused = await owner.request('POST', path, { json });
  assert.deepEqual([refused.status, refused.body.code], [403, 'app-subscriptions-off']);
  await sql`update clients set verified_at = now() where id = ${app.client_id}`.execute(own.db);
  assert.equal((await owner.request('POST', path, { json })).status, 201);
  const { account } = await grant(app, ['read:posts'], own);
  await publish(publishHere, account, ['verified']);
  await subscriber.waitFor(1);
  await sql`update clients set verified_at = null where id = ${app.client_id}`.execute(own.db);
  await publish(publishHere, account, ['not any more']);
  await fannedOut(own);
  await sql`update clients set verified_at = now() where id = ${app.client_id}`.execute(own.db);
  await publish(publishHere, account, ['again']);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(String(body)).ref),
    ['refs/heads/verified', 'refs/heads/again'],
  );
});
