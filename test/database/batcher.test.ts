/** The batcher: which items share a batch, turns of owners, limits of waiting items, and failed batches. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { Batcher, BatcherFullError, type BatcherLimits } from '../../src/database/batcher.ts';
import { isDatabaseUnavailable } from '../../src/database/database.ts';
import type { Sharer } from '../../src/shared/owner_turns.ts';

interface Lot {
  items: readonly string[];
  /** Ends the batch: each item resolves to itself, or all reject with the error. */
  end: (error?: Error) => Promise<void>;
}

/** A batcher whose batches the test ends. */
function startBatcher(limits: Partial<BatcherLimits> = {}) {
  const lots: Lot[] = [];
  const batcher = new Batcher<string, string>({
    limits,
    execute: (items) => {
      const { promise, resolve, reject } = Promise.withResolvers<PromiseSettledResult<string>[]>();
      const end = async (error?: Error) => {
        if (error) reject(error);
        else resolve(items.map((value) => ({ status: 'fulfilled', value })));
        // The next batch is requested in the first turn and starts in the second one.
        await turn();
        await turn();
      };
      lots.push({ items, end });
      return promise;
    },
  });
  return {
    batcher,
    lots,
    add: (owner: string | Sharer, item: string, bytes = 1) => batcher.add(owner, item, bytes),
  };
}

const refusal = (code: string) => Object.assign(new Error(`refused: ${code}`), { code });

test('an idle batcher starts with one item at the end of the turn', async () => {
  const { lots, add } = startBatcher();
  const added = add('a', 'a1');
  assert.equal(lots.length, 0);
  await turn();
  assert.deepEqual(lots[0]?.items, ['a1']);
  await lots[0]?.end();
  assert.equal(await added, 'a1');
});

test('items of one turn share a batch, and items that arrive in flight share the next', async () => {
  const { lots, add } = startBatcher();
  const first = [add('a', 'a1'), add('b', 'b1')];
  await turn();
  const second = [add('a', 'a2'), add('b', 'b2')];
  await turn();
  assert.equal(lots.length, 1);
  await lots[0]?.end();
  assert.deepEqual(await Promise.all(first), ['a1', 'b1']);
  assert.deepEqual(lots[1]?.items, ['a2', 'b2']);
  await lots[1]?.end();
  assert.deepEqual(await Promise.all(second), ['a2', 'b2']);
});

test('owners take turns, so one owner’s flood does not block another', async () => {
  const { lots, add } = startBatcher({ batchItemsMax: 4 });
  const flood = Array.from({ length: 9 }, (_, index) => add('flood', `f${index}`));
  const other = add('other', 'o');
  await turn();
  assert.deepEqual(lots[0]?.items, ['f0', 'o', 'f1', 'f2']);
  await lots[0]?.end();
  assert.equal(await other, 'o');
  await lots[1]?.end();
  await lots[2]?.end();
  assert.equal((await Promise.all(flood)).length, 9);
});

test('attack: an owner with many parts has no more turns than another, and its parts take turns', async () => {
  const { lots, add } = startBatcher({ batchItemsMax: 4 });
  const flood = Array.from({ length: 8 }, (_, index) =>
    add({ owner: 'flood', part: `app${index >> 1}` }, `f${index}`),
  );
  const other = add({ owner: 'other', part: 'app' }, 'o');
  await turn();
  assert.deepEqual(lots[0]?.items, ['f0', 'o', 'f2', 'f4']);
  for (let index = 0; index < 3; index += 1) await lots[index]?.end();
  assert.equal(await other, 'o');
  assert.equal((await Promise.all(flood)).length, 8);
});

test('attack: an owner’s large items fill no batch in which others wait', async () => {
  const { lots, add } = startBatcher({ batchBytesMax: 100, batchOwnerBytesMax: 20 });
  const added = [
    ...['l1', 'l2', 'l3'].map((item) => add('large', item, 15)),
    add('huge', 'h1', 50),
    add('huge', 'h2', 50),
    add('small', 's1', 10),
    add('small', 's2', 10),
    add('small', 's3', 10),
  ];
  await turn();
  assert.deepEqual(lots[0]?.items, ['l1', 'h1', 's1', 's2']);
  await lots[0]?.end();
  assert.deepEqual(lots[1]?.items, ['l2', 'h2', 's3']);
  await lots[1]?.end();
  // Nobody else waits.
  const more = [add('large', 'l4', 40), add('large', 'l5', 40)];
  await turn();
  await lots[2]?.end();
  await lots[3]?.end();
  await Promise.all([...added, ...more]);
  assert.deepEqual(lots[2]?.items, ['l3']);
  assert.deepEqual(lots[3]?.items, ['l4', 'l5']);
});

test('a part of an owner may have half of what waits', async () => {
  const { lots, add } = startBatcher({ ownerItemsMax: 4, ownerBytesMax: 40 });
  const app = { owner: 'a', part: 'app' };
  const own = (error: unknown) => error instanceof BatcherFullError && error.isOwn;
  const added = [add(app, 'a1'), add(app, 'a2')];
  await assert.rejects(add(app, 'a3'), own);
  added.push(add({ ...app, part: 'other' }, 'b1', 30));
  await assert.rejects(add({ ...app, part: 'other' }, 'b2', 1), own);
  await assert.rejects(add({ ...app, part: 'third' }, 'c1', 20), own);
  added.push(add({ ...app, part: 'third' }, 'c2'));
  await assert.rejects(add({ ...app, part: 'fourth' }, 'd1'), own);
  await turn();
  await lots[0]?.end();
  await Promise.all(added);
});

test('a batch ends at its byte limit, and a larger item is a batch by itself', async () => {
  const { lots, add } = startBatcher({ batchBytesMax: 10 });
  const added = [add('a', 'a', 6), add('b', 'b', 6), add('c', 'large', 100), add('d', 'd', 1)];
  await turn();
  for (let index = 0; index < 4; index += 1) await lots[index]?.end();
  await Promise.all(added);
  assert.deepEqual(
    lots.map(({ items }) => items),
    [['a'], ['b'], ['large'], ['d']],
  );
});

test('waiting items are limited for each owner and for all, in count and bytes', async () => {
  const limits = { ownerItemsMax: 2, ownerBytesMax: 10, waitingItemsMax: 4, waitingBytesMax: 25 };
  const { lots, add } = startBatcher(limits);
  const isFull = (isOwn: boolean) => (error: unknown) =>
    error instanceof BatcherFullError && error.isOwn === isOwn;
  const added = [add('a', 'a1'), add('a', 'a2'), add('b', 'b1', 10)];
  await assert.rejects(add('a', 'a3'), isFull(true));
  await assert.rejects(add('b', 'b2', 1), isFull(true));
  await assert.rejects(add('c', 'c1', 20), isFull(false));
  added.push(add('c', 'c2'));
  await assert.rejects(add('d', 'd1'), isFull(false));
  await turn();
  await lots[0]?.end();
  await Promise.all(added);
  // Ended items make room.
  const more = add('a', 'a3');
  await turn();
  await lots[1]?.end();
  assert.equal(await more, 'a3');
});

test('each item has its own outcome', async () => {
  const batcher = new Batcher<number, number>({
    execute: async (items) =>
      items.map((item) =>
        item === 2
          ? { status: 'rejected', reason: new Error('two') }
          : { status: 'fulfilled', value: item * 10 },
      ),
  });
  const results = await Promise.allSettled([1, 2, 3].map((item) => batcher.add('a', item, 1)));
  assert.deepEqual(
    results.map((result) => (result.status === 'fulfilled' ? result.value : result.reason.message)),
    [10, 'two', 30],
  );
});

test('a batch that the database refuses is split until the refused items are found', async () => {
  const lots: number[] = [];
  const batcher = new Batcher<number, number>({
    execute: async (items) => {
      lots.push(items.length);
      if (items.some((item) => item % 10 === 7)) throw refusal('23514');
      return items.map((value) => ({ status: 'fulfilled', value }));
    },
  });
  const items = Array.from({ length: 20 }, (_, index) => index);
  const results = await Promise.allSettled(items.map((item) => batcher.add('a', item, 1)));
  for (const [index, { status }] of results.entries()) {
    assert.equal(status, index % 10 === 7 ? 'rejected' : 'fulfilled', `item ${index}`);
  }
  assert.equal(lots[0], 20);
  assert.ok(lots.length < 20, `${lots.length} lots`);
});

test('a batch with an unknown result is not retried, and each item learns that', async () => {
  for (const code of ['57P01', 'ECONNRESET', '57014', '40P01']) {
    const { lots, add } = startBatcher();
    const added = Promise.allSettled([add('a', 'a'), add('b', 'b')]);
    await turn();
    await lots[0]?.end(refusal(code));
    const results = await added;
    assert.ok(results.every((result) => result.status === 'rejected' && result.reason.code === code));
    assert.equal(lots.length, 1);
  }
});

test('a stuck batch does not block the next ones, up to a number of batches', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { lots, add } = startBatcher({ slowBatchMs: 100, batchesInFlightMax: 2 });
  const stuck = add('a', 'stuck');
  await turn();
  const next = add('a', 'next');
  await turn();
  assert.equal(lots.length, 1);
  t.mock.timers.tick(100);
  await turn();
  assert.deepEqual(lots[1]?.items, ['next']);
  t.mock.timers.tick(100);
  const third = add('a', 'third');
  await turn();
  assert.equal(lots.length, 2, 'a third batch is in flight');
  await lots[1]?.end();
  assert.equal(await next, 'next');
  assert.deepEqual(lots[2]?.items, ['third']);
  await lots[2]?.end();
  await lots[0]?.end();
  assert.deepEqual(await Promise.all([stuck, third]), ['stuck', 'third']);
  // No batch counts as in flight any more.
  const last = [add('a', 'x'), add('a', 'y')];
  await turn();
  assert.deepEqual(lots[3]?.items, ['x', 'y']);
  await lots[3]?.end();
  await Promise.all(last);
});

test('an item that waits too long is rejected and never done', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { lots, add } = startBatcher({ slowBatchMs: 1_000_000, waitMsMax: 0 });
  const stuck = add('a', 'stuck');
  await turn();
  const late = [add('a', 'late'), add('b', 'late')];
  const results = Promise.allSettled(late);
  t.mock.timers.tick(1);
  for (const result of await results) {
    assert.equal(result.status, 'rejected');
    assert.ok(isDatabaseUnavailable(result.reason));
  }
  await lots[0]?.end();
  assert.equal(await stuck, 'stuck');
  assert.equal(lots.length, 1);
});

test('a batch follows the previous one without a timer', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { lots, add } = startBatcher();
  const first = add('a', 'a1');
  await turn();
  await lots[0]?.end();
  assert.equal(await first, 'a1');
  const second = [add('a', 'a2'), add('b', 'b2')];
  await turn();
  await turn();
  assert.deepEqual(lots[1]?.items, ['a2', 'b2']);
  await lots[1]?.end();
  await Promise.all(second);
});
