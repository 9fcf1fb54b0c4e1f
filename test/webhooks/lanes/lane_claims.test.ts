/** Which due lanes a node claims. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { claimByTurns, claimLanes } from '../../../src/webhooks/lanes/lane_claims.ts';
import { createDatabase } from '../../support/database/database.ts';

const node = '7';
const first = '00000000-0000-0000-0000-000000000000';
/** In the order of their ids. */
const [a, b, c] = [newId(), newId(), newId()].sort() as [string, string, string];

async function openEmpty(t: TestContext): Promise<Database> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return db;
}

/** Adds a lane of an account that has been due for so many seconds. */
async function addDue(db: Database, lane: number, account: string, seconds: number): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, 'user', ${account}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(
    db,
  );
  await sql`insert into lanes (id) values (${lane})`.execute(db);
  await sql`
    insert into lane_progress (lane, due_at, tenant)
    values (${lane}, now() - make_interval(secs => ${seconds}), ${account})`.execute(db);
}

async function claimTurns(db: Database, after: string, tenants: number, limit: number) {
  const { claimed, last } = await claimByTurns(db, node, after, tenants, limit);
  return { claimed: [...claimed].sort(), last };
}

test('a node claims the lanes that have been due longest, with their tenants', async (t) => {
  const db = await openEmpty(t);
  await addDue(db, 1, a, 2);
  await addDue(db, 2, b, 1);
  await addDue(db, 3, c, 3);
  await addDue(db, 4, a, -60);
  const claimed = await claimLanes(db, node, 2);
  assert.deepEqual([...claimed].sort(), [
    [1, a],
    [3, c],
  ]);
  assert.deepEqual([...(await claimLanes(db, node, 2))], [[2, b]]);
  assert.deepEqual([...(await claimLanes(db, node, 2))], []);
});

test('attack: a claim by turns takes no more lanes of a tenant with many than of others', async (t) => {
  const db = await openEmpty(t);
  for (let lane = 1; lane <= 20; lane += 1) await addDue(db, lane, a, 100 - lane);
  await addDue(db, 21, b, 1);
  await addDue(db, 22, b, -60);
  await addDue(db, 23, c, 1);
  assert.deepEqual(await claimTurns(db, first, 2, 2), {
    claimed: [
      [1, a],
      [2, a],
      [21, b],
    ],
    last: b,
  });
  assert.deepEqual(await claimTurns(db, b, 2, 2), { claimed: [[23, c]], last: null });
  assert.deepEqual(await claimTurns(db, a, 2, 2), { claimed: [], last: null });
  assert.deepEqual(await claimTurns(db, first, 1, 1), { claimed: [[3, a]], last: a });
});

test('tenants whose lanes are due later take no turns of those with due ones', async (t) => {
  const db = await openEmpty(t);
  await addDue(db, 1, a, -60);
  await addDue(db, 2, b, -60);
  await addDue(db, 3, c, 1);
  assert.deepEqual(await claimTurns(db, first, 1, 2), { claimed: [[3, c]], last: c });
});

test('lanes that are not due, are leased, or have no known tenant are not in turns', async (t) => {
  const db = await openEmpty(t);
  for (const [lane, account] of [a, b, c].entries()) await addDue(db, lane, account, 1);
  await sql`update lane_progress set due_at = null where lane = 0`.execute(db);
  await sql`update lane_progress set owner = 8 where lane = 1`.execute(db);
  await sql`update lane_progress set tenant = null where lane = 2`.execute(db);
  assert.deepEqual(await claimTurns(db, first, 2, 2), { claimed: [], last: null });
});
