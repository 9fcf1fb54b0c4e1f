/** Who gets a place, who waits, and who is refused. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import Fastify from 'fastify';
import { openDatabase } from '../../src/database/database.ts';
import { Admission, Place } from '../../src/http/overload/admission.ts';
import { BodyBudget } from '../../src/http/overload/body_budget.ts';
import { type Caller, callerOfToken } from '../../src/http/overload/caller.ts';
import { LoadMonitor } from '../../src/http/overload/load_monitor.ts';
import { Paced } from '../../src/http/overload/paced.ts';
import { classifyRoutes, type Precedence, precedenceOf } from '../../src/http/overload/precedence.ts';
import type { Reason } from '../../src/http/overload/queue.ts';
import { undivided } from '../../src/shared/owner_turns.ts';
import { createRandom } from '../support/values/random.ts';
import { until } from '../support/webhooks/apps.ts';

const caller = (owner: string, group: string | null = null): Caller => ({ ...undivided(owner), group });

interface Request {
  place: Place;
  state: 'waiting' | 'admitted' | Reason;
}

function enter(admission: Admission, precedence: Precedence, by: Caller): Request {
  const request: Request = { place: new Place(admission, precedence, () => by), state: 'waiting' };
  const isAdmitted = request.place.enter(
    () => {
      request.state = 'admitted';
    },
    (reason) => {
      request.state = reason;
    },
  );
  if (isAdmitted) request.state = 'admitted';
  return request;
}

const flood = (admission: Admission, precedence: Precedence, by: Caller, count: number) =>
  Array.from({ length: count }, () => enter(admission, precedence, by));
const counted = (requests: readonly Request[], state: Request['state']) =>
  requests.filter((request) => request.state === state).length;

/** Moves the clock of the queues. An interval is 100 ms. */
function useClock(t: TestContext): (ms: number) => void {
  let now = 0;
  t.mock.timers.enable({ apis: ['setInterval'] });
  t.mock.method(performance, 'now', () => now);
  return (ms) => {
    now += ms;
    t.mock.timers.tick(ms);
  };
}

/** Ends so many requests that have a place. Others get their places. */
function serve(requests: readonly Request[], count: number): void {
  for (let ended = 0; ended < count; ended += 1)
    requests.find(({ place }) => place.state === 'held')?.place.leave();
}

const ofMany = (admission: Admission, precedence: Precedence, count: number, name = '') =>
  Array.from({ length: count }, (_none, index) => enter(admission, precedence, caller(`${name}${index}`)));

test('one caller gets 7/16 of the places of a class and of what waits for it', (t) => {
  const admission = new Admission(128);
  t.after(() => admission.stop());
  const flooding = flood(admission, 'ordinary', caller('one'), 2_000);
  // 112 places for the class, 2,048 waiting requests.
  assert.equal(counted(flooding, 'admitted'), 49);
  assert.equal(counted(flooding, 'waiting'), 896);
  assert.equal(counted(flooding, 'share'), 2_000 - 49 - 896);
  assert.equal(enter(admission, 'ordinary', caller('another')).state, 'admitted');
});

test('the accounts of one app share what the app gets, and networks what their site gets', (t) => {
  const admission = new Admission(128);
  t.after(() => admission.stop());
  const ofApp = Array.from({ length: 500 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`account ${index}`, 'app')),
  );
  assert.equal(counted(ofApp, 'admitted'), 49);
  assert.equal(enter(admission, 'ordinary', caller('account of another app', 'other')).state, 'admitted');
});

test('attack: one account leaves places, and room to wait, to the others of its app', (t) => {
  const admission = new Admission(128);
  t.after(() => admission.stop());
  const flooding = flood(admission, 'ordinary', caller('one', 'app'), 2_000);
  // Of 49 places and 896 that may wait, which the app may have.
  assert.equal(counted(flooding, 'admitted'), 42);
  assert.equal(counted(flooding, 'waiting'), 768);
  const others = Array.from({ length: 10 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`other ${index}`, 'app')),
  );
  assert.equal(counted(others, 'admitted'), 7);
  assert.equal(counted(others, 'waiting'), 3);
});

test('attack: one app of an account leaves places, and room to wait, to the account’s other apps', (t) => {
  const admission = new Admission(128);
  t.after(() => admission.stop());
  const ofApp = (app: string) => callerOfToken({ accountId: 'one', creatorId: null, clientId: app });
  const flooding = flood(admission, 'ordinary', ofApp('hostile'), 2_000);
  assert.equal(counted(flooding, 'admitted'), 42);
  assert.equal(counted(flooding, 'waiting'), 768);
  const others = Array.from({ length: 10 }, (_none, index) =>
    enter(admission, 'ordinary', ofApp(`${index}`)),
  );
  assert.equal(counted(others, 'admitted'), 7);
  assert.equal(counted(others, 'waiting'), 3);
  // They come before what has waited longer, and the account has no more for its many apps.
  serve(flooding, 3);
  assert.equal(counted(others, 'admitted'), 10);
  const more = Array.from({ length: 2_000 }, (_none, index) =>
    enter(admission, 'ordinary', ofApp(`more ${index}`)),
  );
  assert.equal(counted(more, 'admitted'), 0);
  assert.equal(counted([...flooding, ...others], 'waiting') + counted(more, 'waiting'), 896);
  assert.equal(enter(admission, 'ordinary', caller('another')).state, 'admitted');
});

test('requests of other classes never take the places of the first class', (t) => {
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const many = (precedence: Precedence) =>
    Array.from({ length: 200 }, (_none, index) =>
      enter(admission, precedence, caller(`${precedence} ${index}`)),
    );
  const others = [...many('last'), ...many('ordinary')];
  assert.equal(counted(others, 'admitted'), 14);
  const first = [enter(admission, 'first', caller('x')), enter(admission, 'first', caller('y'))];
  assert.equal(counted(first, 'admitted'), 2);
  // The next one waits, and goes before those that have waited longer.
  const next = enter(admission, 'first', caller('z'));
  assert.equal(next.state, 'waiting');
  others.find(({ state }) => state === 'admitted')?.place.leave();
  assert.equal(next.state, 'admitted');
});

test('the first class leaves a quarter of the places to the others', (t) => {
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const first = Array.from({ length: 100 }, (_none, index) => enter(admission, 'first', caller(`${index}`)));
  assert.equal(counted(first, 'admitted'), 12);
  assert.equal(enter(admission, 'ordinary', caller('x')).state, 'admitted');
});

test('attack: slow requests that hold more places than are left leave some to the first class', (t) => {
  const admission = new Admission(64);
  t.after(() => admission.stop());
  assert.equal(counted(ofMany(admission, 'ordinary', 100), 'admitted'), 56);
  // The database is slow.
  admission.places = 8;
  assert.equal(counted(ofMany(admission, 'first', 100, 'first '), 'admitted'), 6);
  assert.equal(counted(ofMany(admission, 'ordinary', 1, 'new '), 'admitted'), 0);
});

test('callers take turns, and the last class is not shut out', (t) => {
  const admission = new Admission(8);
  t.after(() => admission.stop());
  const busy = Array.from({ length: 8 }, (_none, index) => enter(admission, 'ordinary', caller(`${index}`)));
  const flooding = flood(admission, 'ordinary', caller('flood'), 10);
  const other = enter(admission, 'ordinary', caller('other'));
  const last = enter(admission, 'last', caller('list'));
  const running = [...busy.filter(({ state }) => state === 'admitted')];
  const admittedAfter = (request: Request) => {
    for (let ended = 1; ended < 40; ended += 1) {
      running.shift()?.place.leave();
      running.push(...flooding.filter((each) => each.state === 'admitted' && !running.includes(each)));
      if (request.state === 'admitted') return ended;
    }
    return Number.POSITIVE_INFINITY;
  };
  assert.ok(admittedAfter(other) <= 4);
  assert.ok(admittedAfter(last) <= 16);
});

/**
 * A busy thread with ordinary requests that are served and that wait: each caller holds its share, and some places are free.
 * @returns the requests
 */
function makeBusy(admission: Admission, pass: (ms: number) => void): Request[] {
  const callers = ['a', 'b', 'c', 'd'].map((name) => caller(name));
  const requests = callers.flatMap((each) => flood(admission, 'ordinary', each, 60));
  pass(100);
  assert.ok(admission.waitingOf('ordinary') > 100);
  assert.ok(admission.inProgress < admission.places - 10);
  admission.isBusy = true;
  return requests;
}

test('while the thread is busy and ordinary requests wait, one of nine is of the last class', (t) => {
  const pass = useClock(t);
  const admission = new Admission(64);
  t.after(() => admission.stop());
  const ordinary = makeBusy(admission, pass);
  const last = ofMany(admission, 'last', 100, 'list ');
  const before = counted(last, 'admitted');
  assert.equal(before, 2);
  // Each one that ends lets another one in, in its class or the other.
  serve([...ordinary, ...last], 90);
  const served = counted(last, 'admitted') - before;
  assert.ok(served >= 8 && served <= 12, `${served}`);
  // One that comes now does not overtake those that wait.
  assert.equal(enter(admission, 'last', caller('new list')).state, 'waiting');
  admission.isBusy = false;
  assert.equal(admission.inProgress, 56);
});

test('a busy thread serves the last class freely while ordinary requests get nowhere', (t) => {
  const pass = useClock(t);
  const admission = new Admission(64);
  t.after(() => admission.stop());
  makeBusy(admission, pass);
  const last = ofMany(admission, 'last', 10, 'list ');
  assert.equal(counted(last, 'admitted'), 2);
  pass(100);
  assert.equal(counted(last, 'admitted'), 10);
});

test('attack: paused requests of the last class need and take no turns when they resume', async (t) => {
  const pass = useClock(t);
  const admission = new Admission(64);
  t.after(() => admission.stop());
  const paused = ofMany(admission, 'last', 6, 'upload ');
  for (const { place } of paused) place.pause();
  const ordinary = makeBusy(admission, pass);
  const lists = ofMany(admission, 'last', 10, 'list ');
  const before = counted(lists, 'admitted');
  const resumed = paused.map(({ place }) => place.resume());
  assert.deepEqual(await Promise.all(resumed), Array(6).fill(null));
  serve([...paused, ...ordinary], 40);
  assert.ok(counted(lists, 'admitted') > before + 2);
});

test('the monitor says that the thread is busy, and no longer when it is not', async (t) => {
  const admission = new Admission(64);
  const db = openDatabase({ connectionString: 'postgres://nobody@127.0.0.1:1/none', connectionsMax: 1 });
  t.after(() => db.destroy());
  const said: boolean[] = [];
  t.mock.method(admission, 'isBusy', (isBusy: boolean) => void said.push(isBusy), { setter: true });
  const monitor = new LoadMonitor(admission, db);
  t.after(() => monitor.stop());
  monitor.start();
  while (!said.includes(true)) {
    for (const until = performance.now() + 30; performance.now() < until; );
    await new Promise((resolve) => setImmediate(resolve));
  }
  await until(
    async () => said.at(-1),
    (isBusy) => isBusy === false,
  );
});

test('a paused request gives its place to others, and takes one before those that had none', async (t) => {
  const admission = new Admission(8);
  t.after(() => admission.stop());
  const [paused, ...busy] = Array.from({ length: 7 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`${index}`)),
  );
  const waiting = [enter(admission, 'ordinary', caller('a')), enter(admission, 'ordinary', caller('b'))];
  assert.equal(counted(waiting, 'waiting'), 2);
  paused?.place.pause();
  assert.deepEqual(
    waiting.map(({ state }) => state),
    ['admitted', 'waiting'],
  );
  assert.equal(paused?.place.resumeNow(), false);
  assert.equal(paused?.place.state, 'paused');
  let resumed: Reason | null | undefined;
  const resuming = paused?.place.resume().then((reason) => {
    resumed = reason;
  });
  busy[0]?.place.leave();
  await resuming;
  assert.equal(resumed, null);
  assert.equal(waiting[1]?.state, 'waiting');
});

test('attack: many paused requests of one caller that resume at once get its share', async (t) => {
  const admission = new Admission(64);
  t.after(() => admission.stop());
  const paused = Array.from({ length: 40 }, () => {
    const request = enter(admission, 'ordinary', caller('one'));
    request.place.pause();
    return request;
  });
  const held = paused.filter(({ place }) => place.resumeNow());
  // 7/16 of 56 places.
  assert.equal(held.length, 25);
  const resuming = paused.filter(({ place }) => place.state === 'paused').map(({ place }) => place.resume());
  assert.equal(admission.waitingOf('ordinary'), 15);
  const others = ofMany(admission, 'ordinary', 20, 'other ');
  assert.equal(counted(others, 'admitted'), 20);
  for (const { place } of [...others, ...held]) place.leave();
  assert.deepEqual(new Set(await Promise.all(resuming)), new Set([null]));
});

test('a paused request takes a free place at once, unless another one has waited for it', async (t) => {
  const admission = new Admission(8);
  t.after(() => admission.stop());
  const [first, second, ...busy] = Array.from({ length: 7 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`${index}`)),
  );
  first?.place.pause();
  assert.equal(first?.place.resumeNow(), true);
  assert.equal(first?.place.state, 'held');
  assert.equal(admission.inProgress, 7);
  first?.place.pause();
  second?.place.pause();
  for (let index = 0; index < 2; index += 1) enter(admission, 'ordinary', caller(`new ${index}`));
  // A node that has fewer places offers none, also when one of them is left.
  admission.places = 4;
  const resuming = first?.place.resume();
  assert.equal(second?.place.resumeNow(), false);
  for (const { place } of busy) place.leave();
  assert.equal(await resuming, null);
  assert.equal(second?.place.resumeNow(), false);
  admission.places = 8;
  assert.equal(second?.place.resumeNow(), true);
});

test('a request whose client has gone is not admitted, and one that waits too long is refused', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] });
  const admission = new Admission(8);
  t.after(() => admission.stop());
  const busy = Array.from({ length: 7 }, (_none, index) => enter(admission, 'ordinary', caller(`${index}`)));
  const gone = enter(admission, 'ordinary', caller('gone'));
  const late = enter(admission, 'ordinary', caller('late'));
  gone.place.leave();
  t.mock.method(performance, 'now', () => 1e12);
  t.mock.timers.tick(100);
  assert.equal(late.state, 'deadline');
  assert.equal(gone.state, 'waiting');
  for (const { place } of busy) place.leave();
  assert.equal(admission.inProgress, 0);
  assert.equal(admission.waitingOf('ordinary'), 0);
});

test('a queue that stands is as long as what is served in 25 ms, until nothing waits', (t) => {
  const pass = useClock(t);
  const admission = new Admission(16);
  t.after(() => admission.stop());
  // 14 places are for the class, and 256 may wait.
  const all = ofMany(admission, 'ordinary', 214);
  assert.equal(counted(all, 'waiting'), 200);
  // It has just begun, so that it may be a burst.
  pass(100);
  assert.equal(counted(all, 'full'), 0);
  serve(all, 120);
  assert.equal(counted(all, 'waiting'), 80);
  pass(100);
  assert.equal(counted(all, 'waiting'), 30);
  assert.equal(counted(all, 'full'), 50);
  assert.ok(
    all.slice(0, 164).every(({ state }) => state !== 'full'),
    'the oldest stay',
  );
  // While it stands, it follows the rate, also that of a slower interval.
  const more = ofMany(admission, 'ordinary', 100, 'more ');
  assert.equal(counted(more, 'full'), 100);
  serve(all, 20);
  pass(100);
  assert.equal(admission.waitingOf('ordinary'), 10);
  const again = ofMany(admission, 'ordinary', 100, 'again ');
  assert.equal(counted(again, 'waiting'), 6);
  serve([...all, ...again], 30);
  pass(100);
  assert.equal(admission.waitingOf('ordinary'), 0);
  const burst = ofMany(admission, 'ordinary', 214, 'burst ');
  assert.equal(counted(burst, 'full'), 0);
});

test('a fast queue may be long, and a slow one has as many as there are places', (t) => {
  const pass = useClock(t);
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const fast = ofMany(admission, 'ordinary', 214);
  pass(100);
  serve(fast, 161);
  pass(100);
  assert.equal(counted(fast, 'full'), 0);
  serve(fast, 1);
  pass(100);
  assert.equal(admission.waitingOf('ordinary'), 16);
});

test('sign-in may wait longer than the API', (t) => {
  const pass = useClock(t);
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const first = ofMany(admission, 'first', 72);
  pass(100);
  serve(first, 10);
  assert.equal(counted(first, 'waiting'), 50);
  pass(100);
  assert.equal(counted(first, 'full'), 0);
});

test('attack: a burst of one app that the queue cannot serve keeps no other caller from waiting', (t) => {
  const pass = useClock(t);
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const others = ofMany(admission, 'ordinary', 14);
  const flooding = Array.from({ length: 300 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`account ${index}`, 'app')),
  );
  const early = enter(admission, 'ordinary', caller('early'));
  assert.equal(counted(flooding, 'waiting'), 112);
  pass(100);
  pass(100);
  assert.equal(early.state, 'waiting');
  assert.equal(counted(flooding, 'waiting'), 8);
  assert.equal(enter(admission, 'ordinary', caller('late')).state, 'waiting');
  assert.equal(enter(admission, 'ordinary', caller('account 0', 'app')).state, 'share');
  serve(others, 14);
  assert.equal(early.state, 'admitted');
});

test('attack: an account with many apps keeps no more in a queue that is shortened than another caller', (t) => {
  const pass = useClock(t);
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const others = ofMany(admission, 'ordinary', 14);
  const ofUser = (accountId: string, clientId: string) =>
    callerOfToken({ accountId, creatorId: null, clientId });
  const hostile = Array.from({ length: 120 }, (_none, index) =>
    enter(admission, 'ordinary', ofUser('hostile', `app ${index % 60}`)),
  );
  const users = Array.from({ length: 8 }, (_none, index) =>
    enter(admission, 'ordinary', ofUser(`user ${index}`, index % 2 === 0 ? 'popular' : 'other')),
  );
  assert.equal(counted(users, 'waiting'), 8);
  pass(100);
  pass(100);
  assert.ok(counted(hostile, 'full') > 0);
  assert.ok(counted(users, 'waiting') >= counted(hostile, 'waiting'));
  serve(others, 14);
});

test('a free place is for the next caller, also while others wait for a share of it', (t) => {
  const admission = new Admission(16);
  t.after(() => admission.stop());
  const flooding = flood(admission, 'ordinary', caller('one'), 300);
  assert.equal(counted(flooding, 'admitted'), 6);
  assert.equal(counted(flooding, 'waiting'), 112);
  assert.equal(enter(admission, 'ordinary', caller('another')).state, 'admitted');
});

test('fewer places end no request, and admit none until enough have ended', (t) => {
  const admission = new Admission(64);
  t.after(() => admission.stop());
  const running = Array.from({ length: 40 }, (_none, index) =>
    enter(admission, 'ordinary', caller(`${index}`)),
  );
  admission.places = 16;
  const next = enter(admission, 'ordinary', caller('next'));
  for (const { place } of running.slice(0, 26)) place.leave();
  assert.equal(next.state, 'waiting');
  running[26]?.place.leave();
  assert.equal(next.state, 'admitted');
});

test('whatever random callers do, no limit is exceeded and every request ends in one way', (t) => {
  const pass = useClock(t);
  const random = createRandom(7);
  const roll = (below: number) => Math.floor(random() * below);
  const admission = new Admission(32);
  t.after(() => admission.stop());
  const all: Request[] = [];
  for (let step = 0; step < 20_000; step += 1) {
    const precedence = (['first', 'ordinary', 'last'] as const)[roll(3)] ?? 'last';
    const admitted = all.filter(({ place }) => place.state === 'held');
    if (roll(3) === 0) admitted[roll(admitted.length)]?.place.leave();
    else all.push(enter(admission, precedence, caller(`${roll(12)}`, `app ${roll(3)}`)));
    if (roll(50) === 0) admission.places = 8 + roll(25);
    if (roll(30) === 0) pass(100);
    const held = all.filter(({ place }) => place.state === 'held').length;
    assert.equal(held, admission.inProgress);
    assert.ok(held <= 32);
    if (all.length > 400) all.splice(0, all.length, ...all.filter(({ place }) => place.state !== 'left'));
  }
  for (let rest = all; rest.length > 0; ) {
    for (const { place } of rest) if (place.state === 'held') place.leave();
    rest = rest.filter(({ place }) => place.state !== 'left');
  }
  assert.equal(admission.inProgress, 0);
  for (const precedence of ['first', 'ordinary', 'last'] as const)
    assert.equal(admission.waitingOf(precedence), 0);
});

test('bodies of all requests have a limit in bytes, and each caller a share of it', () => {
  const budget = new BodyBudget(1_000);
  const reserve = (owner: string, bytes: number) => budget.reserve(bytes, () => caller(owner));
  const own = [reserve('one', 200), reserve('one', 200)];
  assert.ok(own.every((reservation) => reservation !== null));
  assert.equal(reserve('one', 100), null);
  assert.ok(reserve('two', 500));
  assert.equal(reserve('three', 200), null);
  assert.ok(reserve('three', 100));
  for (const reservation of own) if (reservation !== null) budget.release(reservation);
  assert.equal(budget.bytes, 600);
});

test('a body that becomes larger has the same limits, and nothing changes if there is no room', () => {
  const budget = new BodyBudget(1_000);
  const own = budget.reserve(100, () => caller('one'));
  assert.equal(own?.growTo(50, caller('one')), true);
  assert.equal(budget.bytes, 100);
  assert.equal(own?.growTo(300, caller('one')), true);
  assert.equal(own?.growTo(1_100, caller('one')), false);
  assert.equal(budget.bytes, 300);
  own?.release();
  own?.release();
  assert.equal(budget.bytes, 0);
  assert.equal(own?.growTo(500, caller('one')), true);
  assert.equal(budget.bytes, 0);
});

test('attack: while others fill the memory, the body of somebody new can still become larger', () => {
  const budget = new BodyBudget(1_000_000);
  const reserve = (owner: string) => budget.reserve(1_000, () => caller(owner, 'app'));
  for (let count = 0; count < 6; count += 1) while (reserve(`owner-${count}`) !== null);
  const first = budget.reserve(500, () => caller('an address'));
  // Its token is known now. What it has reserved does not count as another body of the same.
  assert.equal(first?.growTo(900, caller('new', 'another app')), true);
  assert.equal(first?.caller.owner, 'new');
});

test('attack: the bodies of one account leave room for those of the others of its app', () => {
  const budget = new BodyBudget(1_000);
  const reserve = (owner: string, bytes: number, group: string) =>
    budget.reserve(bytes, () => caller(owner, group));
  while (reserve('one', 10, 'app') !== null);
  assert.equal(budget.bytes, 370);
  assert.ok(reserve('two', 100, 'app'));
  assert.equal(reserve('two', 100, 'app'), null);
  assert.ok(reserve('three', 100, 'other'));
});

test('attack: bodies that do not end are taken back for somebody new, first from whoever has most', () => {
  const budget = new BodyBudget(1_000);
  const taken: string[] = [];
  const fill = (owner: string, group: string, isArriving = true) => {
    for (;;) {
      const reservation = budget.reserve(10, () => caller(owner, group));
      if (reservation === null) return;
      if (isArriving) reservation.mayBeTakenBack(() => taken.push(owner));
    }
  };
  fill('one', 'app');
  fill('other', 'another app');
  const held = budget.bytes;
  assert.ok(budget.reserve(20, () => caller('new', 'app')));
  assert.deepEqual([...new Set(taken)], ['one']);
  assert.equal(budget.bytes, held + 20 - 10 * taken.length);
  // It has something now.
  const before = taken.length;
  fill('new', 'app');
  assert.equal(taken.length, before);
  // More than anybody has: what would not be enough is not taken.
  assert.equal(
    budget.reserve(900, () => caller('greedy', 'app')),
    null,
  );
  assert.equal(taken.length, before);
});

test('attack: an app with many users that has used up its share takes no bodies back of others', () => {
  const budget = new BodyBudget(1_000_000);
  const taken: string[] = [];
  const reserve = (owner: string, group: string, bytes: number) => {
    const reservation = budget.reserve(bytes, () => caller(owner, group));
    reservation?.mayBeTakenBack(() => taken.push(owner));
    return reservation;
  };
  assert.ok(reserve('honest', 'quiet', 8_000));
  // Each has little enough to count as having nothing.
  let users = 0;
  while (reserve(`user ${users}`, 'large', 900) !== null && users < 2_000) users += 1;
  assert.ok(users > 100 && users < 2_000, `${users}`);
  assert.equal(taken.length, 0);
  // Somebody else does not wait for those.
  for (let count = 0; count < 20; count += 1) assert.ok(reserve(`other ${count}`, 'quiet', 900));
  assert.ok(!taken.includes('honest'));
});

test('bodies that have arrived are not taken back, and none if that would not be enough', () => {
  const budget = new BodyBudget(1_000);
  let taken = 0;
  for (const [owner, isArriving] of [
    ['one', false],
    ['other', true],
  ] as const) {
    for (;;) {
      const reservation = budget.reserve(10, () => caller(owner, owner === 'one' ? 'app' : 'another app'));
      if (reservation === null) break;
      if (isArriving) reservation.mayBeTakenBack(() => (taken += 1));
    }
  }
  const held = budget.bytes;
  assert.equal(
    budget.reserve(260, () => caller('new', 'app')),
    null,
  );
  assert.deepEqual([taken, budget.bytes], [0, held]);
});

test('an account with small bodies gets more while another of its app has all it may', () => {
  const budget = new BodyBudget(1_000_000);
  const reserve = (owner: string, bytes: number) => budget.reserve(bytes, () => caller(owner, 'app'));
  while (reserve('one', 100) !== null);
  for (let count = 0; count < 4; count += 1) assert.ok(reserve('two', 300));
  assert.equal(reserve('two', 300), null);
});

test('routes have the class of what they are for', () => {
  const operation = {} as never;
  for (const [method, url, expected] of [
    ['GET', '/readyz', 'exempt'],
    ['POST', '/interaction/:uid', 'first'],
    ['GET', '/login/:provider/callback', 'first'],
    ['POST', '/oauth/token', 'first'],
    ['POST', '/oauth/revoke', 'first'],
    ['POST', '/account/withdraw', 'first'],
    ['DELETE', '/grants/:id', 'first'],
    ['DELETE', '/admin/grants/:id', 'first'],
    ['PATCH', '/accounts/:id', 'first'],
    ['DELETE', '/subscriptions/:id', 'first'],
    ['POST', '/oauth/introspect', 'ordinary'],
    ['POST', '/oauth/register', 'ordinary'],
    ['POST', '/events', 'ordinary'],
    ['GET', '/articles/:id', 'ordinary'],
    ['DELETE', '/articles/:id', 'ordinary'],
    ['GET', '/subscriptions/:id/events', 'ordinary'],
    ['GET', '/articles', 'last'],
    ['GET', '/subscriptions/:id/deliveries', 'last'],
    ['GET', '/console/*', 'last'],
    ['GET', '/docs/', 'last'],
    ['GET', '/admin/audit', 'last'],
  ] as const) {
    assert.equal(precedenceOf(method, url, operation), expected, `${method} ${url}`);
  }
});

test('a request has the class of its route also before the route is looked up', async (t) => {
  const app = Fastify();
  t.after(() => app.close());
  const classOf = classifyRoutes(app);
  const operation = {} as never;
  for (const url of [
    '/articles',
    '/articles/:id',
    '/subscriptions/:id/events',
    '/subscriptions/:id/deliveries',
  ])
    app.get(url, { config: { operation } }, async () => {});
  app.post('/articles', { config: { operation } }, async () => {});
  app.get('/console/*', async () => {});
  await app.ready();
  for (const [method, path, expected] of [
    ['GET', '/articles', 'last'],
    ['HEAD', '/articles', 'last'],
    ['POST', '/articles', 'ordinary'],
    ['GET', '/articles/1', 'ordinary'],
    ['GET', '/articles/1/x', 'ordinary'],
    ['GET', '/subscriptions/1/events', 'ordinary'],
    ['GET', '/subscriptions/1/deliveries', 'last'],
    ['GET', '/console/a/b', 'last'],
    ['GET', '/livez', 'exempt'],
    ['POST', '/oauth/token', 'first'],
    ['DELETE', '/grants/1', 'first'],
    ['GET', '/nothing', 'ordinary'],
  ] as const) {
    assert.equal(classOf(method, path), expected, `${method} ${path}`);
  }
});

test('paced tasks all run, in their order', async () => {
  const paced = new Paced();
  const done: number[] = [];
  for (let index = 0; index < 5_000; index += 1) paced.add(() => done.push(index));
  assert.equal(done.length, 0);
  await until(
    async () => done.length,
    (count) => count === 5_000,
  );
  assert.deepEqual(
    done,
    done.toSorted((a, b) => a - b),
  );
  await new Promise<void>((resolve) => paced.add(resolve));
});
