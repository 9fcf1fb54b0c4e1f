/** Short bursts of callers with little to do, while others always have requests that wait. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { Admission, Place } from '../../src/http/overload/admission.ts';
import type { Caller } from '../../src/http/overload/caller.ts';
import type { Reason } from '../../src/http/overload/queue.ts';
import { undivided } from '../../src/shared/owner_turns.ts';

/** Milliseconds of a step of these tests, and the requests that end in it. */
const stepMs = 10;
const servedInStep = 26;

interface Request {
  by: Caller;
  place: Place;
  state: 'waiting' | 'admitted' | 'ended' | Reason;
  /** Whether it had to wait. */
  hasWaited: boolean;
  /** For how many more steps it needs a place, without time of the node but in the last one. */
  steps: number;
}

const caller = (owner: string, group: string | null = null): Caller => ({ ...undivided(owner), group });
const isLive = ({ state }: Request) => state === 'waiting' || state === 'admitted';

/** A node whose places are all in use. */
class BusyNode {
  readonly #admission = new Admission(64);
  readonly #pass: () => void;
  readonly #loads: (() => void)[] = [];
  requests: Request[] = [];
  /** How many requests each owner, and each group, was served. */
  readonly served = new Map<string | null, number>();

  constructor(t: TestContext) {
    let now = 0;
    t.mock.timers.enable({ apis: ['setInterval'] });
    t.mock.method(performance, 'now', () => now);
    t.after(() => this.#admission.stop());
    this.#pass = () => {
      now += stepMs;
      t.mock.timers.tick(stepMs);
    };
  }

  enter(by: Caller, steps = 1): Request {
    const place = new Place(this.#admission, 'ordinary', () => by);
    const request: Request = { by, place, state: 'waiting', hasWaited: false, steps };
    const admit = () => {
      request.state = 'admitted';
    };
    const isAdmitted = place.enter(admit, (reason) => {
      request.state = reason;
    });
    if (isAdmitted) admit();
    request.hasWaited = request.state === 'waiting';
    this.requests.push(request);
    return request;
  }

  /** The caller sends a request in each step from now on. */
  send(by: Caller): void {
    this.#loads.push(() => this.enter(by));
  }

  /** These callers have so many requests at a time from now on. */
  keep(callers: readonly Caller[], atOnce: number, steps = 1): void {
    const order = [...callers];
    this.#loads.push(() => {
      order.push(...order.splice(0, 1));
      for (const by of order) {
        const own = this.requests.filter((request) => request.by === by && isLive(request)).length;
        for (let count = own; count < atOnce; count += 1) this.enter(by, steps);
      }
    });
  }

  /** @returns the requests that were refused after a wait */
  run(steps: number): Request[] {
    const displaced: Request[] = [];
    for (let step = 0; step < steps; step += 1) {
      const held = this.requests.filter(({ state }) => state === 'admitted');
      const ending = held.filter(({ steps }) => steps <= 1).slice(0, servedInStep);
      for (const request of held) request.steps -= 1;
      for (const request of ending) {
        request.state = 'ended';
        for (const name of [request.by.owner, request.by.group])
          this.served.set(name, (this.served.get(name) ?? 0) + 1);
        request.place.leave();
      }
      for (const load of this.#loads) load();
      this.#pass();
      displaced.push(...this.requests.filter(({ state, hasWaited }) => hasWaited && state === 'share'));
      this.requests = this.requests.filter(isLive);
    }
    return displaced;
  }
}

const busyCallers = (count: number, group: string | null = null) =>
  Array.from({ length: count }, (_none, index) => caller(`busy ${index}`, group));
const statesOf = (requests: readonly Request[]) => new Set(requests.map(({ state }) => state));

test('attack: twenty busy callers do not keep a burst of another one from waiting', (t) => {
  const node = new BusyNode(t);
  node.keep(busyCallers(20), 12);
  node.run(200);
  // Callers with as much to do do not displace each other.
  assert.deepEqual(node.run(200), []);
  const burst = Array.from({ length: 8 }, () => node.enter(caller('stranger')));
  const displaced = node.run(30);
  assert.deepEqual(statesOf(burst), new Set(['ended']));
  assert.ok(displaced.length > 0 && displaced.every(({ by }) => by.owner !== 'stranger'));
});

test('a burst displaces the newest requests of busy callers', (t) => {
  const node = new BusyNode(t);
  const busy = busyCallers(20);
  node.keep(busy, 12);
  node.run(200);
  const waiting = node.requests.filter(({ state }) => state === 'waiting');
  for (let count = 0; count < 8; count += 1) node.enter(caller('stranger'));
  const areDisplaced = busy.map((by) =>
    waiting.filter((request) => request.by === by).map(({ state }) => state === 'share'),
  );
  assert.ok(areDisplaced.some((each) => each.length > 1 && each.includes(true)));
  for (const each of areDisplaced) assert.deepEqual(each, each.toSorted());
});

test('a caller with little to do has only a burst in place of others', (t) => {
  const node = new BusyNode(t);
  node.keep(busyCallers(20), 12);
  node.run(200);
  const many = Array.from({ length: 40 }, () => node.enter(caller('stranger')));
  assert.equal(many.filter(({ state }) => state === 'waiting').length, 8);
  assert.ok(!many.every(isLive));
});

test('attack: callers with few long requests do not take the places of one with many short ones', (t) => {
  const node = new BusyNode(t);
  node.keep(busyCallers(20), 12, 10);
  const publisher = caller('publisher');
  for (let count = 0; count < 3; count += 1) node.send(publisher);
  node.run(500);
  node.served.clear();
  const displaced = node.run(1_000).filter(({ by }) => by === publisher);
  const served = node.served.get('publisher') ?? 0;
  // Two in each step are within its share.
  assert.ok(served > 1_900, `${served}`);
  assert.deepEqual(displaced, []);
});

test('attack: very many callers with little to do displace few of the requests of one with more', (t) => {
  const node = new BusyNode(t);
  const busy = caller('busy');
  node.keep([busy], 40);
  let others = 0;
  node.run(200);
  node.served.clear();
  let displaced = 0;
  for (let step = 0; step < 500; step += 1) {
    for (let count = 0; count < 40; count += 1) node.enter(caller(`light ${others++}`));
    displaced += node.run(1).filter(({ by }) => by === busy).length;
  }
  const served = node.served.get('busy') ?? 0;
  assert.ok(displaced > 0 && displaced <= served / 16 + 8, `${displaced} of ${served}`);
});

test('a burst of an account takes the places of a busy one of its own app', (t) => {
  const node = new BusyNode(t);
  node.keep(busyCallers(20, 'app'), 12);
  node.run(200);
  const burst = Array.from({ length: 8 }, () => node.enter(caller('stranger', 'app')));
  node.run(30);
  assert.deepEqual(statesOf(burst), new Set(['ended']));
});

test('attack: thousands of users of one app displace busy callers until they have as much', (t) => {
  const node = new BusyNode(t);
  node.keep(busyCallers(5), 20);
  node.run(200);
  let users = 0;
  const sendAndRun = (steps: number) => {
    for (let step = 0; step < steps; step += 1) {
      for (let count = 0; count < 50; count += 1) node.enter(caller(`user ${users++}`, 'hostile'));
      node.run(1);
    }
  };
  // Until it is known how much they have together.
  sendAndRun(500);
  node.served.clear();
  sendAndRun(500);
  const servedOf = (name: string) => node.served.get(name) ?? 0;
  for (const { owner } of busyCallers(5)) {
    assert.ok(servedOf(owner) > 0.8 * servedOf('hostile'), JSON.stringify([...node.served].slice(0, 10)));
  }
});
