/** Turns of requests to other servers. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OriginTurns, TooManyWaitError } from '../../src/egress/origin_turns.ts';

test('requests that hang for one owner leave their server to others, and other servers to all', async () => {
  const turns = new OriginTurns(16, 5);
  const ends: (() => void)[] = [];
  const hang = (path: string) =>
    turns.run(`https://a.example${path}`, 'a', () => new Promise<void>((resolve) => ends.push(resolve)));
  const hanging = Array.from({ length: 12 }, (_none, index) => hang(`/${index}`));
  assert.equal(ends.length, 7);
  await assert.rejects(hang('/12'), TooManyWaitError);
  assert.equal(await turns.run('https://a.example/b', 'b', async () => 'b'), 'b');
  assert.equal(await turns.run('https://b.example/a', 'a', async () => 'a'), 'a');
  while (ends.length > 0) {
    (ends.shift() as () => void)();
    await new Promise(setImmediate);
  }
  await Promise.all(hanging);
});

test('a request that fails ends its turn', async () => {
  const turns = new OriginTurns(1, 5);
  const failing = turns.run('https://a.example/', 'a', async () => Promise.reject(new Error('no')));
  const next = turns.run('https://a.example/', 'a', async () => 'done');
  await assert.rejects(failing, /no/);
  assert.equal(await next, 'done');
});
