/** Quotas of subscriptions: per grant, account and app, and for the deliveries of one event. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { createGrant } from '../../../src/grants/grant.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { freeOf } from '../../../src/shared/share.ts';
import { defaultQuotas, type Quotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import {
  type App,
  addPaused,
  appScopes,
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const json = { url: 'https://example.com/hooks', kinds: ['push'] };
const range = (count: number) => Array.from({ length: count }, (_, index) => index);

async function startWith(t: TestContext, quotas: Partial<Quotas>): Promise<TestServer> {
  const platform = await loadPlatform(null);
  const webhooks = { ...platform.webhooks, quotas: { ...defaultQuotas, ...quotas } };
  return startTestServer(t, {}, 'dev', { ...platform, webhooks });
}

/** Counts the concurrent creations that succeed. All others must be refused with this code. */
async function makeAtOnce(requests: readonly App['request'][], code: string): Promise<number> {
  const responses = await Promise.all(requests.map((request) => request('POST', '/subscriptions', { json })));
  const refused = responses.filter(({ status }) => status !== 201);
  for (const { status, body } of refused) assert.deepEqual([status, body.code], [422, code]);
  return responses.length - refused.length;
}

test('concurrent consents of many apps and creations do not exceed an account’s quota', async (t) => {
  const server = await startWith(t, { subscriptionsPerAccount: 12, subscriptionsPerGrant: 5 });
  const account = await createTestAccount(server);
  const apps: App[] = [];
  for (const _index of range(5)) apps.push(await createApp(server, { account }));
  const [first] = apps as [App];
  assert.equal(
    await makeAtOnce(
      range(8).map(() => first.request),
      'quota-grant-subscriptions',
    ),
    5,
  );
  const others = apps.slice(1).flatMap(({ request }) => range(4).map(() => request));
  const ofOthers = await makeAtOnce(others, 'quota-account-subscriptions');
  assert.ok(ofOthers > 3 && ofOthers <= 7, String(ofOthers));
  // Subscriptions of other accounts do not count.
  await subscribe(await createApp(server), json);
});

test('a second consent of the same user to an app adds no second quota', async (t) => {
  const server = await startWith(t, { subscriptionsPerGrant: 3 });
  const app = await createApp(server);
  const grantId = await createGrant(server.db, {
    accountId: app.account.id,
    clientId: app.clientId,
    scopes: appScopes,
  });
  const options = { account: app.account, client: { id: app.clientId }, scopes: appScopes, grantId };
  const { accessToken } = await mintAccessToken(server, options);
  const again = requester(server, accessToken);
  const requests = range(6).map((index) => (index % 2 === 0 ? again : app.request));
  assert.equal(await makeAtOnce(requests, 'quota-grant-subscriptions'), 3);
});

test('an app’s subscriptions are limited by its quota over all users', async (t) => {
  const server = await startWith(t, { subscriptionsPerClient: 4 });
  const client = await createTestClient(server, { scopes: appScopes });
  const made: number[] = [];
  for (const _index of range(6)) {
    const account = await createTestAccount(server);
    const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
    made.push(await makeAtOnce([requester(server, accessToken)], 'quota-client-subscriptions'));
  }
  assert.deepEqual(made, [1, 1, 1, 1, 0, 0]);
});

test('the quota of an app with many subscriptions applies to users that have none', async (t) => {
  const server = await startWith(t, { subscriptionsPerClient: 150 });
  const app = await createApp(server);
  const { accessToken } = await mintAccessToken(server, {
    ...{ account: await createTestAccount(server), client: { id: app.clientId }, scopes: appScopes },
  });
  const request = requester(server, accessToken);
  const left = async () => (await request('GET', '/api')).body.quotas.client_subscriptions.left;
  await addPaused(server.db, app, 120);
  assert.equal(await left(), 30);
  await addPaused(server.db, app, 30);
  await until(left, (count) => count === 0);
  assert.equal(await makeAtOnce([request], 'quota-client-subscriptions'), 0);
});

test('users with many subscriptions of an app leave some to users that have none', async (t) => {
  const server = await startWith(t, { subscriptionsPerClient: 16, subscriptionsPerGrant: 10 });
  const client = await createTestClient(server, { scopes: appScopes });
  const users: App['request'][] = [];
  for (const _index of range(4)) {
    const account = await createTestAccount(server);
    const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
    users.push(requester(server, accessToken));
  }
  const made: number[] = [];
  for (const request of users) {
    const left = (await request('GET', '/api')).body.quotas.client_subscriptions.left;
    made.push(await makeAtOnce(Array(10).fill(request), 'quota-client-subscriptions'));
    assert.ok((made.at(-1) ?? 0) <= left, `${made} of ${left}`);
  }
  assert.deepEqual(made, [7, 4, 2, 1]);
});

test('apps with many subscriptions of a user leave some to the user’s other apps', async (t) => {
  const server = await startWith(t, { subscriptionsPerAccount: 16, subscriptionsPerGrant: 10 });
  const account = await createTestAccount(server);
  const made: number[] = [];
  for (const _index of range(4)) {
    const { request } = await createApp(server, { account });
    const left = (await request('GET', '/api')).body.quotas.account_subscriptions.left;
    made.push(await makeAtOnce(Array(10).fill(request), 'quota-account-subscriptions'));
    assert.ok((made.at(-1) ?? 0) <= left, `${made} of ${left}`);
  }
  assert.deepEqual(made, [7, 4, 2, 1]);
});

test('by default, the first app of a user may have as many as the quota for a grant', () => {
  const { subscriptionsPerAccount, subscriptionsPerGrant } = defaultQuotas;
  assert.ok(freeOf(subscriptionsPerAccount, subscriptionsPerGrant - 1, subscriptionsPerGrant - 1) > 0);
});

test('the apps’ own subscriptions count towards an account’s deliveries', async (t) => {
  const server = await startWith(t, { deliveriesPerEvent: 4 });
  const app = await createApp(server);
  const own = await createSubscribingClient(server);
  for (const _index of range(3)) await subscribe(own, json);
  const grant = { accountId: app.account.id, clientId: own.client.id, scopes: ['read:posts'] };
  await createGrant(server.db, grant);
  assert.equal(await makeAtOnce([app.request, app.request], 'quota-event-deliveries'), 1);
});

test('GET /api reports what remains, and a lowered quota ends nothing', async (t) => {
  const server = await startWith(t, { subscriptionsPerAccount: 1, subscriptionsPerGrant: 3 });
  const app = await createApp(server);
  const { id } = await subscribe(app, json);
  const { quotas } = (await app.request('GET', '/api')).body;
  assert.deepEqual(quotas.account_subscriptions, { limit: 1, left: 0 });
  assert.deepEqual(quotas.grant_subscriptions, { limit: 3, left: 2 });
  assert.equal(await makeAtOnce([app.request], 'quota-account-subscriptions'), 0);
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).status, 200);
  assert.equal((await app.request('PATCH', `/subscriptions/${id}`, { json: { ordered: true } })).status, 200);
  assert.equal((await app.request('DELETE', `/subscriptions/${id}`)).status, 204);
  await subscribe(app, json);
  const reader = await createApp(server, { scopes: ['read:posts'] });
  assert.equal('quotas' in (await reader.request('GET', '/api')).body, false);
});

test('an event exceeds the quota of deliveries if the quota was lowered or apps were connected', async (t) => {
  const server = await startWith(t, { deliveriesPerEvent: 2 });
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: `${subscriber.url}/account` });
  const own = await createSubscribingClient(server);
  for (const index of range(3)) await subscribe(own, { url: `${subscriber.url}/own-${index}` });
  // Connects the app after the account's subscription was created.
  await createGrant(server.db, {
    accountId: app.account.id,
    clientId: own.client.id,
    scopes: ['read:posts'],
  });
  assert.deepEqual((await app.request('GET', '/api')).body.quotas.event_deliveries, { limit: 2, left: 0 });
  assert.equal(await makeAtOnce([app.request], 'quota-event-deliveries'), 0);
  await publish(await createPublisher(server), app.account, ['one']);
  const received = await subscriber.waitFor(4);
  assert.deepEqual(received.map(({ path }) => path).sort(), ['/account', '/own-0', '/own-1', '/own-2']);
});

test('past the daily budget an account’s attempts are stored without responses, and other accounts’ keep theirs', async (t) => {
  const server = await startWith(t, { responseBytesPerDay: 40_000 });
  const publisher = await createPublisher(server);
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(200, { 'x-long': 'h'.repeat(4_000) }).end('b'.repeat(16_000));
  });
  const [talkative, other] = [await createApp(server), await createApp(server)];
  const omittedOf = async (app: App, count: number) => {
    const { id } = await subscribe(app, { url: subscriber.url });
    const before = subscriber.received.length;
    await publish(publisher, app.account, range(count));
    await subscriber.waitFor(before + count);
    const { items } = await until(
      async () =>
        (await app.request('GET', `/subscriptions/${id}/deliveries?limit=100&status=succeeded`)).body,
      (page) => page.items.length === count,
    );
    const attempts = [];
    for (const delivery of items) {
      attempts.push((await app.request('GET', `/deliveries/${delivery.id}`)).body.attempts[0]);
    }
    for (const { status, response, response_omitted } of attempts) {
      assert.deepEqual([status, response === null], [200, response_omitted]);
    }
    return attempts.filter(({ response_omitted }) => response_omitted).length;
  };
  assert.equal(await omittedOf(talkative, 20), 19);
  assert.equal(await omittedOf(other, 1), 0);
  const left = async () => (await talkative.request('GET', '/api')).body.quotas.response_bytes;
  await until(left, (quota) => quota.limit === 40_000 && quota.left < 20_000);
});
