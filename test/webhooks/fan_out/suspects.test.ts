/** How accounts whose events fail are handled, so that they cost the others little. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Suspects } from '../../../src/webhooks/fan_out/suspects.ts';

test('an account whose events fail is tried again after pauses that grow to a minute', () => {
  const suspects = new Suspects();
  suspects.add('a', 0);
  const pauses: number[] = [];
  let now = 0;
  for (let count = 0; count < 9; count += 1) {
    suspects.fail('a', true, now);
    pauses.push(suspects.dueAt - now);
    now = suspects.dueAt;
  }
  assert.deepEqual(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
});

test('a refused event is parked at once, and a slow one after six failures', () => {
  const suspects = new Suspects();
  suspects.add('refused', 0);
  suspects.add('slow', 0);
  assert.equal(suspects.fail('refused', false, 0), true);
  const slow = Array.from({ length: 7 }, () => suspects.fail('slow', true, 0));
  assert.deepEqual(slow, [false, false, false, false, false, true, true]);
});

test('nothing is parked when events of three accounts fail and no other succeeds in between', () => {
  const suspects = new Suspects();
  for (const account of ['a', 'b', 'c', 'd']) suspects.add(account, 0);
  const fail = (account: string) => suspects.fail(account, false, 0);
  assert.deepEqual(['a', 'a', 'b', 'c', 'd', 'a'].map(fail), [true, true, true, false, false, false]);
  suspects.clearRefused();
  assert.equal(fail('d'), true);
});

test('suspects are tried in turn, and an account is like the others after eight successes in a row', () => {
  const suspects = new Suspects();
  for (const account of ['a', 'b']) suspects.add(account, 0);
  const order = Array.from({ length: 4 }, () => {
    const account = suspects.next(0) as string;
    suspects.succeed(account, 0);
    return account;
  });
  assert.deepEqual(order, ['a', 'b', 'a', 'b']);
  suspects.fail('b', false, 0);
  suspects.proceed('b', 0);
  for (let count = 0; count < 7; count += 1) for (const account of ['a', 'b']) suspects.succeed(account, 0);
  assert.deepEqual([suspects.has('a'), suspects.has('b')], [false, true]);
  suspects.succeed('b', 0);
  assert.equal(suspects.size, 0);
});

test('the number of suspects is limited', () => {
  const suspects = new Suspects();
  const added = Array.from({ length: 1_001 }, (_, index) => suspects.add(`${index}`, 0));
  assert.deepEqual([added[999], added[1_000]], [true, false]);
});
