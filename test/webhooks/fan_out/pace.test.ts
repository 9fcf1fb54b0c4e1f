/** The pace of passes. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Pace } from '../../../src/webhooks/fan_out/pace.ts';

/** @returns how many may start at a time */
function startsAt(pace: Pace, now: number): number {
  let starts = 0;
  while (pace.waitMs(now) <= 0) {
    pace.start(now);
    starts += 1;
  }
  return starts;
}

test('a few start at once after a quiet time, then one for each interval', () => {
  const pace = new Pace(10, 3);
  assert.equal(startsAt(pace, 1_000), 3);
  assert.equal(pace.waitMs(1_000), 10);
  assert.equal(startsAt(pace, 1_009), 0);
  assert.equal(startsAt(pace, 1_010), 1);
  assert.equal(startsAt(pace, 1_019), 0);
  assert.equal(startsAt(pace, 1_030), 2);
  // A longer quiet time allows no more.
  assert.equal(startsAt(pace, 9_000), 3);
});

test('a load at the interval never waits, and a load above it waits for the interval', () => {
  const steady = new Pace(10, 3);
  for (let now = 0; now < 1_000; now += 10) assert.equal(startsAt(steady, now) > 0, true);
  const heavy = new Pace(10, 3);
  let starts = 0;
  for (let now = 0; now < 1_000; now += 1) starts += startsAt(heavy, now);
  assert.equal(starts, 102);
});

test('one start is the least, and a skipped wait allows the next start at once', () => {
  const pace = new Pace(10, 1);
  assert.equal(startsAt(pace, 0), 1);
  assert.equal(pace.waitMs(4), 6);
  pace.skip();
  assert.equal(startsAt(pace, 4), 1);
});
