/** Who is next of those that have had time of something. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RecentTime, type TimeOwner } from '../../src/shared/recent_time.ts';

const pieceMs = 10;
const turns = 2_000;

/** Gives out turns to those who always want one. @returns how many each name of a group or owner got */
function giveOut(times: RecentTime, owners: readonly TimeOwner[]): Map<string, number> {
  const got = new Map<string, number>();
  for (let count = 0; count < turns; count += 1) {
    const next = times.leastOf(owners) as TimeOwner;
    times.add(next, pieceMs);
    const name = next.group ?? next.owner;
    got.set(name, (got.get(name) ?? 0) + 1);
  }
  return got;
}

const usersOf = (app: string, count: number): TimeOwner[] =>
  Array.from({ length: count }, (_none, index) => ({ owner: `${app} ${index}`, group: app }));

test('owners without a group get equally much', () => {
  const owners = ['a', 'b', 'c', 'd'].map((owner) => ({ owner, group: null }));
  for (const got of giveOut(new RecentTime(), owners).values()) assert.ok(Math.abs(got - turns / 4) <= 1);
});

test('attack: an app with any number of users gets less than five others with one user each', () => {
  const others = ['v', 'w', 'x', 'y', 'z'];
  for (const count of [20, 200]) {
    const got = giveOut(new RecentTime(), [
      ...usersOf('hostile', count),
      ...others.flatMap((app) => usersOf(app, 1)),
    ]);
    const hostile = got.get('hostile') ?? 0;
    assert.ok(hostile < turns / 2, `${hostile}`);
    for (const app of others) assert.ok((got.get(app) ?? 0) > turns / 10 - 2, app);
  }
});

test('a user of an app who has had little goes before its others, and before those of others', () => {
  const times = new RecentTime();
  const [quiet, ...busy] = usersOf('console', 20) as [TimeOwner, ...TimeOwner[]];
  const other = { owner: 'other', group: 'other app' };
  giveOut(times, [...busy, other]);
  assert.equal(times.leastOf([...busy, other, quiet]), quiet);
  assert.equal(times.leastOf([...busy, other, { owner: 'new', group: 'new app' }])?.owner, 'new');
});
