/** Work of which a few pieces run at once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { LimitedWork, NoTurnError, turnWaitMsMax } from '../../src/shared/limited_work.ts';

test('whoever has had no time goes first, and no more pieces run at once than may', async () => {
  const work = new LimitedWork(2);
  const begun: string[] = [];
  let running = 0;
  const ends: (() => void)[] = [];
  const run = (owner: string, name: string) =>
    work.run(owner, async () => {
      begun.push(name);
      running += 1;
      assert.ok(running <= 2);
      await new Promise<void>((resolve) => ends.push(resolve));
      running -= 1;
      return name;
    });
  const all = ['a1', 'a2', 'a3', 'a4', 'b1', 'c1'].map((name) => run(name.slice(0, 1), name));
  for (let count = 0; count < all.length; count += 1) {
    (ends[count] as () => void)();
    await new Promise(setImmediate);
  }
  assert.deepEqual(begun, ['a1', 'a2', 'b1', 'c1', 'a3', 'a4']);
  assert.deepEqual(await Promise.all(all), ['a1', 'a2', 'a3', 'a4', 'b1', 'c1']);
});

test('a dozen owners with work all the time hold up one with little by one piece', async () => {
  const work = new LimitedWork(1);
  const ran: string[] = [];
  const run = (owner: string, ms: number) =>
    work.run(owner, async () => {
      await sleep(ms);
      ran.push(owner);
    });
  const busy = Array.from({ length: 12 }, (_none, index) => `busy ${index}`);
  await Promise.all(busy.map((owner) => run(owner, 20)));
  const again = busy.map((owner) => run(owner, 20));
  await Promise.all([...again, run('other', 1)]);
  assert.equal(ran.indexOf('other'), busy.length + 1);
});

test('work that fails gives its place to the next', async () => {
  const work = new LimitedWork(1);
  const failing = work.run('a', async () => Promise.reject(new Error('no')));
  const next = work.run('a', async () => 'done');
  await assert.rejects(failing, /no/);
  assert.equal(await next, 'done');
  assert.equal(await work.run('b', async () => 'again'), 'again');
});

test('with shares, an owner whose pieces hang leaves places to others, and gets more when others end', async () => {
  const work = new LimitedWork(16, true);
  const ends: (() => void)[] = [];
  const run = (owner: string) => work.run(owner, () => new Promise<void>((resolve) => ends.push(resolve)));
  const hanging = Array.from({ length: 40 }, () => run('a'));
  assert.equal(ends.length, 7);
  assert.equal(work.waitingOf('a'), 33);
  for (const owner of ['b', 'c', 'd']) await work.run(owner, async () => {});
  // Others with something running share what is left.
  const others = Array.from({ length: 8 }, () => run('b'));
  assert.equal(ends.length, 7 + 4);
  while (ends.length > 0) {
    (ends.shift() as () => void)();
    await new Promise(setImmediate);
  }
  await Promise.all([...hanging, ...others]);
  assert.equal(work.waitingOf('a'), 0);
});

test('what gets no turn for too long is given up, and what waits after it has its turn', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const work = new LimitedWork(1);
  const hanging = Promise.withResolvers<void>();
  const first = work.run('a', () => hanging.promise);
  let begun = 0;
  const run = (owner: string) => work.run(owner, async () => (begun += 1), owner);
  const late = run('b');
  t.mock.timers.tick(turnWaitMsMax - 1);
  const next = run('c');
  work.join('d', 'b');
  t.mock.timers.tick(1);
  await assert.rejects(late, NoTurnError);
  work.join('e', 'b');
  hanging.resolve();
  await first;
  assert.equal(await next, 1);
  assert.equal(await run('b'), 2);
  assert.ok(work.isIdle);
});

test('parts of an owner take turns, and one leaves others some of what may wait', async () => {
  const work = new LimitedWork(1);
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const sharerOf = (part: string) => ({ owner: 'a', part: `a ${part}`, group: null });
  const run = (part: string) =>
    work.run(sharerOf(part), async () => {
      begun.push(part);
      await new Promise<void>((resolve) => ends.push(resolve));
    });
  const all = [run('x')];
  for (; !work.isFull(sharerOf('x'), 4); ) all.push(run('x'));
  assert.equal(work.waitingOf('a'), 4);
  assert.ok(!work.isFull(sharerOf('y'), 4));
  all.push(run('y'), run('z'));
  for (const _piece of all) {
    ends.shift()?.();
    await new Promise(setImmediate);
  }
  await Promise.all(all);
  assert.deepEqual(begun, ['x', 'x', 'y', 'z', 'x', 'x', 'x']);
});

test('the time of an app counts for all its users, and not for other apps of an account', async () => {
  const work = new LimitedWork(1);
  const ran: string[] = [];
  const run = (owner: string, app: string, ms: number) =>
    work.run({ owner, part: `${owner} ${app}`, group: app }, async () => {
      await sleep(ms);
      ran.push(`${owner} ${app}`);
    });
  for (let user = 0; user < 4; user += 1) await run(`user ${user}`, 'busy', 100);
  await run('other', 'small', 1);
  ran.length = 0;
  const running = run('running', 'any', 1);
  await Promise.all([
    running,
    run('new', 'busy', 1),
    run('other', 'small', 1),
    run('new', 'good', 1),
    run('newer', 'busy', 1),
  ]);
  assert.deepEqual(ran, ['running any', 'new good', 'other small', 'newer busy', 'new busy']);
});
