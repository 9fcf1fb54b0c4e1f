/** The round-robin queue: turns of tenants, turns of their lanes, and head starts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DeliveryMemory, Tenant, type TenantApp } from '../../../src/webhooks/lanes/delivery_memory.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { RoundRobin } from '../../../src/webhooks/lanes/round_robin.ts';

const memory = new DeliveryMemory();
const always = () => true;

/** A queue looks only at the tenant of a lane, and at its app. */
function lanesOf(name: string, count: number): Lane[] {
  return lanesOfApp(new Tenant(name, memory), null, count);
}

function lanesOfApp(tenant: Tenant, clientId: string | null, count: number): Lane[] {
  return Array.from({ length: count }, () => ({ tenant, app: tenant.appOf(clientId) }) as Lane);
}

/** Takes lanes and puts each back, like a lane that has more to send. @returns the names of their tenants */
function takeAndReturn(queue: RoundRobin, count: number): string[] {
  return Array.from({ length: count }, () => {
    const lane = queue.take(always) as Lane;
    queue.add(lane);
    return lane.tenant.key;
  });
}

const timesOf = (names: string[], name: string) => names.filter((each) => each === name).length;

test('a tenant with one lane gets as many turns as a tenant with a thousand', () => {
  const queue = new RoundRobin();
  for (const lane of [...lanesOf('many', 1_000), ...lanesOf('one', 1)]) queue.add(lane);
  const names = takeAndReturn(queue, 1_000);
  // Apart from the head starts.
  assert.ok(
    Math.abs(timesOf(names, 'one') - timesOf(names, 'many')) <= 32,
    `${timesOf(names, 'one')} of 1,000`,
  );
});

test('a tenant takes each of its lanes in turn', () => {
  const queue = new RoundRobin();
  const lanes = lanesOf('tenant', 3);
  for (const lane of lanes) queue.add(lane);
  const taken = Array.from({ length: 6 }, () => {
    const lane = queue.take(always) as Lane;
    queue.add(lane);
    return lanes.indexOf(lane);
  });
  assert.deepEqual(taken, [0, 1, 2, 0, 1, 2]);
});

test('a tenant that had nothing queued comes before tenants that were queued all along', () => {
  const queue = new RoundRobin();
  const busy = Array.from({ length: 50 }, (_, index) => lanesOf(`busy ${index}`, 2)).flat();
  for (const lane of busy) queue.add(lane);
  // The head starts of all of them.
  takeAndReturn(queue, 50 * 64);
  const [sparse] = lanesOf('sparse', 1) as [Lane];
  for (let time = 0; time < 5; time += 1) {
    queue.add(sparse);
    assert.equal(queue.take(always), sparse);
    takeAndReturn(queue, 60);
  }
});

test('a head start is every second turn; each round without the tenant gives one turn back', () => {
  const queue = new RoundRobin();
  for (const lane of Array.from({ length: 10 }, (_, index) => lanesOf(`busy ${index}`, 2)).flat()) {
    queue.add(lane);
  }
  takeAndReturn(queue, 10 * 64);
  const [lane] = lanesOf('late', 1) as [Lane];
  queue.add(lane);
  const names = takeAndReturn(queue, 64 + 110);
  assert.equal(timesOf(names.slice(0, 64), 'late'), 32);
  // One of eleven.
  assert.equal(timesOf(names.slice(64), 'late'), 10);
  queue.delete(lane);
  // Too early: it has just had its turns.
  queue.add(lane);
  assert.notEqual(takeAndReturn(queue, 1)[0], 'late');
  queue.delete(lane);
  takeAndReturn(queue, 12);
  queue.add(lane);
  assert.equal(timesOf(takeAndReturn(queue, 2), 'late'), 1);
});

test('tenants that leave and return at every turn do not keep others from theirs', () => {
  const queue = new RoundRobin();
  const [busy] = lanesOf('busy', 1) as [Lane];
  const hostile = Array.from({ length: 20 }, (_, index) => lanesOf(`hostile ${index}`, 1)).flat();
  for (const lane of [busy, ...hostile]) queue.add(lane);
  let turns = 0;
  for (let count = 0; count < 21 * 100; count += 1) {
    const lane = queue.take(always) as Lane;
    if (lane === busy) turns += 1;
    queue.add(lane);
    queue.delete(lane);
    queue.add(lane);
  }
  assert.ok(turns >= 90, `${turns} of 100 turns`);
});

test('tenants that leave when their head starts are used up do not get more than their share', () => {
  const queue = new RoundRobin();
  const busy = lanesOf('busy', 2);
  for (const lane of busy) queue.add(lane);
  takeAndReturn(queue, 32);
  const hostile = Array.from({ length: 10 }, (_, index) => lanesOf(`hostile ${index}`, 32)).flat();
  for (const lane of hostile) queue.add(lane);
  let turns = 0;
  for (let count = 0; count < 11 * 320; count += 1) {
    const lane = queue.take(always) as Lane;
    if (lane.tenant !== busy[0]?.tenant) continue;
    turns += 1;
    // The hostile tenants return after each turn of the busy one.
    for (const each of [lane, ...hostile]) queue.add(each);
  }
  assert.ok(turns >= 250, `${turns} of 320 turns`);
});

test('a tenant that may not continue is set aside until it is requeued', () => {
  const queue = new RoundRobin();
  const [first, second] = [...lanesOf('first', 1), ...lanesOf('second', 1)] as [Lane, Lane];
  queue.add(first);
  queue.add(second);
  assert.equal(
    queue.take((tenant) => tenant !== first.tenant),
    second,
  );
  assert.equal(queue.isEmpty, true);
  assert.equal(queue.take(always), undefined);
  queue.requeue(first.tenant);
  assert.equal(queue.tenantCount, 1);
  assert.equal(queue.take(always), first);
  queue.add(first);
  assert.equal(
    queue.take(() => false),
    undefined,
  );
  queue.requeueAll();
  queue.delete(first);
  assert.equal(queue.isEmpty, true);
  assert.equal(queue.take(always), undefined);
});

test('an app with one lane gets as many turns as another of its tenant with a thousand', () => {
  const queue = new RoundRobin();
  const tenant = new Tenant('user', memory);
  const [one] = lanesOfApp(tenant, 'one', 1) as [Lane];
  for (const lane of [...lanesOfApp(tenant, 'many', 1_000), one]) queue.add(lane);
  let turns = 0;
  for (let count = 0; count < 100; count += 1) {
    const lane = queue.take(always) as Lane;
    queue.add(lane);
    if (lane === one) turns += 1;
  }
  assert.equal(turns, 50);
});

test('an app that may not continue is set aside while other apps of its tenant have their turns', () => {
  const queue = new RoundRobin();
  const tenant = new Tenant('user', memory);
  const full = lanesOfApp(tenant, 'full', 2);
  const [lane] = lanesOfApp(tenant, 'other', 1) as [Lane];
  const mayContinueFor = (app: TenantApp) => app.clientId !== 'full';
  for (const each of [...full, lane]) queue.add(each);
  assert.equal(queue.take(always, mayContinueFor), lane);
  assert.equal(queue.isEmpty, true);
  queue.add(full[0] as Lane);
  assert.equal(queue.take(always, mayContinueFor), undefined);
  queue.add(lane);
  assert.equal(queue.take(always, mayContinueFor), lane);
  queue.requeue(tenant);
  assert.equal(queue.take(always, mayContinueFor), undefined);
  queue.requeueAll();
  assert.equal(queue.take(always), full[0]);
  assert.equal(queue.take(always, mayContinueFor), undefined);
  queue.delete(full[1] as Lane);
  assert.equal(queue.isUnused, true);
});
