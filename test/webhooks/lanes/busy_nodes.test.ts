/** Delivery holds of nodes that are busy, and acknowledge late. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { withDeliveryHold } from '../../../src/grants/delivery_hold.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';

test('a withdrawal waits for a busy node without another hold, as long as that has heartbeats', async (t) => {
  const { db } = await openTestDatabase(t, 4);
  const aliveUntil = sql`now() + interval '45 seconds'`;
  await sql`
    insert into nodes (id, host, process, alive_until, heartbeats, generation)
    values (7, 'elsewhere', '1 1', ${aliveUntil}, 5, 2)`.execute(db);
  const holds = new Set<string>();
  const beat = async () => {
    const { rows } = await sql<{ id: string }>`
      with beat as (update nodes set alive_until = ${aliveUntil}, heartbeats = heartbeats + 1)
      select id from delivery_holds`.execute(db);
    for (const { id } of rows) holds.add(id);
  };
  const subject = { clientId: null, accountId: newId(), lane: null };
  const done = withDeliveryHold(db, subject, async () => {});
  // Longer than the first try waits for a node without heartbeats.
  for (let beats = 0; beats < 10; beats += 1) {
    await beat();
    await sleep(50);
  }
  await sql`
    insert into delivery_hold_acknowledgements (hold, node) select id, 7 from delivery_holds`.execute(db);
  await done;
  assert.equal(holds.size, 1);
});
