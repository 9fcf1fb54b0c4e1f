/** A node that leases a lane, and another one that leads the fan-out. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { startTwoNodes } from '../../support/servers/two_nodes.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

test('a node sends what another one, the leader, adds to its lanes, without waiting for its next heartbeat', async (t) => {
  const { db, serverA, serverB } = await startTwoNodes(t);
  const subscriber = await startSubscriber(t);
  const app = await createApp(serverA);
  const publisher = await createPublisher(serverB);
  const { id } = await subscribe(app, { url: subscriber.url });
  let published = 0;
  const deliver = async () => {
    published += 1;
    await publish(publisher, app.account, [published]);
    await subscriber.waitFor(published);
  };
  const read = async () => {
    const { rows } = await sql<{ leader: string | null; owner: string; heartbeats: number }>`
      select (select holder from leases where name = 'fan-out') as leader, p.owner::text, n.heartbeats::int
      from subscriptions s join lane_progress p on p.lane = s.lane join nodes n on n.id = p.owner
      where s.id = ${id}`.execute(db);
    return rows[0];
  };
  await deliver();
  // The node that leads at first leases the lane.
  const first = await until(read, (row) => row !== undefined && row.leader === row.owner);
  const other = await until(
    async () => {
      await sql`
        update leases set holder = null, fence = fence + 1, expires_at = '-infinity'
        where name = 'fan-out' and holder = ${first?.owner}`.execute(db);
      // The lane is never idle for long, so it is not released.
      await deliver();
      return read();
    },
    (row) => row !== undefined && row.leader !== null && row.leader !== row.owner,
  );
  const count = 20;
  for (let delivered = 0; delivered < count; delivered += 1) await deliver();
  const last = await read();
  assert.deepEqual([last?.owner, last?.leader], [first?.owner, other?.leader]);
  const heartbeats = (last?.heartbeats ?? 0) - (other?.heartbeats ?? 0);
  assert.ok(heartbeats < count / 2, `${heartbeats} heartbeats during ${count} deliveries`);
});
