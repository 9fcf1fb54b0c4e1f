/**
 * Work of the event loop in turns: some milliseconds of it at once, and what is left waits, by turns of its owners.
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
  /** What this turn of the event loop has spent. */
  #spentMs = 0;
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
    else this.#wait(ownerOf(), work);
    this.#plan();
  }

  #wait({ owner, part }: Sharer, work: () => void): void {
    this.#waiting.add(owner, () => this.#do(work), part);
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
    this.#takeNext();
  }

  #takeNext(): void {
    const next = this.#spentMs < turnMs ? this.#waiting.take() : undefined;
    try {
      next?.();
    } finally {
      if (next !== undefined) afterPromises(() => this.#takeNext());
      else if (this.#spentMs > 0) this.#plan();
    }
  }
}

/** Does the work in this turn of the event loop, after all promises that need no other turn. */
function afterPromises(work: () => void): void {
  asServer(() => queueMicrotask(() => process.nextTick(work)));
}
