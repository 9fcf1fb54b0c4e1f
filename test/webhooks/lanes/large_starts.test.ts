/** Attempts with large bodies: the engine starts few of them in a turn of the event loop, because each body is signed. */

import assert from 'node:assert/strict';
import { Hmac } from 'node:crypto';
import { after, type TestContext, test } from 'node:test';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, pushBody, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const subscriptions = 40;
const bytes = 200_000;

/** Counts the large bodies that are signed in each turn of the event loop. */
function watchSigning(t: TestContext): () => number[] {
  const signed = new Map<number, number>();
  let turn = 0;
  let isOver = false;
  const countTurns = () => {
    turn += 1;
    if (!isOver) setImmediate(countTurns);
  };
  countTurns();
  const { update } = Hmac.prototype;
  t.mock.method(Hmac.prototype, 'update', function (this: Hmac, data: string | Buffer) {
    if (data.length >= bytes) signed.set(turn, (signed.get(turn) ?? 0) + 1);
    return update.call(this, data);
  });
  return () => {
    isOver = true;
    return [...signed.values()];
  };
}

test('few attempts with large bodies start in a turn of the event loop', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  for (let count = 0; count < subscriptions; count += 1) await subscribe(app, { url: subscriber.url });
  // Until the host is known for many attempts at once.
  for (let round = 1; round <= 4; round += 1) {
    await publish(publisher, app.account, [round]);
    await subscriber.waitFor(round * subscriptions);
  }
  const end = watchSigning(t);
  const commits = Array.from({ length: 4 }, (_, index) => ({
    id: String(index),
    message: 'x'.repeat(bytes / 4),
  }));
  const body = { ...pushBody('large'), commits };
  await publisher('POST', '/events', { json: { kind: 'push', account: app.account.id, body } });
  await subscriber.waitFor(5 * subscriptions);
  const starts = end();
  assert.equal(
    starts.reduce((sum, count) => sum + count, 0),
    subscriptions,
  );
  assert.ok(Math.max(...starts) <= 6, starts.join(' '));
});
