/** What the leader hands over to the lanes of its node. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { textArray } from '../../../src/database/arrays.ts';
import type { Database } from '../../../src/database/database.ts';
import { Leader } from '../../../src/webhooks/fan_out/leader.ts';
import { sliceDeliveriesMin } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';

const kinds = {
  names: textArray(['push']),
  objects: textArray([null]),
  patterns: textArray(['push']),
  appSubscriptions: 'all' as const,
};

/** Creates an account with one subscription, and publishes an event of it. */
async function publishTo(db: Database, lane: number, filterWeight: number): Promise<void> {
  const account = newId();
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret, created_at, filter_weight)
    values (${newId()}, ${lane}, 'user', ${account}, 'http://127.0.0.1/', '{push}', 'timestamp', '', now() - interval '1 hour',
      ${filterWeight})`.execute(db);
  await sql`insert into lanes (id) values (${lane})`.execute(db);
  await sql`insert into lane_progress (lane) values (${lane})`.execute(db);
  await sql`
    with event as (
      insert into events (id, account_id, kind, body) values (${newId()}, ${account}, 'push', '{}') returning day, position
    )
    insert into outbox (day, turn, positions) select day, ${account}::uuid, array[position] from event`.execute(
    db,
  );
}

test('deliveries to lanes without a lease are read again if another pass began before the lanes were marked', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  let begun = 0;
  const passed: number[] = [];
  const grown: number[] = [];
  const leader = new Leader({
    kinds,
    assignTo: () => '7',
    isBehind: () => false,
    owns: () => false,
    onBegin: () => {
      begun += 1;
    },
    onPass: (additions) => passed.push(...additions.map(({ lane }) => lane)),
    onGrown: (lanes) => grown.push(...lanes.map(({ lane }) => lane)),
    onError: (error) => assert.fail(error),
    held: () => sql`select`,
  });
  await publishTo(db, 1, 0);
  // Fanned out in slices, by a pass of its own in the same turn.
  await publishTo(db, 2, sliceDeliveriesMin);
  await db.connection().execute(async (connection) => {
    await leader.begin(connection);
    await leader.turn(connection);
    await leader.end(connection);
  });
  assert.equal(begun, 2);
  assert.deepEqual([passed, grown], [[2], [1]]);
});
