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

test('a refused batch is split until the owner is known, whose items are tried one by one', async () => {
  const lots: string[][] = [];
  const batcher = new Batcher<string, string>({
    execute: async (items) => {
      lots.push([...items]);
      if (items.some((item) => item.startsWith('bad'))) throw refusal('23514');
      return items.map((value) => ({ status: 'fulfilled', value }));
    },
  });
  const items = Array.from({ length: 16 }, (_, index) => `good${index}`);
  items.push('bad1', 'fine', 'bad2');
  const results = await Promise.allSettled(
    items.map((item) => batcher.add(/^(bad|fine)/.test(item) ? 'bad' : item, item, 1)),
  );
  for (const [index, { status }] of results.entries())
    assert.equal(status, items[index]?.startsWith('bad') ? 'rejected' : 'fulfilled', String(items[index]));
  assert.equal(lots[0]?.length, 19);
  // Eleven to find the owner of seventeen, and its three items.
  assert.ok(lots.length <= 14, `${lots.length} lots`);
});

test('attack: whose items are refused again and again divides no batch of others', async () => {
  const { lots, add } = startBatcher({ batchItemsMax: 8 });
  const end = async (index: number) => {
    const isBad = lots[index]?.items.some((item) => item.startsWith('bad'));
    await lots[index]?.end(isBad ? refusal('22P02') : undefined);
  };
  const refused = [1, 2, 3].map((index) => assert.rejects(add('bad', `bad${index}`), /22P02/));
  const added = [add('a', 'a1'), add('b', 'b1')];
  await turn();
  assert.deepEqual(lots[0]?.items, ['bad1', 'a1', 'b1', 'bad2', 'bad3']);
  // Its items are found, and wait again.
  await end(0);
  await end(1);
  assert.deepEqual(lots[1]?.items, ['bad1', 'bad2', 'bad3']);
  added.push(add('a', 'a2'), add('b', 'b2'));
  await end(2);
  assert.deepEqual(lots[2]?.items, ['a1', 'b1']);
  // From now on it and the others take turns, however many such owners there are.
  refused.push(assert.rejects(add('bad', 'bad4'), /22P02/));
  for (let index = 3; index < 9; index += 1) await end(index);
  await Promise.all([...added, ...refused]);
  assert.deepEqual(
    lots.slice(3).map(({ items }) => items),
    [['bad1'], ['a2', 'b2'], ['bad2'], ['bad3'], ['bad4']],
  );
});

test('attack: suspects, however many, begin every second batch only', async () => {
  const { lots, add } = startBatcher();
  const owners = ['x', 'y', 'z'];
  for (const [index, owner] of owners.entries()) {
    const refused = assert.rejects(add(owner, 'bad'), /22P02/);
    await turn();
    await lots[index]?.end(refusal('22P02'));
    await refused;
  }
  const added = ['x', 'y', 'z', 'a', 'x', 'b'].map((owner, index) => add(owner, `${owner}${index}`));
  await turn();
  const more: Promise<string>[] = [];
  for (let index = 3; index < 9; index += 1) {
    more.push(...(index < 5 ? [add('a', `late${index}`)] : []));
    await lots[index]?.end();
  }
  await Promise.all([...added, ...more]);
  assert.deepEqual(
    lots.slice(3).map(({ items }) => items),
    [['x0'], ['a3', 'b5', 'late3'], ['y1'], ['late4'], ['z2'], ['x4']],
  );
});

test('an owner is a suspect for a while', async () => {
  const { lots, add } = startBatcher({ suspectMs: 0 });
  const refused = assert.rejects(add('a', 'a1'), /54000/);
  await turn();
  await lots[0]?.end(refusal('54000'));
  await refused;
  const added = [add('a', 'a2'), add('b', 'b1'), add('a', 'a3')];
  await turn();
  assert.deepEqual(lots[1]?.items, ['a2', 'b1', 'a3']);
  await lots[1]?.end();
  await Promise.all(added);
});

test('whoever has nothing waiting finds room, though others have all that they may', async () => {
  const { lots, add } = startBatcher({ waitingItemsMax: 16, waitingBytesMax: 160, ownerItemsMax: 16 });
  const isFull = (error: unknown) => error instanceof BatcherFullError && !error.isOwn;
  const added = Array.from({ length: 7 }, () => add('a', 'a'));
  await assert.rejects(add('a', 'a'), isFull);
  added.push(...Array.from({ length: 4 }, () => add('b', 'b')));
  await assert.rejects(add('b', 'b'), isFull);
  added.push(add('c', 'c', 100));
  await assert.rejects(add('c', 'c', 1), isFull);
  added.push(add('d', 'd', 40));
  await turn();
  await lots[0]?.end();
  await Promise.all(added);
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
