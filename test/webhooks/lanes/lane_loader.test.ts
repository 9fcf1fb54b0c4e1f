/** The lane loader: deliveries that fan-out adds while a lane is loading. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { markDue } from '../../../src/webhooks/fan_out/mark_due.ts';
import { packEvents } from '../../../src/webhooks/fan_out/published_batch.ts';
import { BackgroundTasks } from '../../../src/webhooks/lanes/background_tasks.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { LaneHolds } from '../../../src/webhooks/lanes/lane_holds.ts';
import { LaneLoader } from '../../../src/webhooks/lanes/lane_loader.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { addNode } from '../../support/database/other_node.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, createSubscribingClient, subscribe } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const day = '2026-01-01';
let nodes = 1_000;

/**
 * Creates a lane, leased to a node of this test by default, and that node's loader.
 * @param head the head of the lane in the database
 */
async function openLoader(head: number, isLeased = true, onChange = () => {}) {
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
    onChange,
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
    return { lane, owner, tenant: null, first, day, events };
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
    return { lane, owner: node, tenant: null, first, day, events };
  };
  return { loader, lane, lanes, node, addition, publishedAddition, loaded, cache };
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

test('attack: a lane does not wait for a thousand of another tenant that have new deliveries', async () => {
  const leftAtChanges: number[] = [];
  let isWatching = false;
  const { loader, lane, lanes, node, addition, loaded } = await openLoader(0, true, () => {
    if (isWatching && lanes.get(lane) !== undefined) leftAtChanges.push(loader.newCount);
  });
  const others = Array.from({ length: 1_000 }, (_, index) => ({
    ...addition(1, 1),
    lane: 1_000_000 + index,
    tenant: 'other',
  }));
  isWatching = true;
  loader.takePass([...others, { ...addition(1, 1), tenant: 'own' }], []);
  assert.equal((await loaded())?.freshCount, 1);
  // It was in the first statement, of a hundred lanes.
  assert.ok((leftAtChanges[0] ?? 0) >= 800, `${leftAtChanges}`);
  // The same for lanes of which the deliveries are read.
  lanes.remove(lanes.get(lane) as Lane);
  leftAtChanges.length = 0;
  loader.loadGrown([...others, { lane, owner: node, tenant: 'own' }]);
  assert.ok(await loaded());
  assert.ok((leftAtChanges[0] ?? 0) >= 800, `${leftAtChanges}`);
});

test('attack: lanes above the share of a tenant are due later, and another tenant’s are loaded', async () => {
  const { loader, lane, lanes, node, addition, loaded } = await openLoader(0);
  const others = Array.from({ length: 10_000 }, (_, index) => 1_000_000 + index);
  const tenants = new Map(others.map((id) => [id, 'other']));
  void loader.load(others, tenants);
  // Some are being loaded by now, and do not wait.
  void loader.load(others, tenants);
  assert.ok(loader.newCount >= 8_750 && loader.newCount < 9_500, `${loader.newCount}`);
  assert.equal(loader.isLoading(1_009_999), false);
  loader.takePass([{ ...addition(1, 1), tenant: 'other' }], []);
  assert.equal(loader.isLoading(lane), false);
  // The next pass still reads that this node leases it.
  loader.takePass([addition(2, 1)], []);
  assert.equal(loader.isLoading(lane), false);
  await loaded();
  assert.deepEqual(await progressOf(lane), { owner: null, isDue: true });
  assert.equal(lanes.get(lane), undefined);
  await sql`update lane_progress set owner = ${node}::bigint, due_at = null where lane = ${lane}`.execute(db);
  loader.takePass([{ ...addition(1, 1), tenant: 'own' }], []);
  assert.equal((await loaded())?.freshCount, 1);
});

test('attack: a lane of a tenant that may lease no more is due later without being loaded', async () => {
  let changes = 0;
  const { loader, lane, lanes, node, addition, loaded } = await openLoader(0, true, () => {
    changes += 1;
  });
  loader.takePass([addition(1, 1)], []);
  const held = await loaded();
  assert.ok(held);
  const { tenant } = held;
  tenant.lanes = 1 + lanes.quotas.lanesPerAccount;
  lanes.remove(held);
  changes = 0;
  loader.loadGrown([{ lane, owner: node, tenant: tenant.key }]);
  assert.equal(loader.newCount, 0);
  await loaded();
  assert.deepEqual([await progressOf(lane), changes], [{ owner: null, isDue: true }, 0]);
});

async function progressOf(lane: number) {
  const { rows } = await sql<{ owner: string | null; isDue: boolean }>`
    select owner, due_at is not null as "isDue" from lane_progress where lane = ${lane}`.execute(db);
  return rows[0] as { owner: string | null; isDue: boolean };
}

test('lanes that nobody leased come with the names of their tenants', async () => {
  const { lane, node } = await openLoader(0, false);
  const client = await createSubscribingClient(server);
  const { id } = await subscribe(client, { url: 'https://hooks.example/' });
  const { rows } = await sql<{ account_id: string | null; client_id: string; lane: string }>`
    select account_id, client_id, lane from subscriptions where id = ${id} or lane = ${lane} order by account_id nulls last`.execute(
    db,
  );
  const [user, app] = rows;
  assert.ok(user?.account_id && app?.account_id === null);
  const names = [user.account_id, `client:${app.client_id}`];
  const grown = [lane, Number(app.lane)].map((each) => ({ lane: each, owner: null, tenant: null }));
  assert.deepEqual(await markDue(db, grown, null), []);
  assert.deepEqual(
    grown.map(({ tenant }) => tenant),
    names,
  );
  await markDue(db, grown, node);
  assert.deepEqual(
    grown.map(({ owner, tenant }) => [owner, tenant]),
    names.map((name) => [node, name]),
  );
  // The same tenants, for claims by turns. A database of an earlier version has none until then.
  const tenants = sql<{ lane: string; tenant: string | null }>`
    select lane, tenant from lane_progress where lane in (${lane}, ${app.lane}) order by lane = ${lane} desc`;
  const first = (await tenants.execute(db)).rows.map(({ tenant }) => tenant);
  assert.equal(first[0], user.account_id);
  assert.match(String(first[1]), /^[0-9a-f-]{36}$/);
  await sql`update lane_progress set owner = null, tenant = null where lane in (${lane}, ${app.lane})`.execute(
    db,
  );
  await markDue(db, grown, node);
  assert.deepEqual(
    (await tenants.execute(db)).rows.map(({ tenant }) => tenant),
    first,
  );
});
