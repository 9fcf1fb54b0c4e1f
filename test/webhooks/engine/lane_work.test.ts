/** Work about lanes that can wait. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LaneWork } from '../../../src/webhooks/engine/lane_work.ts';
import { until } from '../../support/webhooks/apps.ts';

test('one call runs at a time, and the next one has each lane that was added meanwhile once', async () => {
  const calls: number[][] = [];
  const errors: string[] = [];
  let end = () => {};
  const work = new LaneWork(
    (lanes) => {
      calls.push(lanes);
      const { promise, resolve, reject } = Promise.withResolvers<void>();
      end = lanes.includes(2) ? () => reject(new Error('refused')) : resolve;
      return promise;
    },
    ({ message }) => errors.push(message),
  );
  // Between two calls there is a rest.
  const called = (count: number) =>
    until(
      async () => calls.length,
      (length) => length === count,
    );
  work.add([1]);
  work.add([2, 3]);
  work.add([3, 4]);
  assert.deepEqual(calls, [[1]]);
  end();
  await called(2);
  assert.deepEqual(calls, [[1], [2, 3, 4]]);
  work.add([5]);
  end();
  await called(3);
  assert.deepEqual([calls, errors], [[[1], [2, 3, 4], [5]], ['refused']]);
});
