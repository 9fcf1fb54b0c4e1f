/** An ordered lane with more retries than are counted when it is loaded. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { startTestServer } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

test('an ordered lane sends more than a thousand retries, and what comes after them later', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, ordered: true });
  const change = async (state: string) =>
    assert.equal((await app.request('PATCH', `/subscriptions/${id}`, { json: { state } })).status, 200);
  await change('disabled');
  const held = 1_100;
  for (let from = 0; from < held; from += 100)
    await publish(
      publisher,
      app.account,
      Array.from({ length: 100 }, (_, index) => from + index),
    );
  await fannedOut(server);
  await change('active');
  const recovery = await app.request('POST', `/subscriptions/${id}/recover`, {
    json: { since: new Date(0).toISOString(), status: ['held'] },
  });
  assert.equal(recovery.status, 202, recovery.text);
  await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries?status=held&limit=1`)).body.items,
    (items) => items.length === 0,
  );
  await publish(publisher, app.account, ['last']);
  await until(
    async () => subscriber.received.length,
    (count) => count >= held + 1,
  );
  const sequences = subscriber.received.map(({ headers }) => Number(headers['nuncio-sequence']));
  assert.equal(sequences.at(-1), held + 1);
  assert.equal(new Set(sequences).size, held + 1);
});
