/** Hints: whatever arrives on a channel costs a bounded number of reads and a bounded amount of memory. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { type HintBatch, HintQueue, pauseMsMin } from '../../src/database/hints.ts';

test('hints are worked on one batch at a time, with a pause, however many arrive', async () => {
  const batches: { size: number; characters: number; isCut: boolean; at: number }[] = [];
  const first = Promise.withResolvers<void>();
  const last = Promise.withResolvers<void>();
  const queue = new HintQueue(
    {
      onHints: async ({ payloads, isCut }: HintBatch) => {
        const characters = [...payloads].join('').length;
        batches.push({ size: payloads.size, characters, isCut, at: performance.now() });
        if (batches.length === 1) await first.promise;
        else last.resolve();
        return 0;
      },
    },
    () => {},
    assert.fail,
  );
  queue.add('genuine');
  // The first batch begins at once.
  assert.equal(batches.length, 1);
  for (let count = 0; count < 20_000; count += 1) queue.add(`${count}`.padEnd(8_000, 'x'));
  // A timer counts from the beginning of its turn of the event loop, which the hints have made long.
  await setImmediate();
  const releasedAt = performance.now();
  first.resolve();
  await last.promise;
  queue.stop();
  const [, second] = batches as [unknown, (typeof batches)[number]];
  assert.equal(batches.length, 2);
  assert.ok(second.size <= 1_000 && second.characters <= 262_144, JSON.stringify(second));
  assert.equal(second.isCut, true);
  // Timers are early by a millisecond or two.
  assert.ok(second.at - releasedAt >= pauseMsMin / 2, `${second.at - releasedAt} ms`);
});

test('a listener that throws or rejects is reported and hears of later hints', async () => {
  const errors: string[] = [];
  const heard: string[] = [];
  const done = Promise.withResolvers<void>();
  const queue = new HintQueue(
    {
      pauseMs: 1,
      onHints: ({ payloads }) => {
        heard.push([...payloads].join());
        if (heard.length === 1) throw new Error('thrown');
        if (heard.length === 2) return Promise.reject(new Error('rejected'));
        done.resolve();
        return 0;
      },
    },
    () => {},
    ({ message }) => {
      errors.push(message);
      queue.add(`after ${message}`);
    },
  );
  queue.add('{');
  await done.promise;
  queue.stop();
  assert.deepEqual(errors, ['thrown', 'rejected']);
  assert.deepEqual(heard, ['{', 'after thrown', 'after rejected']);
});

test('the next batch waits longer for one with false hints than for one with genuine hints', async () => {
  const waits: number[] = [];
  let endedAt = 0;
  const done = Promise.withResolvers<void>();
  const queue: HintQueue = new HintQueue(
    {
      pauseMs: 1,
      onHints: async ({ payloads: [payload] }) => {
        if (payload === 'last') done.resolve();
        if (endedAt > 0) waits.push(performance.now() - endedAt);
        queue.add(payload === 'genuine' ? 'false' : 'last');
        await sleep(200);
        endedAt = performance.now();
        return payload === 'false' ? 1 : 0;
      },
    },
    () => {},
    assert.fail,
  );
  queue.add('genuine');
  await done.promise;
  queue.stop();
  const [afterGenuine, afterFalse] = waits as [number, number];
  assert.ok(afterFalse > 1.5 * afterGenuine, `${afterGenuine} and ${afterFalse} ms`);
});
