/** `format: "thin"`: the id, the kind and a link to the resource, however the event is delivered. */

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { after, test } from 'node:test';
import { defineConfig, defineEventKind, Type } from '../../../src/index.ts';
import { createPlatform, type PlatformError } from '../../../src/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s' });
const publisher = await createPublisher(server);

test('a thin delivery has the id, the kind and a link that its app can read', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { secret } = await subscribe(app, {
    url: subscriber.url,
    kinds: ['*'],
    format: 'thin',
    signature: 'sha256',
  });
  const { body: article } = await app.request('POST', '/articles', {
    json: { title: 'Not in the delivery' },
  });
  const { body: comment } = await app.request('POST', `/articles/${article.id}/comments`, {
    json: { body: 'Nor this' },
  });
  const { body: published } = await publish(publisher, app.account, ['secret-branch']);
  const received = await subscriber.waitFor(3);
  const bodies = new Map(received.map((each) => [each.headers['nuncio-event'], each]));
  const expected = {
    'article.created': `${server.baseUrl}/articles/${article.id}`,
    'comment.created': `${server.baseUrl}/articles/${article.id}/comments/${comment.id}`,
    push: null,
  };
  for (const [kind, resource] of Object.entries(expected)) {
    const each = bodies.get(kind);
    const body = JSON.parse(each?.body as string);
    assert.deepEqual(Object.keys(body), ['id', 'kind', 'resource']);
    assert.deepEqual([body.kind, body.resource], [kind, resource]);
    assert.equal(each?.headers['content-type'], 'application/json');
    const signature = createHmac('sha256', secret)
      .update(each?.body as string)
      .digest('hex');
    assert.equal(each?.headers['nuncio-signature'], `sha256=${signature}`);
    if (resource === null) assert.equal(body.id, published.ids[0]);
    else assert.equal((await app.request('GET', new URL(resource).pathname)).status, 200);
  }
  assert.doesNotMatch(received.map(({ body }) => body).join(), /Not in the delivery|Nor this|secret-branch/);
});

test('retries, resends, pull and the log have the same thin body', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, format: 'thin', kinds: ['article.*'] });
  await app.request('POST', '/articles', { json: { title: 'Again' } });
  await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  const [, second] = await subscriber.waitFor(2);
  const deliveryId = second?.headers['nuncio-delivery'];
  await until(
    async () => (await app.request('GET', `/deliveries/${deliveryId}`)).body.state,
    (state) => state === 'succeeded',
  );
  await app.request('POST', `/deliveries/${deliveryId}/resend`);
  const received = await subscriber.waitFor(3);
  assert.equal(new Set(received.map(({ body }) => body)).size, 1);
  const pulled = await app.request('GET', `/subscriptions/${id}/events`);
  assert.equal(JSON.stringify(pulled.body.items[0].body), second?.body);
  const { body: delivery } = await app.request('GET', `/deliveries/${deliveryId}`);
  assert.equal(delivery.attempts[0].request.headers['content-length'], String(second?.body.length));
});

test('a test event and a ping are thin, and a PATCH changes the format of the next attempt', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, format: 'thin' });
  await app.request('POST', `/subscriptions/${id}/test`);
  const [ping] = await subscriber.waitFor(1);
  const { kind, resource } = JSON.parse(ping?.body as string);
  assert.deepEqual([kind, resource], ['ping', `${server.baseUrl}/subscriptions/${id}`]);
  const patched = await app.request('PATCH', `/subscriptions/${id}`, { json: { format: null } });
  assert.equal(patched.body.format, 'json');
  await app.request('POST', `/subscriptions/${id}/test`);
  const [, whole] = await subscriber.waitFor(2);
  assert.equal(JSON.parse(whole?.body as string).subscription, id);
  const refused = await app.request('PATCH', `/subscriptions/${id}`, { json: { format: 'fat' } });
  assert.equal(refused.status, 422);
});

test('a kind of the platform declares its link, and a wrong one stops the start', () => {
  const kind = {
    name: 'invoice.paid',
    description: '',
    object: null,
    schema: Type.Object({ id: Type.String() }),
    example: { id: 'x' },
  };
  const declare = (resource: string) =>
    createPlatform(defineConfig({ eventKinds: [defineEventKind({ ...kind, resource })] }));
  assert.equal(
    declare('https://shop.example/invoices/{/id}').eventKinds[0]?.resource,
    'https://shop.example/invoices/{/id}',
  );
  assert.throws(
    () => declare('https://{/id}/'),
    (error: PlatformError) => /eventKinds\.invoice\.paid\.resource: must be/.test(error.message),
  );
});
