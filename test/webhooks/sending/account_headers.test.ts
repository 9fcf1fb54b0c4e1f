/** Whose event a delivery is: `Nuncio-Account` and `Nuncio-Account-External-Id`, in every format and for every owner. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId } from '../../../src/clients/own_clients.ts';
import { createGrant } from '../../../src/grants/grant.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s' });
const { db } = server;
const publisher = await createPublisher(server);

async function createUser(externalId: string | null) {
  const account = await createTestAccount(server);
  await name(account.id, externalId);
  return account;
}

async function name(id: string, externalId: string | null): Promise<void> {
  await sql`update accounts set external_id = ${externalId} where id = ${id}`.execute(db);
}

/** What a delivery says about the account, with the external id decoded. */
function accountOf({ headers }: Received) {
  const externalId = headers['nuncio-account-external-id'] as string | undefined;
  return [headers['nuncio-account'], externalId === undefined ? null : decodeURIComponent(externalId)];
}

test('a delivery in every format names the event’s account and its external id, whoever owns the subscription', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createUser('customer-7');
  const app = await createApp(server, { account: user });
  const own = await createSubscribingClient(server);
  await createGrant(db, { accountId: user.id, clientId: own.client.id, scopes: ['read:posts'] });
  const consoleToken = await mintAccessToken(server, {
    account: user,
    client: { id: consoleClientId },
    scopes: ['read:webhooks', 'write:webhooks'],
  });
  const owners = { grant: app, client: own, user: { request: requester(server, consoleToken.accessToken) } };
  const shapes = [
    { format: 'json', signature: 'timestamp' },
    { format: 'json', signature: 'standard' },
    { format: 'cloudevents', signature: 'sha256' },
    { format: 'cloudevents', signature: 'ed25519' },
  ];
  for (const [owner, by] of Object.entries(owners)) {
    for (const shape of shapes) {
      const url = `${subscriber.url}/${owner}/${shape.format}/${shape.signature}`;
      await subscribe(by, { url, kinds: ['push', 'article.created'], ...shape });
    }
  }
  // Published events reach the engine in memory; it reads the others from the database.
  await publish(publisher, user, ['x']);
  await app.request('POST', '/articles', { json: { title: 'Hello' } });
  const received = await subscriber.waitFor(2 * 3 * shapes.length);
  for (const each of received) {
    assert.deepEqual(accountOf(each), [user.id, 'customer-7'], each.path);
    if (!each.path.includes('cloudevents')) continue;
    const event = JSON.parse(each.body);
    assert.deepEqual([event.source, event.accountexternalid], [`/accounts/${user.id}`, 'customer-7']);
  }
});

test('an app’s own subscription distinguishes accounts, and an account without an external id has only its id', async (t) => {
  const subscriber = await startSubscriber(t);
  const own = await createSubscribingClient(server);
  const users = [await createUser('left'), await createUser('right'), await createUser(null)];
  for (const { id } of users)
    await createGrant(db, { accountId: id, clientId: own.client.id, scopes: ['read:posts'] });
  for (const format of ['json', 'cloudevents']) await subscribe(own, { url: subscriber.url, format });
  const events = users.map(({ id }, index) => ({
    kind: 'push',
    account: id,
    body: { ref: `refs/heads/${index}`, commits: [], repository: { name: 'example' } },
  }));
  assert.equal((await publisher('POST', '/events', { json: events })).status, 202);
  for (const each of await subscriber.waitFor(6)) {
    const { ref, data, accountexternalid } = JSON.parse(each.body);
    const index = Number((ref ?? data.ref).slice('refs/heads/'.length));
    const externalId = ['left', 'right', null][index] ?? null;
    assert.deepEqual(accountOf(each), [users[index]?.id, externalId]);
    if (data !== undefined) assert.equal(accountexternalid, externalId ?? undefined);
  }
});

test('an event published by the external id is delivered with it, with and without an event id', async (t) => {
  const subscriber = await startSubscriber(t);
  const own = await createSubscribingClient(server);
  const known = await createUser('known before');
  await createGrant(db, { accountId: known.id, clientId: own.client.id, scopes: ['read:posts'] });
  await subscribe(own, { url: subscriber.url });
  const body = { ref: 'refs/heads/x', commits: [], repository: { name: 'example' } };
  for (const id of ['first', undefined]) {
    const json = { kind: 'push', account: { external_id: 'known before' }, body, ...(id && { id }) };
    assert.equal((await publisher('POST', '/events', { json })).status, 202);
  }
  for (const each of await subscriber.waitFor(2))
    assert.deepEqual(accountOf(each), [known.id, 'known before']);
});

test('attack: an external id of any characters stays one header value that decodes to the id', async (t) => {
  const subscriber = await startSubscriber(t);
  const ids = [
    ' leading and trailing ',
    'Zoë 😀 東京',
    '100%',
    '%41',
    '%0d%0aX-Injected: 1',
    'a: b, c="d"; e',
    '\u2028\u00ad\ufeff',
    '~'.repeat(255),
    '😀'.repeat(255),
    "!'()*-._~",
  ];
  for (const format of ['json', 'cloudevents']) {
    for (const externalId of ids) {
      const user = await createUser(externalId);
      const app = await createApp(server, { account: user });
      await subscribe(app, { url: subscriber.url, format });
      const before = subscriber.received.length;
      await publish(publisher, user, ['x']);
      const each = (await subscriber.waitFor(before + 1))[before] as Received;
      assert.deepEqual(accountOf(each), [user.id, externalId]);
      assert.match(String(each.headers['nuncio-account-external-id']), /^[\x21-\x7e]+$/);
      assert.equal(each.headers['x-injected'], undefined);
      if (format === 'cloudevents') assert.equal(JSON.parse(each.body).accountexternalid, externalId);
      await name(user.id, null);
    }
  }
});

test('the log shows the account headers of an attempt, also after the event’s body was erased', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const user = await createUser('Zoë');
  const app = await createApp(server, { account: user });
  await subscribe(app, { url: subscriber.url });
  const published = await publish(publisher, user, ['x']);
  const [received] = await subscriber.waitFor(1);
  const id = received?.headers['nuncio-delivery'];
  const shown = async () => {
    const { body } = await until(
      () => app.request('GET', `/deliveries/${id}`),
      (response) => response.body.attempts?.length > 0,
    );
    const { headers } = body.attempts[0].request;
    return [headers['Nuncio-Account'], headers['Nuncio-Account-External-Id']];
  };
  assert.deepEqual(await shown(), [user.id, 'Zo%C3%AB']);
  const [event] = published.body.ids ?? published.body.items.map((item: { id: string }) => item.id);
  assert.equal((await publisher('DELETE', `/events/${event}/body`)).status, 204);
  assert.deepEqual(await shown(), [user.id, 'Zo%C3%AB']);
});

test('an event after a change of the external id has the new one', async (t) => {
  const subscriber = await startSubscriber(t);
  const user = await createUser('old name');
  const app = await createApp(server, { account: user });
  await subscribe(app, { url: subscriber.url });
  await publish(publisher, user, ['x']);
  await subscriber.waitFor(1);
  await name(user.id, 'new name');
  await publish(publisher, user, ['y']);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(received.map(accountOf), [
    [user.id, 'old name'],
    [user.id, 'new name'],
  ]);
});

test('a ping has no account headers, because it belongs to no account', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server, { account: await createUser('someone') });
  const { id } = await subscribe(app, { url: subscriber.url });
  await app.request('POST', `/subscriptions/${id}/test`);
  const [received] = await subscriber.waitFor(1);
  assert.deepEqual(accountOf(received as Received), [undefined, null]);
});

test('attack: a subscriber cannot give a static header the name of an account header', async () => {
  const app = await createApp(server);
  for (const header of ['Nuncio-Account', 'nuncio-account-external-id']) {
    const json = { url: 'https://example.com/', kinds: ['*'], headers: { [header]: 'someone else' } };
    assert.equal((await app.request('POST', '/subscriptions', { json })).status, 422, header);
  }
});
