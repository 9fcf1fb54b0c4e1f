/** Which events of many lanes one read loads. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { DeliveryMemory } from '../../../src/webhooks/lanes/delivery_memory.ts';
import { type DueDelivery, loadEvents } from '../../../src/webhooks/lanes/due_deliveries.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const mebibyte = 1_048_576;

const admitAll = () => true;

test('large bodies of some lanes do not keep the small ones of others out of a read', async () => {
  const { account } = await createApp(server);
  const marks = Array.from({ length: 12 }, (_, index) => index);
  await publish(await createPublisher(server), account, marks);
  const { rows: events } = await sql<{ day: string; position: string }>`
    select day::text, position from events where account_id = ${account.id} order by position`.execute(db);
  assert.equal(events.length, 12);
  const of = (lane: number, index: number, sequence: number, bytes: number): DueDelivery => {
    const { day, position } = events[index] as { day: string; position: string };
    const allowed = { isAllowed: true, isSuspended: false, retry: null };
    return { lane, sequence, day, event: Number(position), bytes, ...allowed };
  };
  const large = [1, 2].flatMap((lane) =>
    [1, 2, 3, 4, 5].map((sequence) => of(lane, 5 * lane + sequence - 6, sequence, 4 * mebibyte)),
  );
  const small = [of(3, 10, 1, 1_000), of(3, 11, 2, 1_000)];
  const memory = { cache: new EventCache(), waiting: new DeliveryMemory() };
  const loaded = await loadEvents(db, memory, [1, 2, 3], [...large, ...small], admitAll, () => assert.fail());
  const sequencesOf = (lane: number) =>
    [...loaded.keys()].filter((each) => each.lane === lane).map(({ sequence }) => sequence);
  // Sixteen MiB less the small ones.
  assert.deepEqual(sequencesOf(1), [1, 2]);
  assert.deepEqual(sequencesOf(2), [1]);
  assert.deepEqual(sequencesOf(3), [1, 2]);
});

test('an event whose row is damaged keeps no other from being read', async () => {
  const { account } = await createApp(server);
  const marks = Array.from({ length: 9 }, (_, index) => index);
  await publish(await createPublisher(server), account, marks);
  const { rows: events } = await sql<{ day: string; position: string }>`
    select day::text, position from events where account_id = ${account.id} order by position`.execute(db);
  const deliveries = events.map(
    ({ day, position }, lane): DueDelivery => ({
      ...{ lane, sequence: 1, day, event: Number(position), bytes: 1_000 },
      ...{ isAllowed: true, isSuspended: false, retry: null },
    }),
  );
  const damaged = 4;
  await sql`update events set created_at = 'infinity' where position = ${events[damaged]?.position}`.execute(
    db,
  );
  const memory = { cache: new EventCache(), waiting: new DeliveryMemory() };
  const unreadable: number[] = [];
  const loaded = await loadEvents(db, memory, marks, deliveries, admitAll, (lane) => unreadable.push(lane));
  assert.deepEqual(unreadable, [damaged]);
  assert.deepEqual([...loaded.keys()], deliveries.toSpliced(damaged, 1));
});

test('a read that waits for a lock fails as a whole', async () => {
  const { account } = await createApp(server);
  await publish(await createPublisher(server), account, [0, 1]);
  const { rows: events } = await sql<{ day: string; position: string }>`
    select day::text, position from events where account_id = ${account.id}`.execute(db);
  const deliveries = events.map(
    ({ day, position }, lane): DueDelivery => ({
      ...{ lane, sequence: 1, day, event: Number(position), bytes: 1_000 },
      ...{ isAllowed: true, isSuspended: false, retry: null },
    }),
  );
  const memory = { cache: new EventCache(), waiting: new DeliveryMemory() };
  await db.transaction().execute(async (tx) => {
    await sql`lock table events in access exclusive mode`.execute(tx);
    await db.connection().execute(async (other) => {
      await sql`set lock_timeout = 50`.execute(other);
      const read = loadEvents(other, memory, [0, 1], deliveries, admitAll, () => assert.fail());
      await assert.rejects(read, { code: '55P03' });
      await sql`reset lock_timeout`.execute(other);
    });
  });
});
