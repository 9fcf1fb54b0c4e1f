/** A node loses a lane and leases it again while its earlier attempts are in flight. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { platformWithPatientHosts } from '../../support/servers/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, {}, 'dev', await platformWithPatientHosts());
const { db } = server;
const publisher = await createPublisher(server);

test('webhooks 63: an attempt that ends after its lane was lost and retaken changes nothing in the lane', async (t) => {
  const waiting: { sequence: number; response: ServerResponse }[] = [];
  const subscriber = await startSubscriber(t, ({ headers }, response) => {
    waiting.push({ sequence: Number(headers['nuncio-sequence']), response });
  });
  const answerTo = (sequence: number, status: number) => {
    const index = waiting.findIndex((one) => one.sequence === sequence);
    const [one] = waiting.splice(index, 1);
    (one as (typeof waiting)[0]).response.writeHead(status).end();
  };
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  await publish(publisher, app.account, ['one', 'two', 'three']);
  await subscriber.waitFor(3);

  // As if another node had taken the lane and released it. This node learns of it at its next write.
  await sql`update lane_progress set owner = null, due_at = null where lane = ${lane}`.execute(db);
  answerTo(2, 500);
  answerTo(3, 500);
  const metrics = async () => (await fetch(`${server.baseUrl}/metrics`)).text();
  await until(metrics, (text) => /^nuncio_lanes_lost_total 1$/m.test(text));
  await sql`update lane_progress set due_at = now() where lane = ${lane}`.execute(db);
  await subscriber.waitFor(6);

  const attempted = async () => {
    const { rows } = await sql<{ sequence: number }>`
      select sequence::int from attempts where lane = ${lane}`.execute(db);
    return rows.map(({ sequence }) => sequence);
  };
  // Responds to the earliest attempt, which the lost lane counts as the last of its three.
  answerTo(1, 500);
  await sleep(200);
  // This outcome is written after it.
  answerTo(2, 200);
  await until(attempted, (sequences) => sequences.includes(2));
  const { rows } = await sql<{ cursor: number }>`
    select cursor::int from lane_progress where lane = ${lane}`.execute(db);
  assert.ok((rows[0]?.cursor ?? 0) < 3, 'after a crash the third would not be sent again');

  answerTo(1, 200);
  answerTo(3, 200);
  assert.deepEqual((await until(attempted, (found) => found.length >= 3)).toSorted(), [1, 2, 3]);
});
