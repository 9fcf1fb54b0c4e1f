/** The first delivery of a connection is looked for in a bounded number of subscriptions, however many an app has for a user. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { Connection } from '../../../src/connections/connection_store.ts';
import { addFirstDeliveries } from '../../../src/webhooks/log/first_delivery.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  addPaused,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

test('the ten oldest subscriptions of a grant are looked at, and not those after them', async (t) => {
  const subscriber = await startSubscriber(t, accept);
  const [early, late] = [await createApp(server), await createApp(server)];
  await addPaused(db, late, 10);
  for (const app of [early, late]) await subscribe(app, { url: subscriber.url });
  await addPaused(db, early, 10);
  const publisher = await createPublisher(server);
  for (const { account } of [early, late]) await publish(publisher, account, ['first']);
  await until(
    async () => subscriber.received.length,
    (count) => count === 2,
  );
  // Of a connection, only these members are read.
  const connections = [early, late].map(({ grantId }) => ({ grantId, steps: [] }) as unknown as Connection);
  const found = await until(
    () => addFirstDeliveries(db, connections),
    ([first]) => (first?.steps.length ?? 0) > 0,
  );
  assert.deepEqual(
    found.map(({ steps }) => steps.map(({ name, outcome }) => `${name} ${outcome}`)),
    [['delivery ok'], []],
  );
});
