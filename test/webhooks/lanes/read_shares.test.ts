/** What is read for whom, when some have thousands of lanes that cannot start anything. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { findDisabledAccounts } from '../../../src/webhooks/lanes/lane_store.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { readShares } from '../../../src/webhooks/lanes/read_shares.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { createTestAccount } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createLane, deliveryOf, eventOf } from '../../support/webhooks/memory_lane.ts';

function lanesOf(tenant: Tenant, apps: Record<string, number>): Pick<Lane, 'tenant' | 'app'>[] {
  return Object.entries(apps).flatMap(([clientId, count]) =>
    Array.from({ length: count }, () => ({ tenant, app: tenant.appOf(clientId) })),
  );
}

test('attack: an account with hundreds of lanes leaves half of a read to another account', () => {
  const memory = new DeliveryMemory();
  const crowd = lanesOf(new Tenant('crowd', memory), { app: 499 });
  const other = lanesOf(new Tenant('other', memory), { app: 1 });
  const shares = readShares([...crowd, ...other], 2_000, 1);
  assert.equal(shares.at(-1), 1_000);
  assert.deepEqual([...new Set(shares.slice(0, -1))], [2]);
  assert.equal(readShares([...crowd, ...other], 2_000, 4)[0], 4, 'each lane has the least');
});

test('apps of an account have equal parts of a read, and lanes of an app', () => {
  const user = new Tenant('user', new DeliveryMemory());
  const shares = readShares(lanesOf(user, { large: 100, small: 2 }), 2_000, 1);
  assert.deepEqual([shares[0], shares.at(-1)], [10, 500]);
});

test('an ordered lane reads nothing new while it waits for a retry that is not in memory', () => {
  const waiting = createLane('account', { ordered: true, loaded: { retriesPending: 1 } });
  assert.equal(waiting.wantsMore, false);
  waiting.addRetry(deliveryOf(1, 'account', { state: 'pending', attempts: 1, isManual: false }));
  assert.equal(waiting.wantsMore, true);
  assert.equal(createLane('account', { ordered: true }).wantsMore, true);
  assert.equal(createLane('account', { loaded: { retriesPending: 1 } }).wantsMore, true);
});

test('attack: what others have in memory and cannot send leaves room for the deliveries of another', () => {
  const lanes = new LeasedLanes(defaultQuotas);
  let position = 0;
  const fill = (account: string, deliveries: number) => {
    const tenant = lanes.tenantOf({ accountId: account, clientId: null }, null);
    const app = tenant.appOf(null);
    for (let count = 0; count < deliveries; count += 1) app.add(position++, eventOf(account));
    return { tenant, app, waitingCount: 100, inFlight: 0 } as Lane;
  };
  const hostile = [fill('one', 6_000), fill('two', 6_000)];
  const other = fill('other', 100);
  assert.deepEqual([lanes.hasSpace(other), lanes.readMax(other)], [true, Number.POSITIVE_INFINITY]);
  for (const lane of hostile) assert.deepEqual([lanes.hasSpace(lane), lanes.readMax(lane)], [false, 16]);
});

test('a disabled account is found although the notification was lost', async (t) => {
  const server = await startTestServer(t);
  const { db } = server;
  const [first, second] = [await createTestAccount(server), await createTestAccount(server)];
  const accounts = new Set([first.id, second.id]);
  assert.deepEqual(await findDisabledAccounts(db, accounts), new Set());
  await sql`update accounts set disabled_at = now() where id = ${first.id}`.execute(db);
  assert.deepEqual(await findDisabledAccounts(db, accounts), new Set([first.id]));
});
