/** Subscriptions that respond with 410, or fail for days, are disabled by the nodes that send. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { disableByWorker } from '../../../src/webhooks/subscriptions/subscription_state.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, subscribe } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

test('attack: nobody waits for the locked row of a subscription that is gone', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://subscriber.example/hooks' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  const lane = Number(rows[0]?.lane);
  await db.transaction().execute(async (tx) => {
    await sql`select from subscriptions where id = ${id} for update`.execute(tx);
    assert.equal(await disableByWorker(db, lane, 'gone'), false);
  });
  assert.equal(await disableByWorker(db, lane, 'gone'), true);
  assert.equal(await disableByWorker(db, lane, 'gone'), false);
  const { body } = await app.request('GET', `/subscriptions/${id}`);
  assert.deepEqual([body.state, body.disabled_reason], ['disabled', 'gone']);
});
