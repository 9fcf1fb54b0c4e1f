/** Slices: each lane has its turn, and no turn has many more lanes than its share. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Slices } from '../../../src/webhooks/lanes/slices.ts';

const lanesOf = (count: number) => Array.from({ length: count }, (_, id) => ({ id }));
const sizeMax = 100;

test('few lanes have their turn in every call', () => {
  const slices = new Slices(sizeMax);
  const lanes = lanesOf(sizeMax);
  for (let call = 0; call < 3; call += 1) assert.deepEqual(slices.next(lanes), lanes);
  assert.deepEqual(slices.next([]), []);
});

test('many lanes take turns', () => {
  const slices = new Slices(sizeMax);
  const lanes = lanesOf(800);
  const calls = Array.from({ length: 8 }, () => slices.next(lanes));
  for (const slice of calls) assert.equal(slice.length, sizeMax);
  assert.equal(new Set(calls.flat()).size, lanes.length);
});

test('each lane has its turn while the number of slices changes', () => {
  const slices = new Slices(sizeMax);
  const [few, many] = [lanesOf(150), lanesOf(700)];
  const seen = new Set<number>();
  for (let call = 0; call < 8; call += 1) {
    for (const { id } of slices.next(call % 3 === 0 ? many : few)) seen.add(id);
  }
  for (const { id } of few) assert.ok(seen.has(id), `lane ${id} had no turn`);
});

test('lanes of a tenant with few have a turn in every call', () => {
  const slices = new Slices<{ id: number; tenant: string }>(sizeMax, ({ tenant }) => tenant);
  const lanesOfTenant = (tenant: string, from: number, count: number) =>
    Array.from({ length: count }, (_, index) => ({ id: from + index, tenant }));
  const [one, other, few] = [
    lanesOfTenant('one', 0, 800),
    lanesOfTenant('other', 1_000, 400),
    lanesOfTenant('few', 2_000, 2),
  ];
  // 800 lanes in parts of at most a third of a slice.
  const calls = Array.from({ length: 32 }, () => slices.next([...one, ...other, ...few]));
  for (const slice of calls) {
    assert.ok(slice.length <= sizeMax, `${slice.length} lanes`);
    for (const lane of few) assert.ok(slice.includes(lane));
  }
  assert.equal(new Set(calls.flat()).size, 1_202);
});
