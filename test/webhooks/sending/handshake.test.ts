/** The handshake: a new URL must echo a signed challenge before it is stored, if the subscription or the operator wants it. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import shipped from '../../../nuncio.config.ts';
import { createPlatform } from '../../../src/platform.ts';
import { verify } from '../../../src/verify/verify.ts';
import { type ApiResponse, requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, type Behaviour, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const strict = await startTestServer(
  { after },
  {},
  'dev',
  createPlatform({ ...shipped, webhooks: { handshake: true } }),
);

const secret = `whsec_${Buffer.alloc(32, 7).toString('base64')}`;
const kinds = ['push'];

const echo: Behaviour = ({ body }, response) => {
  const { challenge } = JSON.parse(body);
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ challenge }));
};

const create = ({ request }: Pick<App, 'request'>, fields: object) =>
  request('POST', '/subscriptions', { json: { kinds, ...fields } });

async function countOf({ request }: Pick<App, 'request'>): Promise<number> {
  return (await request('GET', '/subscriptions')).body.items.length;
}

test('without a handshake nothing is asked, and a subscription can ask for one', async (t) => {
  const subscriber = await startSubscriber(t, echo);
  const app = await createApp(server);
  const without = await create(app, { url: subscriber.url });
  assert.deepEqual([without.status, without.body.handshake, subscriber.received.length], [201, false, 0]);
  const made = await create(app, { url: `${subscriber.url}/hooks?a=1`, handshake: true, secret });
  assert.deepEqual([made.status, made.body.handshake], [201, true], made.text);
  assert.equal(subscriber.received.length, 1);
  assert.equal(subscriber.received[0]?.path, '/hooks?a=1');
});

test('the challenge is signed in each format like a delivery, and differs each time', async (t) => {
  const subscriber = await startSubscriber(t, echo);
  const app = await createApp(server);
  const { public_keys: publicKeys } = (await (await fetch(`${server.baseUrl}/meta`)).json()) as never;
  for (const signature of ['timestamp', 'sha256', 'standard', 'ed25519']) {
    const url = `${subscriber.url}/${signature}`;
    const made = await create(app, { url, signature, secret, handshake: true });
    assert.equal(made.status, 201, made.text);
    const { headers, body } = subscriber.received.at(-1) as never as { headers: Headers; body: string };
    const key = signature === 'ed25519' ? { publicKeys } : { secret };
    const { kind, sequence } = await verify({ headers, body, ...key } as Parameters<typeof verify>[0]);
    assert.deepEqual([kind, sequence], ['verification', 0]);
  }
  const challenges = subscriber.received.map(({ body }) => JSON.parse(body).challenge);
  assert.equal(new Set(challenges).size, 4);
  assert.ok(challenges.every((challenge) => challenge.length >= 40));
});

test('a server that does not echo gets no subscription, and the error says why', async (t) => {
  const json =
    (make: (challenge: string) => unknown, status = 200): Behaviour =>
    ({ body }, response) =>
      response.writeHead(status).end(JSON.stringify(make(JSON.parse(body).challenge)));
  const cases: [string, Behaviour][] = [
    ['the response is not JSON', accept],
    ['the response is the request', ({ body }, response) => response.end(body)],
    ['the response has no member `challenge`', json(() => ({ other: 1 }))],
    ['the response has no member `challenge`', json(() => null)],
    ['the response has no member `challenge`', json((challenge) => ({ challenge: [challenge] }))],
    ['the response has another challenge', json((challenge) => ({ challenge: `${challenge} ` }))],
    ['the response has the status 500', json((challenge) => ({ challenge }), 500)],
    ['the response is too large', json((challenge) => ({ challenge, filler: 'a'.repeat(100_000) }))],
    ['the request failed: connection_error', (_received, response) => response.destroy()],
  ];
  for (const [reason, behave] of cases) {
    const subscriber = await startSubscriber(t, behave);
    const app = await createApp(server);
    const { status, body } = await create(app, { url: subscriber.url, handshake: true });
    assert.equal(status, 422);
    const [{ pointer, code, message }] = body.errors;
    assert.deepEqual([pointer, code], ['/url', 'handshake-failed']);
    assert.equal(message, `did not echo the challenge: ${reason}`);
    assert.equal(await countOf(app), 0);
  }
});

test('a redirect to a server that would echo is not followed', async (t) => {
  const target = await startSubscriber(t, echo);
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(307, { location: target.url }).end();
  });
  const app = await createApp(server);
  const { status } = await create(app, { url: subscriber.url, handshake: true });
  assert.deepEqual([status, target.received.length], [422, 0]);
});

test('the operator can want it for every URL: of grants, of apps, and of changes', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(strict);
  const { request } = await createSubscribingClient(strict);
  for (const each of [app, { request }]) {
    const { status, body } = await create(each, { url: subscriber.url });
    assert.deepEqual([status, body.errors?.[0].code], [422, 'handshake-failed']);
    assert.equal((await create(each, { url: null })).status, 201, 'nothing is sent to those who pull');
  }
  subscriber.behave(echo);
  const made = await create(app, { url: subscriber.url });
  assert.equal(made.status, 201, made.text);
  const change = (json: object) => app.request('PATCH', `/subscriptions/${made.body.id}`, { json });
  subscriber.behave(accept);
  const count = subscriber.received.length;
  assert.equal((await change({ description: 'x' })).status, 200);
  assert.equal(subscriber.received.length, count, 'the URL stays, so it is not asked again');
  const refused = await change({ url: `${subscriber.url}/other` });
  assert.deepEqual([refused.status, refused.body.errors[0].code], [422, 'handshake-failed']);
  const path = `/subscriptions/${made.body.id}`;
  assert.equal((await app.request('GET', path)).body.url, `${subscriber.url}/`);
  subscriber.behave(echo);
  assert.equal((await change({ url: `${subscriber.url}/other` })).body.url, `${subscriber.url}/other`);
  subscriber.behave(accept);
  await publish(await createPublisher(strict), app.account, [randomUUID()]);
  assert.equal((await subscriber.waitFor(count + 3)).at(-1)?.path, '/other');
});

test('the challenge carries static headers and authentication, but none of another origin', async (t) => {
  const [first, second] = [await startSubscriber(t, echo), await startSubscriber(t, echo)];
  const app = await createApp(server);
  const headers = { 'X-Tenant': '42' };
  const auth = { type: 'basic', username: 'a', password: 'b' };
  const made = await create(app, { url: first.url, handshake: true, headers, auth });
  assert.equal(made.status, 201, made.text);
  const sent = ({ received }: typeof first) => {
    const { 'x-tenant': tenant, authorization } = received.at(-1)?.headers ?? {};
    return [tenant, authorization];
  };
  assert.deepEqual(sent(first), ['42', 'Basic YTpi']);
  const change = (json: object) => app.request('PATCH', `/subscriptions/${made.body.id}`, { json });
  assert.equal((await change({ url: `${first.url}/2` })).status, 200);
  assert.deepEqual(sent(first), ['42', 'Basic YTpi']);
  // The change itself is refused, because the values must be given again. The challenge came before, without them.
  assert.equal((await change({ url: second.url })).status, 422);
  assert.deepEqual(sent(second), [undefined, undefined]);
});

test('a handshake turned on later asks the stored URL', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { body } = await create(app, { url: subscriber.url });
  const change = (json: object) => app.request('PATCH', `/subscriptions/${body.id}`, { json });
  assert.equal((await change({ handshake: true })).status, 422);
  subscriber.behave(echo);
  assert.equal((await change({ handshake: true })).body.handshake, true);
  assert.equal((await change({ handshake: null })).body.handshake, false);
});

test('handshakes have a rate, so that nobody floods a server with challenges', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const answers = await Promise.all(
    Array.from({ length: 14 }, (_, number) =>
      create(app, { url: `${subscriber.url}/${number}`, handshake: true }),
    ),
  );
  const limited = answers.filter(({ status }) => status === 429);
  assert.ok(limited.length >= 3, `${limited.length}`);
  assert.ok(Number(limited[0]?.headers.get('retry-after')) >= 1);
  assert.ok(subscriber.received.length <= 11);
  // Another app is not limited by that.
  subscriber.behave(echo);
  assert.equal((await create(await createApp(server), { url: subscriber.url, handshake: true })).status, 201);
});

test('a repeated request with the same idempotency key does not need the server any more', async (t) => {
  const subscriber = await startSubscriber(t, echo);
  const app = await createApp(server);
  const headers = { 'idempotency-key': randomUUID() };
  const json = { url: subscriber.url, kinds, handshake: true };
  const first = await app.request('POST', '/subscriptions', { json, headers });
  subscriber.behave(accept);
  const second = await app.request('POST', '/subscriptions', { json, headers });
  assert.deepEqual([first.status, second.status, second.body.id], [201, 201, first.body.id]);
  assert.equal(subscriber.received.length, 1);
});

test('users whose handshakes hang leave room for others of their app, and for other apps there', async (t) => {
  const held: ServerResponse[] = [];
  const subscriber = await startSubscriber(t, (_received, response) => void held.push(response));
  const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];
  const client = await createTestClient(server, { scopes });
  const userOfApp = async () => {
    const account = await createTestAccount(server);
    const { accessToken } = await mintAccessToken(server, { account, client, scopes });
    return { request: requester(server, accessToken) };
  };
  const asked: Promise<ApiResponse>[] = [];
  let refused = 0;
  for (let count = 0; count < 2; count += 1) {
    const user = await userOfApp();
    for (let number = 0; number < 10; number += 1) {
      const made = create(user, { url: `${subscriber.url}/${number}`, handshake: true });
      asked.push(made);
      made.then(({ status }) => {
        if (status === 429) refused += 1;
      });
    }
  }
  await until(
    async () => held.length + refused,
    (count) => count === asked.length,
  );
  // Of 24 of the app, depending on their order.
  assert.ok(held.length >= 14 && held.length <= 16, `${held.length}`);
  subscriber.behave(echo);
  for (const other of [await userOfApp(), await createApp(server)]) {
    const made = await create(other, { url: `${subscriber.url}/other`, handshake: true });
    assert.equal(made.status, 201, made.text);
  }
  for (const response of held) response.destroy();
  await Promise.all(asked);
});

test('an app whose handshakes hang leaves room for the other apps of its user', async (t) => {
  const held: ServerResponse[] = [];
  const subscriber = await startSubscriber(t, (_received, response) => void held.push(response));
  const account = await createTestAccount(server);
  const askMany = async () => {
    const app = await createApp(server, { account });
    return Array.from({ length: 10 }, (_, number) =>
      create(app, { url: `${subscriber.url}/${number}`, handshake: true }),
    );
  };
  const first = await askMany();
  await subscriber.waitFor(10);
  const second = await askMany();
  await subscriber.waitFor(15);
  assert.equal((await Promise.race(second)).status, 429);
  for (const response of held) response.destroy();
  const statuses = (await Promise.all([...first, ...second])).map(({ status }) => status);
  assert.deepEqual(statuses.toSorted(), [...Array(15).fill(422), ...Array(5).fill(429)]);
});

test('accounts whose handshakes hang leave room for one that has none', async (t) => {
  const held: ServerResponse[] = [];
  const hanging = await startSubscriber(t, (_received, response) => void held.push(response));
  const asked: Promise<ApiResponse>[] = [];
  for (let count = 0; count < 10; count += 1) {
    const app = await createApp(server);
    for (let number = 0; number < 10; number += 1) {
      asked.push(create(app, { url: `${hanging.url}/${number}`, handshake: true }));
    }
  }
  await hanging.waitFor(75);
  const echoing = await startSubscriber(t, echo);
  const stranger = await createApp(server);
  assert.equal((await create(stranger, { url: echoing.url, handshake: true })).status, 201);
  for (const response of held) response.destroy();
  await Promise.all(asked);
});
