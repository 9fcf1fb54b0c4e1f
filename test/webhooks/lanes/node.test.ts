/** A node's view of the database's clock: it tells a step of the clock from a slow statement. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';
import { followClock } from '../../../src/webhooks/lanes/clock_steps.ts';
import { Node } from '../../../src/webhooks/lanes/node.ts';
import { atEnd } from '../../support/database/embedded_process.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { until } from '../../support/webhooks/apps.ts';

/** Connections for the nodes of one test, which has no server: only these nodes send heartbeats. */
const connectionsMax = 8;

/** A node that the test lets send heartbeats. */
async function openNode(t: TestContext, db: Database) {
  const seen = { back: 0, followed: 0 };
  const node = new Node(db, {
    name: null,
    onError: (error) => assert.fail(error),
    onLost() {},
    onClockBack: () => {
      seen.back += 1;
    },
    onClockFollowed: () => {
      seen.followed += 1;
    },
    onEpoch() {},
  });
  await node.join();
  atEnd(t, () => node.leave());
  return { node, seen };
}

/** Makes the database's clock appear to have gone back. */
const goBack = (db: Database, seconds: number) =>
  sql`update database_clock set latest = clock_timestamp() + make_interval(secs => ${seconds})`.execute(db);

const readClock = async (db: Database) => {
  const { rows } = await sql<{ steps: string; seconds: number }>`
    select steps, extract(epoch from latest - clock_timestamp())::float8 as seconds from database_clock`.execute(
    db,
  );
  return rows[0] as { steps: string; seconds: number };
};

test('a node reports that the database’s clock went back until a node has followed it', async (t) => {
  const { db } = await openTestDatabase(t, connectionsMax);
  const [one, other] = [await openNode(t, db), await openNode(t, db)];
  await goBack(db, 60);
  await one.node.heartbeat();
  await one.node.heartbeat();
  await other.node.heartbeat();
  assert.deepEqual(
    [one.seen, other.seen],
    [
      { back: 2, followed: 0 },
      { back: 1, followed: 0 },
    ],
  );
  await followClock(db);
  for (const { node } of [one, other, one]) await node.heartbeat();
  assert.deepEqual(
    [one.seen, other.seen],
    [
      { back: 2, followed: 1 },
      { back: 1, followed: 1 },
    ],
  );
});

test('a node that starts after the database’s clock went back while no node was running reports it', async (t) => {
  const { db } = await openTestDatabase(t, connectionsMax);
  await goBack(db, 60);
  const { seen } = await openNode(t, db);
  assert.deepEqual(seen, { back: 1, followed: 0 });
});

test('a node reports no step of less than five seconds, and none forward', async (t) => {
  const { db } = await openTestDatabase(t, connectionsMax);
  const { node, seen } = await openNode(t, db);
  await goBack(db, 4);
  await node.heartbeat();
  await goBack(db, -60);
  await node.heartbeat();
  assert.deepEqual(seen, { back: 0, followed: 0 });
  // The heartbeat stored the new time.
  assert.ok((await readClock(db)).seconds > -50);
});

test('a node reports no step after a heartbeat that waited while another node stored a later time', async (t) => {
  const { db } = await openTestDatabase(t, connectionsMax);
  const [slow, fast] = [await openNode(t, db), await openNode(t, db)];
  const waiting: Promise<void>[] = [];
  await db.transaction().execute(async (tx) => {
    await sql`select from nodes where id = ${slow.node.id} for update`.execute(tx);
    waiting.push(slow.node.heartbeat());
    await until(
      async () =>
        (await sql`select from pg_locks where not granted and pid <> pg_backend_pid()`.execute(db)).rows
          .length,
      (count) => count > 0,
    );
    // The slow heartbeat began long ago, from the view of the one that stores its time now.
    await sql`update database_clock set latest = clock_timestamp() - interval '1 minute'`.execute(tx);
    await fast.node.heartbeat();
  });
  await Promise.all(waiting);
  await slow.node.heartbeat();
  assert.deepEqual(slow.seen, { back: 0, followed: 0 });
  assert.deepEqual(fast.seen, { back: 0, followed: 0 });
});

test('a heartbeat does not wait for a node that is paused while it follows the clock', async (t) => {
  const { db } = await openTestDatabase(t, connectionsMax);
  const { node, seen } = await openNode(t, db);
  await db.transaction().execute(async (tx) => {
    await sql`select from database_clock for update`.execute(tx);
    await node.heartbeat();
    await followClock(db);
  });
  assert.deepEqual(seen, { back: 0, followed: 0 });
});
