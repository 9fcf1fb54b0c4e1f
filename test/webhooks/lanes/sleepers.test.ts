/** Sleepers: any number of lanes may wait for the same moment, and a tick wakes a limited number of them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { Sleepers, wokenMax } from '../../../src/webhooks/lanes/sleepers.ts';

/** Sleepers only compares lanes. */
const lanesOf = (count: number) => Array.from({ length: count }, (_, id) => ({ id }) as Lane);

test('lanes that wake at the same moment wake in parts, and each of them wakes once', () => {
  const sleepers = new Sleepers();
  const wakeAt = performance.now() + 1_000;
  const lanes = lanesOf(2 * wokenMax + 10);
  for (const lane of lanes) sleepers.add(lane, wakeAt);
  const woken: Lane[] = [];
  const parts: number[] = [];
  for (let call = 0; call < 4; call += 1) {
    const before = woken.length;
    sleepers.wake(wakeAt + 100, (lane) => woken.push(lane));
    parts.push(woken.length - before);
  }
  assert.deepEqual(parts, [wokenMax, wokenMax, 10, 0]);
  assert.deepEqual(woken, lanes);
  assert.equal(sleepers.size, 0);
});

test('a lane that sleeps again while others still have to wake sleeps until its new time', () => {
  const sleepers = new Sleepers();
  const wakeAt = performance.now() + 1_000;
  const [first, ...others] = lanesOf(wokenMax + 1) as [Lane, ...Lane[]];
  for (const lane of [first, ...others]) sleepers.add(lane, wakeAt);
  sleepers.wake(wakeAt + 100, () => {});
  sleepers.add(first, wakeAt + 5_000);
  const woken: Lane[] = [];
  sleepers.wake(wakeAt + 200, (lane) => woken.push(lane));
  assert.deepEqual(woken, others.slice(-1));
  sleepers.wake(wakeAt + 5_100, (lane) => woken.push(lane));
  assert.deepEqual(woken.slice(1), [first]);
});
