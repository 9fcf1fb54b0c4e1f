/** The queue of lanes to load: groups take turns, and a lane that waits is loaded once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HoldWatch } from '../../../src/webhooks/lanes/lane_holds.ts';
import { LoadQueue } from '../../../src/webhooks/lanes/load_queue.ts';

const range = (from: number, count: number) => Array.from({ length: count }, (_, index) => from + index);

function openQueue() {
  const queue = new LoadQueue();
  const ended: HoldWatch[] = [];
  const watch = () => new HoldWatch((one) => ended.push(one));
  return { queue, ended, add: (ids: number[], tenant?: string) => queue.add(ids, watch, () => tenant) };
}

test('a lane does not wait behind a bulk change', () => {
  const { queue, add } = openQueue();
  void add(range(0, 10_000));
  void add([70_000]);
  void add([80_000, 80_001]);
  assert.deepEqual([...queue.take(5).keys()], [0, 70_000, 80_000, 1, 80_001]);
  assert.deepEqual([...queue.take(3).keys()], [2, 3, 4]);
});

test('attack: a tenant with very many changes takes turns with others', () => {
  const { queue, add } = openQueue();
  const tenant = 'many';
  for (let change = 0; change < 100; change += 1) void add(range(change * 100, 100), tenant);
  void add([70_000], 'one');
  assert.deepEqual([...queue.take(3).keys()], [0, 70_000, 100]);
});

test('attack: more tenants than one statement has lanes take turns', () => {
  const { queue, add } = openQueue();
  for (let change = 0; change < 40; change += 1) void add(range(change * 100, 100), `tenant ${change}`);
  void add([70_000], 'one');
  assert.deepEqual(
    [...queue.take(32).keys()],
    range(0, 32).map((change) => change * 100),
  );
  assert.equal([...queue.take(32).keys()].indexOf(70_000), 8);
});

test('a change of several tenants is one group, and each takes its turns', async () => {
  const { queue, ended } = openQueue();
  const tenants = ['one', 'other'] as const;
  const watch = () => new HoldWatch((one) => ended.push(one));
  const done = queue.add([1, 2, 3, 4], watch, (id) => tenants[id < 4 ? 0 : 1]);
  const taken = queue.take(4);
  assert.deepEqual([...taken.keys()], [1, 4, 2, 3]);
  queue.settle(taken.values());
  await done;
  assert.equal(ended.length, 1);
});

test('a lane that waits already is loaded once, and one that was taken again', () => {
  const { queue, add } = openQueue();
  void add([1, 2]);
  void add([2, 3]);
  assert.deepEqual([...queue.take(10).keys()], [1, 3, 2]);
  void add([2]);
  assert.deepEqual([...queue.take(10).keys()], [2]);
  assert.equal(queue.isEmpty, true);
  assert.equal(queue.size, 4);
});

test('a call resolves, and its watch ends, when all of its lanes are settled', async () => {
  const { queue, ended, add } = openQueue();
  const resolved: string[] = [];
  const first = add([1, 2]).then(() => resolved.push('first'));
  const second = add([2]).then(() => resolved.push('second'));
  const [one, two] = [...queue.take(2).values()];
  assert.ok(one && two);
  queue.settle([one]);
  await Promise.resolve();
  assert.deepEqual([resolved, ended], [[], []]);
  queue.settle([two]);
  await Promise.all([first, second]);
  assert.deepEqual(resolved.toSorted(), ['first', 'second']);
  assert.deepEqual(ended, [one.watch]);
});

test('attack: a tenant has a share of the lanes that wait, and others have room for theirs', () => {
  const { queue, add } = openQueue();
  const tenantOf = (id: number) => (id < 1_000 ? 'many' : id < 2_000 ? 'few' : undefined);
  const above = queue.aboveShare(range(0, 100), 64, tenantOf);
  assert.deepEqual([...above], range(28, 72));
  void add(range(0, 28), 'many');
  assert.deepEqual([...queue.aboveShare([28, ...range(1_000, 20)], 64, tenantOf)], [28, ...range(1_016, 4)]);
  // What is not known has no share, and is counted. A few more of a tenant are not meant.
  assert.deepEqual([...queue.aboveShare([...range(2_000, 40), ...range(1_000, 17)], 64, tenantOf)], [1_016]);
  queue.take(1);
  assert.deepEqual([...queue.aboveShare([28], 64, tenantOf)], []);
});
