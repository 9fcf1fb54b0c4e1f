/**
 * Work of the event loop in turns: some milliseconds of it at once, and what is left waits, by turns of its owners. A turn is one piece. Where that is asked for,
 * an owner lets turns pass after a long piece: otherwise one with small pieces would wait for a long one of each of the others, for each of its own.
 *
 * While connections arrive, turns with work are followed by turns without it (loop_rest.ts).
 *
 *   added → done at once, or, if this turn has no time left: waiting, by owner → its turn → done
 */

import { asServer } from '../../database/connection_user.ts';
import { OwnerTurns, type Sharer } from '../../shared/owner_turns.ts';
import { LoopRest } from './loop_rest.ts';

/** Milliseconds of a turn of the event loop for work. */
const turnMs = 10;

export class LoopTurns {
  readonly #waiting = new OwnerTurns<() => void>();
  /** Who had the last turn. */
  #owner: string | undefined;
  /** Milliseconds for which owners that wait let turns pass. */
  readonly #debts = new Map<string, number>();
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
  readonly #ownerMs: number;

  /** @param ownerMs milliseconds of a turn of an owner. For what a piece takes beyond, its owner lets turns pass */
  constructor(ownerMs = Number.POSITIVE_INFINITY) {
    this.#ownerMs = ownerMs;
  }

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
    this.#owner = undefined;
    if (owner === undefined) return;
    const debt = this.#debtOf(owner) + this.#spentMs - this.#begunAtMs - this.#ownerMs;
    if (debt > 0 && this.#waiting.countOf(owner) > 0) this.#debts.set(owner, debt);
    else this.#debts.delete(owner);
  }

  #next(): (() => void) | undefined {
    for (let owner = this.#waiting.next; owner !== undefined; owner = this.#waiting.next) {
      const debt = this.#debtOf(owner);
      if (debt < this.#ownerMs) {
        this.#owner = owner;
        return this.#waiting.takeOf(owner);
      }
      this.#debts.set(owner, debt - this.#ownerMs);
      this.#waiting.postpone(owner);
    }
    return undefined;
  }

  #debtOf(owner: string): number {
    return this.#debts.get(owner) ?? 0;
  }
}

/** Does the work in this turn of the event loop, after all promises that need no other turn. */
function afterPromises(work: () => void): void {
  asServer(() => queueMicrotask(() => process.nextTick(work)));
}
