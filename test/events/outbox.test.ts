/** The notification of other nodes about new events. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { startTwoNodes } from '../support/servers/two_nodes.ts';
import { createApp, createPublisher, fannedOut, publish, until } from '../support/webhooks/apps.ts';

test('a node notifies the others of new events unless it fans out itself', async (t) => {
  const { db, databaseUrl, serverA, serverB } = await startTwoNodes(t);
  const { account } = await createApp(serverA);
  const listener = new pg.Client({ connectionString: databaseUrl });
  // The database is dropped while the connection is open if the test fails.
  listener.on('error', () => {});
  await listener.connect();
  const notifications: string[] = [];
  listener.on('notification', ({ payload = '' }) => notifications.push(payload));
  await listener.query('listen "nuncio.events"');
  await publish(await createPublisher(serverA), account, ['leader']);
  await fannedOut({ db });
  await publish(await createPublisher(serverB), account, ['follower']);
  await until(
    async () => notifications.length,
    (count) => count > 0,
  );
  // Notifications arrive in the order of their commits.
  assert.equal(notifications.length, 1);
  await fannedOut({ db });
  assert.equal(notifications.length, 1);
  await listener.end();
});
