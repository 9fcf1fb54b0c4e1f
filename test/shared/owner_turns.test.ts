/** Turns of owners and of their parts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { OwnerTurns } from '../../src/shared/owner_turns.ts';

/** Each thing is named by its owner and part. */
function queue(...things: string[]): OwnerTurns<string> {
  const turns = new OwnerTurns<string>();
  for (const thing of things) turns.add(thing.slice(0, 1), thing, thing.slice(0, 2));
  return turns;
}

function takeEverything(turns: OwnerTurns<string>): string[] {
  const taken: string[] = [];
  while (!turns.isEmpty) taken.push(turns.take() as string);
  return taken;
}

test('owners take turns, and so do the parts of an owner', () => {
  const turns = queue('aX1', 'aX2', 'aX3', 'aX4', 'aY1', 'aZ1', 'b1', 'b2');
  assert.equal(turns.countOf('a'), 6);
  assert.equal(turns.countOfPart({ owner: 'a', part: 'aX' }), 4);
  assert.deepEqual(
    [...turns.firsts()].map(([, thing]) => thing),
    ['aX1', 'aY1', 'aZ1', 'b1', 'b2'],
  );
  assert.deepEqual(
    [...turns.lines()],
    [
      ['aX1', 'aY1', 'aZ1', 'aX2', 'aX3', 'aX4'],
      ['b1', 'b2'],
    ],
  );
  assert.deepEqual(takeEverything(turns), ['aX1', 'b1', 'aY1', 'b2', 'aZ1', 'aX2', 'aX3', 'aX4']);
});

test('the turn of a part can be taken before others, and what must go is taken from anywhere', () => {
  const turns = queue('aX1', 'aX2', 'aY1', 'aY2', 'c1');
  assert.equal(turns.takeOf('a', 'aY'), 'aY1');
  assert.equal(turns.takeOf('a', 'aZ'), undefined);
  assert.equal(turns.takeOf('d'), undefined);
  assert.deepEqual(
    turns.takeIf((thing) => thing.endsWith('1')),
    ['c1', 'aX1'],
  );
  assert.deepEqual(turns.takeAll('a'), ['aX2', 'aY2']);
  assert.ok(turns.isEmpty);
});
