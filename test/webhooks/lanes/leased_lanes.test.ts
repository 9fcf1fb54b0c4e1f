/** How many lanes each tenant may lease. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import type { EventContent } from '../../../src/webhooks/sending/delivery_request.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';

test('tenants that lease all they may, one after the other, leave room for the first lane of others', () => {
  const lanes = new LeasedLanes({ ...defaultQuotas, lanes: 800 });
  let count = 0;
  const lease = (account: string, most: number): number => {
    const tenant = lanes.tenantOf({ accountId: account, clientId: null }, null);
    let leased = 0;
    for (; leased < most && lanes.mayHold(tenant); leased += 1) {
      count += 1;
      lanes.add({ id: count, tenant, app: tenant.appOf(null) } as Lane);
    }
    return leased;
  };
  assert.equal(lease('alone', 1_000), 350);
  for (let tenant = 0; tenant < 50; tenant += 1) assert.ok(lease(`hanging ${tenant}`, 1_000) > 0);
  assert.equal(lease('other', 1_000), 1);
});

test('tenants that fill the memory of bodies, one after the other, leave room for the first of others', () => {
  const lanes = new LeasedLanes(defaultQuotas);
  const body = Buffer.alloc(262_144);
  let position = 0;
  const fill = (account: string): number => {
    const tenant = lanes.tenantOf({ accountId: account, clientId: null }, null);
    const app = tenant.appOf(null);
    const lane = { tenant, app, waitingCount: 0, inFlight: 0 } as Lane;
    let kept = 0;
    for (; lanes.hasSpace(lane) && kept < 1_000; kept += 1) {
      position += 1;
      app.add(position, { body } as EventContent);
    }
    return kept;
  };
  assert.ok(fill('alone') >= 64);
  for (let tenant = 0; tenant < 20; tenant += 1) assert.ok(fill(`hanging ${tenant}`) > 0);
  assert.ok(fill('other') > 0);
});

test('an app that fills the memory of its user leaves room for other apps of the user', () => {
  const lanes = new LeasedLanes(defaultQuotas);
  const tenant = lanes.tenantOf({ accountId: 'user', clientId: null }, null);
  const body = Buffer.alloc(262_144);
  let position = 0;
  const fill = (clientId: string): number => {
    const app = tenant.appOf(clientId);
    let kept = 0;
    for (; lanes.hasSpace({ tenant, app, waitingCount: 0, inFlight: 0 } as Lane) && kept < 1_000; kept += 1) {
      position += 1;
      app.add(position, { body } as EventContent);
    }
    return kept;
  };
  assert.ok(fill('hanging') >= 64);
  assert.equal(lanes.mayRead(tenant), true);
  assert.equal(lanes.mayReadFor(tenant.appOf('hanging')), false);
  for (let app = 0; app < 8; app += 1) assert.ok(fill(`other ${app}`) > 0);
});

test('a body that apps of a user share counts once for the user, and for each of them', () => {
  const tenant = new LeasedLanes(defaultQuotas).tenantOf({ accountId: 'user', clientId: null }, null);
  const [one, other] = [tenant.appOf('one'), tenant.appOf('other')];
  const event = { body: Buffer.alloc(1_000) } as EventContent;
  one.add(1, event);
  one.add(1, event);
  other.add(1, event);
  assert.deepEqual([one.bytes, other.bytes, tenant.bytes, tenant.memory.bytes], [1_000, 1_000, 1_000, 1_000]);
  assert.equal(tenant.waiting, 3);
  one.drop(1);
  one.begin();
  one.end(1);
  assert.deepEqual([one.bytes, other.bytes, tenant.bytes, tenant.memory.bytes], [0, 1_000, 1_000, 1_000]);
  other.drop(1);
  assert.deepEqual([tenant.bytes, tenant.memory.bytes, tenant.waiting], [0, 0, 0]);
});
