/** Which due lanes a node claims first. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { claimLanes } from '../../../src/webhooks/lanes/lane_claims.ts';
import { createDatabase } from '../../support/database/database.ts';

const node = '7';
const account = newId();

async function openEmpty(t: TestContext): Promise<Database> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return db;
}

/** Adds a lane that has been due for so many seconds. */
async function addDue(db: Database, lane: number, seconds: number): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, 'user', ${account}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(
    db,
  );
  await sql`insert into lanes (id) values (${lane})`.execute(db);
  await sql`
    insert into lane_progress (lane, due_at) values (${lane}, now() - make_interval(secs => ${seconds}))`.execute(
    db,
  );
}

test('of more lanes than a node claims at once, the newest do not wait for the oldest', async (t) => {
  const db = await openEmpty(t);
  for (let seconds = 1; seconds <= 8; seconds += 1) await addDue(db, 100 + seconds, seconds);
  await addDue(db, 200, -60);
  const claim = async (limit: number) => [...(await claimLanes(db, node, limit)).keys()].sort();
  assert.deepEqual(await claim(4), [101, 102, 107, 108]);
  // Nothing is claimed twice if fewer are due.
  assert.deepEqual(await claim(6), [103, 104, 105, 106]);
  assert.deepEqual(await claim(6), []);
});

test('claimed lanes come with the names of their tenants', async (t) => {
  const db = await openEmpty(t);
  await addDue(db, 1, 1);
  assert.deepEqual([...(await claimLanes(db, node, 2))], [[1, account]]);
});
