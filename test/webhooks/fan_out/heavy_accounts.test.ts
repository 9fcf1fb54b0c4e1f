/** Which accounts a fan-out pass skips, so that passes stay short. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FanOutPass, HeavyAccount } from '../../../src/webhooks/fan_out/fan_out.ts';
import { HeavyAccounts } from '../../../src/webhooks/fan_out/heavy_accounts.ts';

const limits = { accounts: 1_000, events: 2_000, deliveries: 5_000 };

/** A pass that took events of some accounts, all of which have more, and skipped others. */
function passOf(taken: HeavyAccount[], skipped: HeavyAccount[] = [], drained: string[] = []): FanOutPass {
  const visit = (account: string, hasMore: boolean) => ({ account, through: null, hasMore, otherDay: null });
  return {
    day: '2026-06-02',
    additions: [],
    events: [],
    rows: 0,
    visited: [
      ...[...taken, ...skipped].map(({ account }) => visit(account, !drained.includes(account))),
      ...drained.map((account) => visit(account, false)),
    ],
    heavy: taken,
    skipped,
    deferred: 0,
    found: null,
  };
}

const every = () => true;

/** A pass of this duration does not change the share. */
const usualMs = 20;

const heavy = (account: string, deliveries = 400): HeavyAccount => ({ account, deliveries });

/** Runs passes over accounts that always have events. @returns what each pass took */
function runPasses(accounts: HeavyAccounts, all: HeavyAccount[], count: number): string[][] {
  return Array.from({ length: count }, () => {
    const resting = accounts.turns(limits, every, 0).resting;
    const taken = all.filter(({ account }) => !resting.includes(account));
    const skipped = resting.map((account) => ({ account, deliveries: 0 }));
    accounts.learn(passOf(taken, skipped), 0, usualMs, false);
    return taken.map(({ account }) => account);
  });
}

test('heavy accounts take turns, a thousand deliveries in a pass', () => {
  const accounts = new HeavyAccounts();
  const all = ['a', 'b', 'c', 'd', 'e'].map((name) => heavy(name));
  accounts.learn(passOf(all), 0, usualMs, false);
  assert.deepEqual(runPasses(accounts, all, 5), [
    ['a', 'b'],
    ['c', 'd'],
    ['a', 'e'],
    ['b', 'c'],
    ['d', 'e'],
  ]);
});

test('heavy accounts that a pass does not visit keep their turn', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf(['a', 'b', 'c', 'd', 'e', 'f'].map((name) => heavy(name))), 0, usualMs, false);
  assert.deepEqual(
    accounts.turns(limits, (account) => account > 'b', 0),
    {
      resting: ['e', 'f'],
      entitled: ['c', 'd'],
      heavyShare: 1_000,
      skipsFrom: 1_000,
    },
  );
});

test('an account larger than the share of heavy accounts has its turn alone, less often than smaller ones', () => {
  const accounts = new HeavyAccounts();
  const all = [heavy('a', 4_000), heavy('b', 500)];
  accounts.learn(passOf(all), 0, usualMs, false);
  const passes = runPasses(accounts, all, 100);
  const [large, small] = ['a', 'b'].map((name) => passes.filter((taken) => taken.includes(name)).length);
  assert.equal((large ?? 0) + (small ?? 0), 100);
  // A turn of the smaller one takes two events: a quarter of the other’s deliveries.
  assert.deepEqual([large, small], [19, 81]);
});

test('an event for 40 lanes comes before events for 2,400 lanes, however many accounts have them', () => {
  const accounts = new HeavyAccounts();
  const large = Array.from({ length: 20 }, (_, index) => heavy(`${index}`, 2_400));
  accounts.learn(passOf([], large), 0, usualMs, false);
  runPasses(accounts, large, 30);
  for (let count = 0; count < 10; count += 1) {
    accounts.learn(passOf([], [heavy('small', 40)]), 0, usualMs, false);
    assert.deepEqual(accounts.turns(limits, every, 0).entitled, ['small']);
    accounts.learn(passOf([heavy('small', 40)], [], ['small']), 0, usualMs, false);
  }
  // The others have their turns one after the other.
  assert.equal(new Set(runPasses(accounts, large, 20).flat()).size, 20);
});

test('a slice of an event waits for the turns of smaller events, and these for slices', () => {
  const accounts = new HeavyAccounts();
  const all = [heavy('a', 1_000), heavy('b', 1_000)];
  accounts.learn(passOf([], [...all, heavy('sliced', 5_001)]), 0, usualMs, true);
  const order: string[] = [];
  let now = 0;
  for (let count = 0; count < 9; count += 1) {
    now += 10_000;
    const { entitled, resting } = accounts.turns(limits, every, now);
    const taken = all.filter(({ account }) => entitled.includes(account));
    order.push(...entitled);
    const skipped = resting.map((account) => ({ account, deliveries: 0 }));
    accounts.learn(passOf(taken, skipped), now + usualMs, usualMs, true);
    const sliced = accounts.nextSliced(now + usualMs, every);
    if (sliced === undefined) continue;
    order.push(sliced);
    accounts.learnSlice(sliced, true, now + 2 * usualMs, usualMs, true);
  }
  assert.deepEqual(order, ['a', 'b', 'sliced', 'a', 'b', 'sliced', 'a', 'b', 'sliced']);
});

test('heavy accounts that a pass left out come before those that it took', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a')], [heavy('b'), heavy('c')]), 0, usualMs, false);
  assert.deepEqual(accounts.turns(limits, every, 0).resting, ['a']);
});

test('while the node has enough to send, heavy accounts rest for three times the duration of their pass', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a')]), 1_000, 50, true);
  assert.deepEqual(accounts.turns(limits, every, 1_149).resting, ['a']);
  assert.equal(accounts.turnAt(1_000, every), 1_150);
  assert.deepEqual(accounts.turns(limits, every, 1_150).resting, []);
});

test('heavy accounts rest for a second at most', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a')]), 1_000, 4_000, true);
  assert.equal(accounts.turnAt(1_000, every), 2_000);
});

test('small turns of some cost do not wait for a rest, and do not prolong it', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a', 2_400)]), 1_000, 500, true);
  let turns = 0;
  for (let now = 1_001; now < 1_100; now += 1) {
    // New accounts are skipped, whatever they cost, and known from then on.
    assert.equal(accounts.turns(limits, every, now).skipsFrom, 0);
    accounts.learn(passOf([], [heavy('b', 40), heavy('c', 251)]), now, 1, true);
    const { entitled, heavyShare } = accounts.turns(limits, every, now);
    assert.ok(heavyShare <= 1_000);
    if (entitled.length === 0) continue;
    assert.deepEqual(entitled, ['b']);
    assert.equal(accounts.turnAt(now, every), now);
    turns += 1;
    accounts.learn(passOf([heavy('b', 40)], [], ['b']), now, 1, true);
  }
  assert.ok(turns > 0 && turns <= 25, `${turns}`);
  assert.equal(accounts.turnAt(1_100, every), 2_000);
});

test('heavy accounts do not rest while the node has little to send', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a')]), 1_000, 50, false);
  assert.deepEqual(accounts.turns(limits, every, 1_000).resting, []);
});

test('an account without further events is forgotten', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a'), heavy('b'), heavy('c')]), 0, usualMs, false);
  accounts.learn(passOf([heavy('a')], [], ['b']), 0, usualMs, false);
  assert.deepEqual(accounts.turns(limits, every, 0), {
    resting: [],
    entitled: ['c', 'a'],
    heavyShare: 1_000,
    skipsFrom: 1_000,
  });
});

test('an account whose next event is cheap leaves the queue of heavy accounts', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a', 1_000), heavy('b', 1_000)]), 0, usualMs, false);
  assert.deepEqual(accounts.turns(limits, every, 0).resting, ['b']);
  const pass = passOf([], [heavy('b', 0)]);
  pass.visited.push({ account: 'a', through: null, hasMore: true, otherDay: null });
  accounts.learn(pass, 0, usualMs, false);
  assert.deepEqual(accounts.turns(limits, every, 0).entitled, ['b']);
  assert.deepEqual(accounts.turns(limits, every, 0).resting, []);
});

test('accounts whose events do not fit in a pass take turns with slices, and passes skip them', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf([heavy('a')], [heavy('b', 5_001), heavy('c', 5_001)]), 0, usualMs, false);
  assert.deepEqual(accounts.turns(limits, every, 0).entitled, ['a']);
  assert.equal(accounts.nextSliced(0, every), 'b');
  accounts.learnSlice('b', true, 1_000, 50, true);
  assert.equal(accounts.nextSliced(1_100, every), undefined);
  assert.equal(accounts.slicedAt(every), 1_150);
  assert.equal(accounts.nextSliced(1_150, every), 'c');
  assert.equal(
    accounts.nextSliced(1_150, (account) => account === 'b'),
    'b',
  );
  assert.equal(
    accounts.slicedAt(() => false),
    Number.POSITIVE_INFINITY,
  );
});

test('the number of remembered accounts is limited', () => {
  const accounts = new HeavyAccounts();
  accounts.learn(passOf(Array.from({ length: 3_000 }, (_, index) => heavy(`${index}`))), 0, 10, true);
  const { resting, skipsFrom } = accounts.turns(limits, every, 0);
  assert.equal(resting.length, 1_000);
  // Nobody remembers the others, so they are not skipped.
  assert.equal(skipsFrom, limits.deliveries);
});

test('the share of heavy accounts shrinks after long passes and grows after short ones that leave events', () => {
  const accounts = new HeavyAccounts();
  const shareAfter = (durationMs: number, skipped: HeavyAccount[] = []) => {
    accounts.learn(passOf([heavy('a')], skipped, skipped.length === 0 ? ['a'] : []), 0, durationMs, false);
    return accounts.turns(limits, every, 0).heavyShare;
  };
  assert.equal(shareAfter(usualMs), 1_000);
  assert.equal(shareAfter(26), 500);
  assert.equal(shareAfter(900), 250);
  assert.equal(shareAfter(900), 250);
  // A short pass that took everything does not show that a larger one would be short.
  assert.equal(shareAfter(1), 250);
  assert.equal(shareAfter(1, [heavy('b')]), 500);
  for (let pass = 0; pass < 4; pass += 1) shareAfter(1, [heavy('b')]);
  assert.equal(shareAfter(1, [heavy('b')]), limits.deliveries / 2);
});

test('the share of heavy accounts is at most half of a pass that was made smaller', () => {
  assert.equal(new HeavyAccounts().turns({ ...limits, deliveries: 625 }, every, 0).heavyShare, 312);
});
