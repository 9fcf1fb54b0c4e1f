/** Hints about lanes: what this server's own changes announce is heeded and counts as true. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

async function falseHints(): Promise<string[]> {
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  return metrics.split('\n').filter((line) => /^nuncio_false_hints_total\{.*\} [1-9]/.test(line));
}

test('a changed subscription is announced by a hint that is heeded and counts as true', async (t) => {
  let status = 503;
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(status).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [86_400] });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  await publish(await createPublisher(server), app.account, ['failing']);
  await subscriber.waitFor(1);
  const retries = () => sql`select from retries where lane = ${lane}`.execute(db);
  await until(retries, ({ rows }) => rows.length === 1);
  status = 204;
  // Only a hint makes the node read the lane, and find that no schedule has such a pause.
  await sql`update retries set due_at = now() + interval '35 days' where lane = ${lane}`.execute(db);
  await app.request('PATCH', `/subscriptions/${id}`, { json: { description: 'changed' } });
  await subscriber.waitFor(2);
  assert.deepEqual(await falseHints(), []);
  await sql`select announce('lane_changed', ${'9'.repeat(17)})`.execute(db);
  await until(falseHints, (lines) => lines.length === 1);
});
