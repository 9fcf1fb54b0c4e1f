/** Password hashes: Argon2 of Node.js and of the library, which Node.js before 24.7 uses, are exchangeable. */

import assert from 'node:assert/strict';
import { availableParallelism } from 'node:os';
import { test } from 'node:test';
import { hash, verify } from '@node-rs/argon2';
import { hashesAtOnce, hashPassword, verifyPassword } from '../../src/crypto/passwords.ts';

test('a hash of Node.js verifies with the library, and one of the library with Node.js', async () => {
  const own = await hashPassword('correct horse');
  assert.equal(await verify(own, 'correct horse'), true);
  assert.equal(await verify(own, 'wrong horse'), false);
  const theirs = await hash('correct horse', { memoryCost: 19_456, timeCost: 2, parallelism: 1 });
  assert.equal(await verifyPassword('correct horse', theirs), true);
  assert.equal(await verifyPassword('wrong horse', theirs), false);
});

test('no password verifies for an unknown account, and no password of over 1,024 bytes verifies', async () => {
  assert.equal(await verifyPassword('correct horse', null), false);
  const long = 'x'.repeat(1_025);
  assert.equal(await verifyPassword(long, await hashPassword(long)), false);
});

test('hashes leave half of the processors, and half of the four threads that also verify tokens', () => {
  assert.deepEqual([1, 2, 4, 64].map(hashesAtOnce), [1, 1, 2, 2]);
});

test('a flood of passwords of one network does not hold up a password of another', async () => {
  const finished: string[] = [];
  const guess = async (guesser: string) => {
    await verifyPassword('wrong horse', null, guesser);
    finished.push(guesser);
  };
  const atOnceMax = availableParallelism();
  await Promise.all([...Array.from({ length: 10 * atOnceMax }, () => guess('flood')), guess('other')]);
  // Those of the flood that are in progress, and the next ones, may finish before.
  assert.ok(finished.indexOf('other') <= 2 * atOnceMax, `${finished.indexOf('other')} passwords came first`);
});
