/** Retries whose outcomes are written late. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

test('a retry is sent although the database stored the failure only after it was due', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const first = Promise.withResolvers<ServerResponse>();
  const subscriber = await startSubscriber(t, (_received, response) => {
    if (subscriber.received.length === 1) first.resolve(response);
    else response.writeHead(204).end();
  });
  const publisher = await createPublisher(server);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, ordered: true, retry_schedule: [1, 1, 1] });
  await publish(publisher, app.account, ['one', 'two', 'three']);
  const response = await first.promise;
  await db.transaction().execute(async (tx) => {
    // Outcomes are written under this lock.
    await sql`select from nodes for update`.execute(tx);
    response.writeHead(503).end();
    // The retry is due before this is over.
    await sleep(2_500);
  });
  await subscriber.waitFor(4);
  assert.deepEqual(
    subscriber.received.map(({ headers }) => headers['nuncio-sequence']),
    ['1', '1', '2', '3'],
  );
});
