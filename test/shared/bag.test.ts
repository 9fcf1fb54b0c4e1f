/** Bags: what they contain, and what they do not keep in memory. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Bag, BagItem } from '../../src/shared/bag.ts';

class Named extends BagItem {
  readonly name: string;

  constructor(name: string) {
    super();
    this.name = name;
  }
}

const namesOf = (bag: Bag<Named>) => [...bag].map(({ name }) => name).sort();

test('a bag contains what was added and not deleted, in whatever order that happened', () => {
  const bag = new Bag<Named>();
  const [a, b, c, d] = ['a', 'b', 'c', 'd'].map((name) => new Named(name)) as [Named, Named, Named, Named];
  for (const item of [a, b, c, d]) bag.add(item);
  assert.equal(bag.delete(b), true);
  assert.equal(bag.delete(b), false, 'a second time');
  assert.deepEqual(namesOf(bag), ['a', 'c', 'd']);
  assert.equal(bag.delete(d), true);
  bag.add(b);
  assert.deepEqual(namesOf(bag), ['a', 'b', 'c']);
  assert.deepEqual(bag.takeAll(), [a, c, b]);
  assert.equal(bag.size, 0);
  assert.equal(bag.delete(a), false, 'it was taken');
  bag.add(a);
  assert.deepEqual(namesOf(bag), ['a']);
});

/**
 * Has 32 items at a time, each with 4 KiB, and collects the young generation after each thousand.
 * @returns the bytes by which the old generation has grown
 */
function churn(items: { add: (item: Large) => unknown; delete: (item: Large) => unknown }): number {
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as (options: { type: 'minor' | 'major' }) => void;
  const oldBytes = () =>
    getHeapSpaceStatistics().find(({ space_name: name }) => name === 'old_space')?.space_used_size ?? 0;
  const present = new Array<Large | undefined>(32).fill(undefined);
  gc({ type: 'major' });
  const before = oldBytes();
  for (let count = 1; count <= 20_000; count += 1) {
    const item = new Large();
    const left = present[count % 32];
    if (left !== undefined) items.delete(left);
    items.add(item);
    present[count % 32] = item;
    if (count % 1_000 === 0) gc({ type: 'minor' });
  }
  return oldBytes() - before;
}

class Large extends BagItem {
  readonly content = new Array(512).fill(0);
}

test('a bag keeps nothing that has left it, and a set does', () => {
  // First, because V8 would create what usually survives in the old generation at once.
  const ofBag = churn(new Bag<Large>());
  const ofSet = churn(new Set<Large>());
  assert.ok(ofBag < ofSet / 4, `the old generation grew by ${ofBag} bytes, and by ${ofSet} with a set`);
});
