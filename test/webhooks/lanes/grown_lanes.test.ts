/** Lanes that another node adds deliveries to: only those are read that have grown. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { findGrownLanes } from '../../../src/webhooks/lanes/lane_store.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, subscribe } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

test('of the leased lanes, only those are returned whose head the node does not know', async () => {
  const app = await createApp(server);
  for (let made = 0; made < 3; made += 1) await subscribe(app, { url: 'https://hooks.example/' });
  const { rows } = await sql<{ id: string }>`
    update lanes set next_sequence = 11
    where id in (select lane from subscriptions where account_id = ${app.account.id}) returning id`.execute(
    db,
  );
  const ids = rows.map(({ id }) => Number(id));
  const heads = [10, 9, 10];
  const grown = await findGrownLanes(
    db,
    ids.map((id, index) => ({ id, head: heads[index] as number })),
  );
  assert.deepEqual([...grown], [[ids[1], 10]]);
});
