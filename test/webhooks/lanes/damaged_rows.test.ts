/** Rows that no version of the server writes, such as after a partial restore. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { BackgroundTasks } from '../../../src/webhooks/lanes/background_tasks.ts';
import { pauseUnreadable } from '../../../src/webhooks/lanes/unreadable_events.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { createLane } from '../../support/webhooks/memory_lane.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const sealer = createSealer(testSecret, 'subscription-secret');
const sealedAuth = (id: string) => sealer.seal('{"type":"basic"}', `${id} auth`).toString('hex');

const damages: Record<string, (id: string) => string> = {
  'a text as URL': () => "url = 'nowhere'",
  'no URL': () => 'url = null',
  'a damaged secret': () => "secret = '\\x01'",
  'damaged authentication': () => "auth_secret = '\\x01'",
  'authentication without a password': (id) => `auth_secret = '\\x${sealedAuth(id)}'`,
};

for (const [name, damage] of Object.entries(damages)) {
  test(`a subscription with ${name} gets nothing, and those loaded together with it do`, async (t) => {
    const server = await startTestServer(t);
    const publisher = await createPublisher(server);
    const app = await createApp(server);
    const subscribers = { damaged: await startSubscriber(t), healthy: await startSubscriber(t) };
    const { id } = await subscribe(app, { url: subscribers.damaged.url });
    for (let count = 0; count < 5; count += 1) await subscribe(app, { url: subscribers.healthy.url });
    await sql`update subscriptions set ${sql.raw(damage(id))} where id = ${id}`.execute(server.db);
    await publish(publisher, app.account, ['first']);
    await subscribers.healthy.waitFor(5);
    await publish(publisher, app.account, ['second']);
    await subscribers.healthy.waitFor(10);
    assert.equal(subscribers.damaged.received.length, 0);
  });
}

test('a lane whose next event cannot be read pauses, and the error is reported', async () => {
  const lane = createLane(newId());
  const errors: Error[] = [];
  const background = new BackgroundTasks((error) => errors.push(error));
  pauseUnreadable(background, new Map([[lane.id, lane]]))(lane.id, new Error('invalid page'));
  await background.settled();
  assert.ok(lane.pausedUntil > performance.now() + 30_000);
  assert.match(String(errors[0]?.message), /cannot be read/);
});
