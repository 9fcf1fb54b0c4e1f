/**
 * Turns of building pages of events. Each event is signed again, which takes 60 ms for a thousand of them, in the thread that serves all
 * requests. So a page is built in slices of some milliseconds, and each turn of the event loop has one that had to wait. Next is the owner
 * that has used least of its share of that time: with equal turns, each slice of a small page waited for one of each large page. While connections
 * arrive, there are turns without a slice (http/overload/loop_rest.ts).
 *
 *   first slice → waiting, by owner → its turn: next slice → waiting …
 */

import { LoopRest } from '../../http/overload/loop_rest.ts';
import { FairTime } from '../../shared/fair_time.ts';
import { type GroupMember, OwnerTurns } from '../../shared/owner_turns.ts';

/** Milliseconds of a slice. */
const sliceMs = 3;

interface Slice {
  readonly reader: GroupMember;
  readonly begin: () => void;
}

const waiting = new OwnerTurns<Slice>();
const times = new FairTime();
const rest = new LoopRest();
let isPlanned = false;

/** The slices of one page. The first begins at once. */
export class PageSlices {
  readonly #reader: GroupMember;
  #begunAt = performance.now();

  /** @param reader who gets the page */
  constructor({ owner, part, group }: GroupMember) {
    this.#reader = { owner, part, group };
  }

  get isOver(): boolean {
    return performance.now() >= this.#begunAt + sliceMs;
  }

  /** Resolves when the next slice begins. */
  async next(): Promise<void> {
    const tookMs = performance.now() - this.#begunAt;
    times.add(this.#reader, tookMs);
    rest.count(tookMs);
    await takeTurn(this.#reader);
    this.#begunAt = performance.now();
  }
}

function takeTurn(reader: GroupMember): Promise<void> {
  return new Promise((begin) => {
    waiting.add(reader.owner, { reader, begin }, reader.part);
    plan();
  });
}

function plan(): void {
  if (isPlanned || waiting.isEmpty) return;
  isPlanned = true;
  setImmediate(() => {
    isPlanned = false;
    if (!rest.isDue()) beginNext();
    plan();
  });
}

function beginNext(): void {
  const next = times.nextOf([...waiting.firsts()].map(([, { reader }]) => reader));
  if (next !== undefined) waiting.takeOf(next.owner, next.part)?.begin();
}
