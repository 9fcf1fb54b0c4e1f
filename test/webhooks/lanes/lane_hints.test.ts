/** Hints about lanes: this server's own are heeded and count as true, and a batch costs little, whoever sent it. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import { LaneHints } from '../../../src/webhooks/lanes/lane_hints.ts';
import type { LaneLeases } from '../../../src/webhooks/lanes/lane_leases.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

async function falseHints(): Promise<string[]> {
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  return metrics.split('\n').filter((line) => /^nuncio_false_hints_total\{.*\} [1-9]/.test(line));
}

test('a changed subscription is announced by a hint that is heeded and counts as true', async (t) => {
  let status = 503;
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(status).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [86_400] });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  await publish(await createPublisher(server), app.account, ['failing']);
  await subscriber.waitFor(1);
  const retries = () => sql`select from retries where lane = ${lane}`.execute(db);
  await until(retries, ({ rows }) => rows.length === 1);
  status = 204;
  // Only a hint makes the node read the lane, and find that the retry is due.
  await sql`update retries set due_at = now() where lane = ${lane}`.execute(db);
  await app.request('PATCH', `/subscriptions/${id}`, { json: { description: 'changed' } });
  await subscriber.waitFor(2);
  assert.deepEqual(await falseHints(), []);
  await sql`select announce('lane_changed', ${'9'.repeat(17)})`.execute(db);
  await until(falseHints, (lines) => lines.length === 1);
});

test('attack: a batch of hints, behind which those of others wait, ends before thousands of lanes are loaded', async () => {
  const { account } = await createApp(server);
  const ends: string[] = [];
  // Stands for the seconds in which the thousands of lanes of a tenant are loaded: to make and lease these would take minutes.
  const loaded = sleep(2_000).then(() => ends.push('lanes'));
  // The cast leaves out what a batch of hints without new lanes does not use.
  const leases = { reloadWhere: () => loaded } as unknown as LaneLeases;
  const hints = new LaneHints({ db, cache: new EventCache(), lanes: new LeasedLanes(), leases });
  const payloads = new Set([`account:${account.id}`]);
  assert.equal(await hints.changed({ payloads, isCut: false }), 0);
  ends.push('batch');
  await loaded;
  assert.deepEqual(ends, ['batch', 'lanes']);
});

const event = {
  id: 'an id',
  kind: 'push',
  accountId: null,
  accountExternalId: null,
  body: Buffer.from('{}'),
  createdAt: 0,
  version: null,
  traceparent: null,
};

/** Counts the positions that are looked up or read. */
class CountingSet extends Set<number> {
  count = 0;

  override has(position: number): boolean {
    this.count += 1;
    return super.has(position);
  }

  override *values() {
    for (const position of super.values()) {
      this.count += 1;
      yield position;
    }
    return undefined;
  }
}

test('a tenant finds its events among any number of erased ones, at the cost of the shorter list', () => {
  const tenant = new Tenant('tenant', new DeliveryMemory());
  for (const position of [10, 20, 30]) tenant.appOf(null).add(position, event);
  for (const [positions, isConcerned] of [
    [[20], true],
    [[21], false],
    [[], false],
    [Array.from({ length: 10_000 }, (_, index) => 31 + index), false],
    [Array.from({ length: 10_000 }, (_, index) => 30 + index), true],
  ] as const) {
    const erased = new CountingSet(positions);
    assert.equal(tenant.hasAny(erased), isConcerned);
    assert.ok(erased.count <= 3, `${erased.count} steps`);
  }
});
