/** Retries whose outcomes are written late. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type KyselyPlugin, sql } from 'kysely';
import { bigintArray } from '../../../src/database/arrays.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { BackgroundTasks } from '../../../src/webhooks/lanes/background_tasks.ts';
import { DeliveryReader } from '../../../src/webhooks/lanes/delivery_reader.ts';
import { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { Recorder } from '../../../src/webhooks/lanes/recorder.ts';
import { Retries } from '../../../src/webhooks/lanes/retries.ts';
import type { Subscription } from '../../../src/webhooks/subscriptions/subscription.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { add, deliveryOf, laneState } from '../../support/webhooks/memory_lane.ts';
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

/** @param plugins of the database */
async function openRetries(t: TestContext, ...plugins: KyselyPlugin[]) {
  const { db } = await openTestDatabase(t, 2);
  const [lanes, cache] = [new LeasedLanes(), new EventCache()];
  const onError = (error: Error) => assert.fail(error);
  const background = new BackgroundTasks(onError);
  const node = '1';
  const recorder = new Recorder({ db, node, onLost() {}, onWritten() {}, onError });
  const shared = {
    db: plugins.reduce((each, plugin) => each.withPlugin(plugin), db),
    node,
    cache,
    lanes,
    background,
    kinds: kindArrays(createCatalogue([])),
    recorder,
    isStopping: () => false,
    onReload() {},
    onRead() {},
    onError,
  };
  const retries = new Retries(shared);
  const reader = new DeliveryReader({ ...shared, retries });
  const addLane = (id: number, accountId: string, fields: Partial<Subscription> = {}): Lane => {
    const state = laneState(accountId, { lane: id, ...fields, loaded: { retryMs: 0 } });
    const lane = new Lane(state, 0, lanes.tenantOf(state.subscription, null));
    lanes.add(lane);
    lanes.reschedule(lane);
    return lane;
  };
  return { lanes, recorder, retries, reader, background, addLane };
}

test('one account’s thousands of lanes with due retries do not keep another’s from being read', async (t) => {
  const { lanes, retries, background, addLane } = await openRetries(t);
  const crowd = Array.from({ length: 2_000 }, (_, index) => addLane(index + 1, 'crowd'));
  const other = addLane(3_000, 'other');
  const read = new Set<Lane>();
  const startedAt = performance.now();
  for (let count = 0; count < 5; count += 1) {
    const now = startedAt + 100 * (count + 1);
    // All of them are due again.
    for (const lane of crowd) lane.retryAt = 0;
    for (const lane of crowd) lanes.reschedule(lane);
    retries.read(now);
    for (const lane of [other, ...crowd]) if (lane.isReadingRetries) read.add(lane);
    if (count === 0) assert.ok(other.isReadingRetries, 'the other account is in the first read');
    await background.settled();
  }
  assert.equal(read.size, 2_001, 'each lane has its turn');
});

test('attack: lanes whose retries are in memory and cannot start are not read again', async (t) => {
  const { lanes, retries, background, addLane } = await openRetries(t);
  const crowd = Array.from({ length: 499 }, (_, index) => addLane(index + 1, 'crowd'));
  const other = addLane(3_000, 'other');
  const startedAt = performance.now();
  const read = async (count: number) => {
    for (const lane of [...crowd, other]) lane.retryAt = 0;
    for (const lane of [...crowd, other]) lanes.reschedule(lane);
    retries.read(startedAt + 100 * count);
    const found = [...crowd, other].filter((lane) => lane.isReadingRetries);
    await background.settled();
    return found;
  };
  assert.equal((await read(1)).length, 500);
  // As many as the read could find for each of them. The host of the crowd hangs.
  const retry = { state: 'pending', attempts: 1, isManual: false } as const;
  for (const lane of crowd)
    for (const sequence of [1, 2]) lane.addRetry(deliveryOf(sequence, 'crowd', retry));
  const idsOf = (found: Lane[]) => found.map(({ id }) => id);
  assert.deepEqual(idsOf(await read(2)), [3_000]);
  for (const lane of crowd.slice(0, 3)) for (const sequence of [1, 2]) lane.endRetry(sequence);
  assert.deepEqual(idsOf(await read(3)), [1, 2, 3, 3_000]);
});

test('ordered lanes that fill the memory get the retries that they wait for', async (t) => {
  const { lanes, retries, background, addLane } = await openRetries(t);
  const waiting = Array.from({ length: 20 }, (_, index) => addLane(index + 1, 'account', { ordered: true }));
  // More than a lane may have while there is ample. Then the first of each fails.
  for (const lane of waiting) {
    for (let sequence = 1; sequence <= 600; sequence += 1) add(lane, sequence, 'account');
    lane.retriesPending = 1;
  }
  assert.ok(waiting.every((lane) => lane.waitsForRetry && !lanes.hasSpace(lane)));
  for (const lane of waiting) {
    lane.retryAt = 0;
    lanes.reschedule(lane);
  }
  retries.read(performance.now() + 100);
  assert.equal(waiting.filter((lane) => lane.isReadingRetries).length, 20);
  await background.settled();
});

test('a lane that was read beside many others is read as one again when it is alone', async (t) => {
  const { lanes, retries, background, addLane } = await openRetries(t);
  const lane = addLane(1, 'account');
  for (let id = 2; id <= 500; id += 1) addLane(id, 'account');
  const now = performance.now() + 100;
  retries.read(now);
  assert.ok(lane.isReadingRetries);
  await background.settled();
  const retry = { state: 'pending', attempts: 1, isManual: false } as const;
  for (let sequence = 1; sequence <= 20; sequence += 1) lane.addRetry(deliveryOf(sequence, 'account', retry));
  const isRead = async (at: number) => {
    lane.retryAt = 0;
    lanes.reschedule(lane);
    retries.read(at);
    const { isReadingRetries } = lane;
    await background.settled();
    return isReadingRetries;
  };
  assert.deepEqual([await isRead(now + 500), await isRead(now + 2_000)], [false, true]);
});

test('a tick looks at no lane whose retry is not due yet', async (t) => {
  const { lanes, retries, background, addLane } = await openRetries(t);
  let looks = 0;
  const now = performance.now();
  for (let id = 1; id <= 2_000; id += 1) {
    const lane = addLane(id, 'account');
    lane.retryAt = id === 7 ? now : now + 3_600_000;
    lanes.reschedule(lane);
    let { retryAt } = lane;
    Object.defineProperty(lane, 'retryAt', {
      get() {
        looks += 1;
        return retryAt;
      },
      set(value: number) {
        retryAt = value;
      },
    });
  }
  retries.read(now + 100);
  assert.ok(lanes.get(7)?.isReadingRetries);
  await background.settled();
  assert.ok(looks < 10, `${looks} looks`);
});

/** @returns a plugin, and the statements that it has seen */
function recordStatements(): [KyselyPlugin, string[]] {
  const statements: string[] = [];
  const plugin: KyselyPlugin = {
    transformQuery: ({ node }) => {
      statements.push(JSON.stringify(node));
      return node;
    },
    transformResult: async ({ result }) => result,
  };
  return [plugin, statements];
}

test('a read of due retries, which all lanes share, counts nothing of a lane that may have millions', async (t) => {
  const [plugin, statements] = recordStatements();
  const { retries, background, addLane } = await openRetries(t, plugin);
  addLane(1, 'account');
  retries.read(performance.now() + 100);
  await background.settled();
  assert.equal(statements.length, 2);
  assert.ok(statements.every((text) => !text.includes('count(')));
});

test('a tenant whose memory is full does not shorten the reads of others', async (t) => {
  const [plugin, statements] = recordStatements();
  const { retries, background, addLane } = await openRetries(t, plugin);
  addLane(1, 'crowd').tenant.waiting = 40_000;
  addLane(2, 'other');
  retries.read(performance.now() + 100);
  await background.settled();
  // The most that the read may return of each.
  const limits = JSON.stringify(bigintArray([1, 512]));
  assert.ok(statements.some((text) => text.includes(limits)));
});

test('thousands of outcomes without an attempt, such as cancellations, hold up reads of their tenant, and no attempts', async (t) => {
  const { lanes, recorder, retries, reader, background, addLane } = await openRetries(t);
  const [lane, other] = [addLane(1, 'account'), addLane(2, 'other')];
  const startedAt = performance.now();
  const read = (afterMs: number) => {
    retries.read(startedAt + afterMs);
    lanes.readable.requeueAll();
    reader.readMore();
    return [lane, other].map(({ isReading, isReadingRetries }) => [isReading, isReadingRetries]);
  };
  for (let sequence = 1; sequence <= 12_000; sequence += 1) {
    recorder.add(lane, {
      lane: 1,
      sequence,
      day: '2026-01-01',
      attempt: null,
      retry: { state: 'cancelled', attempts: 0, dueMs: null },
      hadRetry: false,
      wasManual: false,
    });
  }
  assert.equal(recorder.isFull, false);
  assert.deepEqual(read(100), [
    [false, false],
    [true, true],
  ]);
  // One read follows the other.
  while (other.isReading || other.isReadingRetries) await background.settled();
  await recorder.flush();
  const [isReading, isReadingRetries] = read(10_000)[0] as boolean[];
  // If outcomes were written before the read of the other lane ended, this lane has been read already.
  assert.ok(isReading || lane.readThrough === lane.head);
  assert.ok(isReadingRetries);
  while (lane.isReading || lane.isReadingRetries) await background.settled();
});
