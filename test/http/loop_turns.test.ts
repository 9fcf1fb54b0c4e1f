/** Turns of the event loop while connections arrive in each of them. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { countAccepted } from '../../src/http/overload/loop_rest.ts';
import { LoopTurns } from '../../src/http/overload/loop_turns.ts';
import { undivided } from '../../src/shared/owner_turns.ts';

/** Milliseconds of a piece of work, and of a turn without one. */
const pieceMs = 2;
const emptyMs = 0.05;
const runMs = 4_000;
const owner = () => undivided('owner');

/** A clock that only work moves. */
class Clock {
  now = 1_000_000;

  constructor(t: TestContext) {
    t.mock.method(performance, 'now', () => this.now);
  }

  /** Runs turns of the event loop for so long, each of which accepts a connection. @param fill called before each */
  async run(ms: number, fill: () => void): Promise<void> {
    const end = this.now + ms;
    while (this.now < end) {
      this.now += emptyMs;
      countAccepted();
      fill();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}

/** Work that always waits. */
class Load {
  #waiting = 0;
  done = 0;

  fill(add: (work: () => void) => void, work: () => void): void {
    for (; this.#waiting < 20; this.#waiting += 1) {
      add(() => {
        this.#waiting -= 1;
        this.done += 1;
        work();
      });
    }
  }
}

test('attack: connections in each turn leave every kind of work as much time', async (t) => {
  const clock = new Clock(t);
  const kinds = Array.from({ length: 3 }, () => ({ turns: new LoopTurns(), load: new Load() }));
  await clock.run(runMs, () => {
    for (const { turns, load } of kinds)
      load.fill(
        (work) => turns.add(owner, work),
        () => {
          clock.now += pieceMs;
        },
      );
  });
  const done = kinds.map(({ load }) => load.done);
  // A quarter of the time, or more, because a rest has at most 30 ms.
  const fair = runMs / 4 / pieceMs / kinds.length;
  assert.ok(Math.min(...done) > 0.8 * fair && Math.max(...done) < 1.2 * Math.min(...done), `${done}`);
});

test('work rests for three times as long as it took, also if one turn is within another', async (t) => {
  const clock = new Clock(t);
  const [outer, inner] = [new LoopTurns(), new LoopTurns()];
  const load = new Load();
  await clock.run(runMs, () =>
    load.fill(
      (work) => outer.add(owner, () => inner.add(owner, work)),
      () => {
        clock.now += pieceMs;
      },
    ),
  );
  const part = (load.done * pieceMs) / runMs;
  assert.ok(part > 0.2 && part < 0.3, `${part}`);
});

test('without connections, work does not rest', async (t) => {
  const clock = new Clock(t);
  const turns = new LoopTurns();
  for (let count = 0; count < 100; count += 1) {
    turns.add(owner, () => {
      clock.now += pieceMs;
    });
  }
  for (let turn = 0; turn < 30; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(clock.now, 1_000_000 + 100 * pieceMs);
});

test('attack: large pieces of many owners do not delay each small one of another', async (t) => {
  const clock = new Clock(t);
  const turns = new LoopTurns(0.5);
  const loads = Array.from({ length: 20 }, () => new Load());
  const pass = async (isOver: () => boolean) => {
    while (!isOver()) {
      for (const [index, load] of loads.entries())
        load.fill(
          (work) => turns.add(() => undivided(`large ${index}`), work),
          () => {
            clock.now += 4;
          },
        );
      await new Promise((resolve) => setImmediate(resolve));
    }
  };
  const begunAt = clock.now;
  await pass(() => clock.now > begunAt + 1_000);
  let left = 20;
  const addedAt = clock.now;
  for (let count = left; count > 0; count -= 1) {
    turns.add(
      () => undivided('small'),
      () => {
        clock.now += 0.1;
        left -= 1;
      },
    );
  }
  await pass(() => left === 0);
  // Without regard for the time of pieces it would be twenty rounds of 80 ms. With it, a round takes 10 ms on average.
  assert.ok(clock.now - addedAt < 400, `${clock.now - addedAt} ms`);
});
