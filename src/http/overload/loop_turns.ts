/**
 * Work of the event loop in turns: some milliseconds of it at once, and what is left waits, by turns of its owners. Their turns have equal time, not
 * equal numbers (surplus round robin): an owner with much to do in small pieces would wait for a large piece of each of the others, for each of its own.
 *
 * While connections arrive, turns with work are followed by turns without it (loop_rest.ts).
 *
 *   added → done at once, or, if this turn has no time left: waiting, by owner → its turn → done
 */

import { asServer } from '../../database/connection_user.ts';
import { OwnerTurns, type Sharer } from '../../shared/owner_turns.ts';
import { LoopRest } from './loop_rest.ts';

/** Milliseconds of a turn of the event loop for work, and of a turn of an owner, who may end its last piece. */
const turnMs = 10;
const ownerMs = 0.5;

export class LoopTurns {
  readonly #waiting = new OwnerTurns<() => void>();
  /** Whose turn it is. */
  #owner: string | undefined;
  /** What each that waits has left of its turn. It is less than nothing after a piece that was larger, for which it lets turns pass. */
  readonly #left = new Map<string, number>();
  /** What this turn of the event loop has spent, and had spent when the last work that waited began. */
  #spentMs = 0;
  #begunAtMs = 0;
  /** When the last work returned. */
  #doneAt = 0;
  readonly #rest = new LoopRest();
  /** Whether these turns are without work. */
  #isResting = false;
  #isCounting = false;
  #isPlanned = false;

  /** @param ownerOf called if the work waits @param work called once, at once or later */
  add(ownerOf: () => Sharer, work: () => void): void {
    const isFree = !this.#isResting && this.#spentMs < turnMs && this.#waiting.isEmpty;
    if (isFree) this.#do(work);
    else this.queue(ownerOf(), work);
    this.#plan();
  }

  /** @param work called later, as far as this turn of the event loop allows: before it waits for anything */
  queue({ owner, part }: Sharer, work: () => void): void {
    this.#waiting.add(owner, () => this.#do(work), part);
    this.#plan();
  }

  #do(work: () => void): void {
    const startedAt = performance.now();
    try {
      work();
    } finally {
      this.#doneAt = performance.now();
      this.#spend(this.#doneAt - startedAt);
      this.#countPromises();
    }
  }

  #spend(ms: number): void {
    this.#spentMs += ms;
    this.#rest.count(ms);
  }

  /** Work continues in promises, some of which need nothing else than the processor. */
  #countPromises(): void {
    if (this.#isCounting) return;
    this.#isCounting = true;
    afterPromises(() => {
      this.#isCounting = false;
      this.#spend(performance.now() - this.#doneAt);
    });
  }

  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    asServer(() => setImmediate(() => this.#take()));
  }

  #take(): void {
    this.#isPlanned = false;
    this.#isResting = this.#rest.isDue();
    if (this.#isResting) {
      this.#plan();
      return;
    }
    this.#spentMs = 0;
    this.#begunAtMs = 0;
    this.#takeNext();
  }

  #takeNext(): void {
    this.#charge();
    const next = this.#spentMs < turnMs ? this.#next() : undefined;
    this.#begunAtMs = this.#spentMs;
    try {
      next?.();
    } finally {
      if (next !== undefined) afterPromises(() => this.#takeNext());
      else if (this.#spentMs > 0) this.#plan();
    }
  }

  /** Counts what the last work took. */
  #charge(): void {
    const owner = this.#owner;
    if (owner === undefined) return;
    const left = this.#leftOf(owner) - (this.#spentMs - this.#begunAtMs);
    if (this.#waiting.countOf(owner) > 0) this.#left.set(owner, left);
    else this.#left.delete(owner);
    if (left <= 0 || !this.#left.has(owner)) this.#owner = undefined;
  }

  #next(): (() => void) | undefined {
    while (this.#owner === undefined) {
      const owner = this.#waiting.next;
      if (owner === undefined) return undefined;
      const left = Math.min(this.#leftOf(owner) + ownerMs, ownerMs);
      this.#left.set(owner, left);
      if (left > 0) this.#owner = owner;
      else this.#waiting.postpone(owner);
    }
    return this.#waiting.takeOf(this.#owner);
  }

  #leftOf(owner: string): number {
    return this.#left.get(owner) ?? 0;
  }
}

/** Does the work in this turn of the event loop, after all promises that need no other turn. */
function afterPromises(work: () => void): void {
  asServer(() => queueMicrotask(() => process.nextTick(work)));
}
