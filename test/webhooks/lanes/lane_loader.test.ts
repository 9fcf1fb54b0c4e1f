/** The lane loader: deliveries that fan-out adds while a lane is loading. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { packEvents } from '../../../src/webhooks/fan_out/published_batch.ts';
import { BackgroundTasks } from '../../../src/webhooks/lanes/background_tasks.ts';
import { LaneHolds } from '../../../src/webhooks/lanes/lane_holds.ts';
import { LaneLoader } from '../../../src/webhooks/lanes/lane_loader.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { addNode } from '../../support/database/other_node.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, subscribe } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const day = '2026-01-01';
let nodes = 1_000;

/**
 * Creates a lane, leased to a node of this test by default, and that node's loader.
 * @param head the head of the lane in the database
 */
async function openLoader(head: number, isLeased = true) {
  nodes += 1;
  const node = String(nodes);
  await addNode(db, node);
  const { id } = await subscribe(await createApp(server), { url: 'https://hooks.example/' });
  const { rows } = await sql<{ lane: string; account_id: string }>`
    select lane, account_id from subscriptions where id = ${id}`.execute(db);
  const { lane: laneId, account_id: accountId } = rows[0] as { lane: string; account_id: string };
  await sql`update lanes set next_sequence = ${head + 1}::bigint where id = ${laneId}`.execute(db);
  if (isLeased) {
    await sql`update lane_progress set owner = ${node}::bigint where lane = ${laneId}`.execute(db);
  }
  const onError = (error: Error) => assert.fail(error);
  const background = new BackgroundTasks(onError);
  const [lanes, cache] = [new LeasedLanes(), new EventCache()];
  const shared = { db, node, lanes, background, onAccountHeld() {} };
  const loader: LaneLoader = new LaneLoader({
    ...shared,
    cache,
    holds: new LaneHolds({ ...shared, onOver: (ids) => loader.load(ids) }),
    kinds: kindArrays(createCatalogue([])),
    sealer: createSealer(testSecret, 'subscription-secret'),
    cursors: new AgentCursors(testSecret),
    webhookId: 'event',
    isStopping: () => false,
    onChange() {},
    onError,
  });
  const lane = Number(laneId);
  /** What a fan-out pass reports for this lane. @param owner the node that leases it, as the pass saw it */
  const addition = (first: number, count: number, owner: string | null = node) => {
    const events = Array.from({ length: count }, (_, index) => first + index);
    for (const position of events) {
      const event = {
        id: `${position}`,
        kind: 'push',
        accountId,
        createdAt: 0,
        version: null,
        traceparent: null,
        accountExternalId: null,
      };
      cache.put(position, { ...event, body: Buffer.from('{}') });
    }
    return { lane, owner, first, day, events };
  };
  const loaded = async () => {
    await background.settled();
    return lanes.get(lane);
  };
  /** The same for events that were just published on this node. */
  const publishedAddition = (first: number, count: number) => {
    const events = Array.from({ length: count }, (_, index) => first + index);
    const content = {
      accountId,
      kind: 'push',
      day,
      body: Buffer.from('{}'),
      createdAt: new Date(),
      version: null,
      traceparent: null,
      accountExternalId: null,
    };
    cache.putPublished(packEvents(events.map((position) => ({ ...content, id: `${position}`, position }))));
    return { lane, owner: node, first, day, events };
  };
  return { loader, lane, addition, publishedAddition, loaded, cache };
}

test('deliveries added while a lane loads are in memory when it has loaded', async () => {
  const { loader, lane, addition, loaded } = await openLoader(0);
  loader.load([lane]);
  loader.takePass([addition(1, 2)], []);
  loader.takePass([addition(3, 1)], []);
  assert.ok(loader.isLoading(lane));
  const found = await loaded();
  assert.deepEqual([found?.freshCount, found?.head, found?.readThrough], [3, 3, 3]);
  assert.equal(loader.loading().length, 0);
});

test('an addition for a lane that is not in memory loads the lane', async () => {
  const { loader, addition, loaded } = await openLoader(0);
  loader.takePass([addition(1, 2)], []);
  assert.equal((await loaded())?.freshCount, 2);
});

test('deliveries that the database already counts are added once', async () => {
  // The addition is committed before the lane's state is read.
  const { loader, lane, addition, loaded } = await openLoader(2);
  loader.load([lane]);
  loader.takePass([addition(1, 2)], []);
  const found = await loaded();
  assert.deepEqual([found?.freshCount, found?.head], [2, 2]);
  assert.equal(found?.wantsMore, false);
});

test('deliveries behind a backlog in the database are left there, and are read in order', async () => {
  const { loader, lane, addition, loaded } = await openLoader(5);
  loader.load([lane]);
  loader.takePass([addition(4, 2)], []);
  const found = await loaded();
  assert.deepEqual([found?.freshCount, found?.head, found?.readThrough], [0, 5, 0]);
  assert.equal(found?.wantsMore, true);
});

test('a loading lane keeps an addition that names no owner, because the node may lease it', async () => {
  const { loader, lane, addition, loaded } = await openLoader(0);
  loader.load([lane]);
  loader.takePass([addition(1, 1, null)], []);
  assert.equal((await loaded())?.freshCount, 1);
});

test('additions are dropped when it turns out that the node does not lease the lane', async () => {
  const { loader, lane, addition, loaded } = await openLoader(0, false);
  loader.load([lane]);
  loader.takePass([addition(1, 1)], []);
  assert.equal(await loaded(), undefined);
  assert.equal(loader.loading().length, 0);
});

test('a published event stays cached while a lane loads, until its deliveries are in memory', async () => {
  const { loader, publishedAddition, loaded, cache } = await openLoader(0);
  const loading = publishedAddition(1, 1);
  loader.takePass([loading], loading.events);
  assert.equal(cache.get(1)?.id, '1');
  const found = await loaded();
  assert.equal(found?.freshCount, 1);
  const direct = publishedAddition(2, 1);
  loader.takePass([direct], direct.events);
  assert.equal(found?.freshCount, 2);
  assert.equal(cache.get(2), undefined);
});

test('a published event stays in the cache if a delivery of it has no room in memory', async () => {
  const { loader, addition, publishedAddition, loaded, cache } = await openLoader(0);
  loader.takePass([addition(1, 1)], []);
  const found = await loaded();
  assert.ok(found);
  const many = publishedAddition(2, found.waitingLimit);
  loader.takePass([many], many.events);
  assert.equal(found.freshCount, found.waitingLimit);
  assert.equal(cache.get(1 + found.waitingLimit)?.id, `${1 + found.waitingLimit}`);
});

test('a published event without deliveries on this node leaves the cache', async () => {
  const { loader, publishedAddition, cache } = await openLoader(0);
  const { events } = publishedAddition(1, 1);
  loader.takePass([], events);
  assert.equal(cache.get(1), undefined);
});
