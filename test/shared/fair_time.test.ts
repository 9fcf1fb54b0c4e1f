/** Who is next of those that have had time of something. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FairTime, type TimeOwner } from '../../src/shared/fair_time.ts';

const pieceMs = 10;
const turns = 5_000;

/** Gives out turns to those who always want one. @returns how many each name of a group or owner got */
function giveOut(times: FairTime, owners: readonly TimeOwner[]): Map<string, number> {
  const got = new Map<string, number>();
  for (let count = 0; count < turns; count += 1) {
    const next = times.nextOf(owners) as TimeOwner;
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
  for (const got of giveOut(new FairTime(), owners).values()) assert.ok(Math.abs(got - turns / 4) <= 1);
});

test('attack: an app with any number of users gets less than five others with one user each', () => {
  const others = ['v', 'w', 'x', 'y', 'z'];
  for (const count of [20, 200]) {
    const got = giveOut(new FairTime(), [
      ...usersOf('hostile', count),
      ...others.flatMap((app) => usersOf(app, 1)),
    ]);
    const hostile = got.get('hostile') ?? 0;
    assert.ok(hostile < turns / 2, `${hostile}`);
    for (const app of others) assert.ok((got.get(app) ?? 0) > turns / 10 - 2, app);
  }
});

test('a user of an app who has had little goes before its others, and before those of others', () => {
  const times = new FairTime();
  const [quiet, ...busy] = usersOf('console', 20) as [TimeOwner, ...TimeOwner[]];
  const other = { owner: 'other', group: 'other app' };
  giveOut(times, [...busy, other]);
  assert.equal(times.nextOf([...busy, other, quiet]), quiet);
  assert.equal(times.nextOf([...busy, other, { owner: 'new', group: 'new app' }])?.owner, 'new');
});

/** @returns how many turns others get before the one */
function turnsBefore(times: FairTime, one: TimeOwner, others: readonly TimeOwner[], amount: number): number {
  for (let before = 0; before < turns; before += 1) {
    const next = times.nextOf([...others, one]) as TimeOwner;
    times.add(next, amount);
    if (next === one) return before;
  }
  return turns;
}

for (const [mode, isByTurns, amount, inARow] of [
  ['by turns', true, 1, 8],
  ['by time', false, pieceMs, 5],
] as const) {
  test(`${mode}, a user of a busy app waits for turns of others only as one of another app`, () => {
    const times = new FairTime(isByTurns);
    const [quiet, ...busy] = usersOf('busy', 11) as [TimeOwner, ...TimeOwner[]];
    const others = Array.from({ length: 10 }, (_none, index) => usersOf(`app ${index}`, 1)).flat();
    for (let count = 0; count < turns; count += 1)
      times.add(times.nextOf([...busy, ...others]) as TimeOwner, amount);
    // The app has four of 14 turns, so plain turns of its users would take 35.
    for (let count = 0; count < inARow; count += 1)
      assert.ok(turnsBefore(times, quiet, [...busy, ...others], amount) < 14, `${count}`);
  });

  test(`attack: ${mode}, new users of an app have no more than their credit before one who had more`, () => {
    const times = new FairTime(isByTurns);
    const victim = { owner: 'victim', group: 'app' };
    const rivals = usersOf('app', 10);
    for (let count = 0; count < turns; count += 1)
      times.add(times.nextOf([victim, ...rivals]) as TimeOwner, amount);
    const created = Array.from({ length: 100 }, (_none, index) => ({ owner: `new ${index}`, group: 'app' }));
    const most = created.length * (inARow + 3) + rivals.length;
    assert.ok(turnsBefore(times, victim, [...created, ...rivals], amount) <= most);
    assert.ok(turnsBefore(times, victim, [...created, ...rivals], amount) <= created.length + rivals.length);
  });
}

test('users of an app whose time was forgotten wait only for what new ones may be behind', () => {
  const times = new FairTime(true);
  const users = usersOf('app', 20) as [TimeOwner, ...TimeOwner[]];
  for (let count = 0; count < turns; count += 1) times.add(times.nextOf(users) as TimeOwner, 1);
  // These leave before they have a turn.
  for (let count = 0; count < 10_000; count += 1) times.catchUp(usersOf(`site ${count}`, 1));
  const created = Array.from({ length: 20 }, (_none, index) => ({ owner: `new ${index}`, group: 'app' }));
  assert.ok(turnsBefore(times, users[0], created, 1) <= created.length * 8);
});

test('attack: whoever used an app, or a user alone, leaves its users no debt to later ones', () => {
  for (const isOwn of [false, true]) {
    const times = new FairTime();
    const victim = { owner: 'victim', group: 'app' };
    const heavy = isOwn ? victim : { owner: 'heavy', group: 'app' };
    for (let count = 0; count < 1_000; count += 1) {
      times.begin(heavy);
      times.add(heavy, pieceMs);
    }
    const rivals = [...usersOf('rival', 1), ...usersOf('another', 1)];
    let before = 0;
    for (;;) {
      const next = times.nextOf([victim, ...rivals]) as TimeOwner;
      if (next === victim) break;
      times.add(next, pieceMs);
      before += 1;
    }
    // Whoever comes may be a quarter of a second behind whoever was there.
    const bound = isOwn ? 2 * (250 + 2 * pieceMs) : 2 * pieceMs;
    assert.ok(before * pieceMs <= bound, `${before * pieceMs} ms`);
  }
});

test('what one has had alone is forgotten, but for what anybody may be behind', () => {
  const times = new FairTime();
  const [light, fresh] = [...usersOf('light', 1), ...usersOf('fresh', 1)] as [TimeOwner, TimeOwner];
  for (let count = 0; count < 100; count += 1) {
    times.begin(light);
    times.add(light, pieceMs);
  }
  times.add(fresh, pieceMs);
  const got = giveOut(times, [light, fresh]);
  assert.ok((got.get('light') ?? 0) >= turns / 2 - 250 / pieceMs, `${got.get('light')}`);
});
