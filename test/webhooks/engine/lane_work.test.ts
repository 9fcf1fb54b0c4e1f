/** Work about lanes that can wait. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LaneWork } from '../../../src/webhooks/engine/lane_work.ts';
import { until } from '../../support/webhooks/apps.ts';

const lanesOf = (key: string, ...ids: number[]) => ids.map((id) => ({ id, tenant: { key } }));

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
  work.add(lanesOf('account', 1));
  work.add(lanesOf('account', 2, 3));
  work.add(lanesOf('account', 3, 4));
  assert.deepEqual(calls, [[1]]);
  end();
  await called(2);
  assert.deepEqual(calls, [[1], [2, 3, 4]]);
  work.add(lanesOf('account', 5));
  end();
  await called(3);
  assert.deepEqual([calls, errors], [[[1], [2, 3, 4], [5]], ['refused']]);
});

test('attack: a tenant with hundreds of lanes leaves each second place of a call to another tenant', async () => {
  const calls: number[][] = [];
  const work = new LaneWork(async (lanes) => {
    calls.push(lanes);
  }, assert.fail);
  const many = Array.from({ length: 600 }, (_none, index) => index);
  work.add(lanesOf('hostile', ...many));
  work.add(lanesOf('other', 1_000, 1_001, 1_002));
  await until(
    async () => calls.flat().length,
    (count) => count === 603,
  );
  assert.ok(calls.every(({ length }) => length <= 20));
  assert.deepEqual(
    calls[1]?.slice(0, 6).filter((id) => id >= 1_000),
    [1_000, 1_001, 1_002],
  );
});
