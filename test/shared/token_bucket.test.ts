/** Token buckets. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TokenBucket } from '../../src/shared/token_bucket.ts';

/** Takes all tokens that are there. */
function takeAll(bucket: TokenBucket, now: number): number {
  let count = 0;
  for (; bucket.nextAt(now) === null; count += 1) bucket.take();
  return count;
}

test('a token bucket starts full, refills at its rate and never holds more than its burst', () => {
  const bucket = new TokenBucket(10, 3, 1_000);
  assert.equal(takeAll(bucket, 1_000), 3);
  assert.equal(bucket.nextAt(1_000), 1_100);
  assert.equal(takeAll(bucket, 1_200), 2);
  assert.equal(takeAll(bucket, 60_000), 3);
});

test('a token bucket takes a token back, but not above its burst', () => {
  const bucket = new TokenBucket(1, 2, 0);
  assert.equal(takeAll(bucket, 0), 2);
  bucket.giveBack();
  assert.equal(takeAll(bucket, 0), 1);
  for (let count = 0; count < 5; count += 1) bucket.giveBack();
  assert.equal(takeAll(bucket, 0), 2);
});
