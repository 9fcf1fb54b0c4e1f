/** Bodies of events that take long to parse: what is read of them costs about as much as of others. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { timesAsMuch } from '../support/processor_time.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const length = 180_000;

test('the details of a delivery take about as long, whatever its body has', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id: subscription } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  const send = async (more: unknown) => {
    const commits = [{ id: '1', message: '', more }];
    const body = { ...pushBody(), commits };
    const { status } = await publisher('POST', '/events', {
      json: { kind: 'push', account: app.account.id, body },
    });
    assert.equal(status, 202);
    return body;
  };
  const easy = await send('x'.repeat(length));
  // An object with a name of its own each.
  const hard = await send(Array.from({ length: length / 16 }, (_, index) => ({ [`a${index}`]: 1 })));
  await subscriber.waitFor(2);
  const { body: list } = await app.request('GET', `/subscriptions/${subscription}/deliveries`);
  const [ofHard, ofEasy] = list.items.map(({ id }: { id: string }) => id) as [string, string];
  const read = async (id: string) => {
    const headers = { authorization: `Bearer ${app.accessToken}` };
    return (await fetch(`${server.baseUrl}/deliveries/${id}`, { headers })).text();
  };
  for (const [id, body] of [
    [ofEasy, easy],
    [ofHard, hard],
  ] as const) {
    const shown = JSON.parse(await read(id));
    assert.deepEqual(shown.body, body);
    assert.equal(shown.attempts.length, 1);
  }
  const ratio = await timesAsMuch(
    () => read(ofHard),
    () => read(ofEasy),
  );
  assert.ok(ratio < 4, `${ratio} times as long`);
});
