/** Turns of building pages of events. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { undivided } from '../../../src/shared/owner_turns.ts';
import { PageSlices } from '../../../src/webhooks/reader/page_turns.ts';

/** Keeps the processor busy. */
function work(ms: number): void {
  const until = performance.now() + ms;
  while (performance.now() < until);
}

test('pages are built in slices, one in each turn of the event loop, by recent time', async () => {
  const built: string[] = [];
  const build = async (owner: string, page: string, slicesCount: number, ms: number) => {
    const slices = new PageSlices(undivided(owner));
    for (let count = 0; count < slicesCount; count += 1) {
      work(ms);
      assert.ok(slices.isOver);
      await slices.next();
      built.push(page);
    }
  };
  const pages = [...['a1', 'a2', 'a3'].map((page) => build('a', page, 2, 40)), build('b', 'b1', 2, 4)];
  const turns: number[] = [];
  for (let before = 0; built.length < 8; before = built.length) {
    await nextTurn();
    turns.push(built.length - before);
  }
  await Promise.all(pages);
  assert.deepEqual(built, ['b1', 'b1', 'a1', 'a2', 'a3', 'a1', 'a2', 'a3']);
  assert.ok(
    turns.every((count) => count <= 1),
    turns.join(' '),
  );
});
