/**
 * Turns of building pages of events. Each event is signed again, which takes 60 ms for a thousand of them, in the thread that serves all
 * requests. So a page is built in slices of some milliseconds, and each turn of the event loop has one that had to wait. Owners take turns.
 *
 *   first slice → waiting, by owner → its turn: next slice → waiting …
 */

import { OwnerTurns, type Sharer } from '../../shared/owner_turns.ts';

/** Milliseconds of a slice. */
const sliceMs = 3;

const waiting = new OwnerTurns<() => void>();
let isPlanned = false;

/** The slices of one page. The first begins at once. */
export class PageSlices {
  readonly #sharer: Sharer;
  #until = performance.now() + sliceMs;

  /** @param sharer who gets the page */
  constructor(sharer: Sharer) {
    this.#sharer = sharer;
  }

  get isOver(): boolean {
    return performance.now() >= this.#until;
  }

  /** Resolves when the next slice begins. */
  async next(): Promise<void> {
    await takeTurn(this.#sharer);
    this.#until = performance.now() + sliceMs;
  }
}

function takeTurn({ owner, part }: Sharer): Promise<void> {
  return new Promise((resolve) => {
    waiting.add(owner, resolve, part);
    plan();
  });
}

function plan(): void {
  if (isPlanned || waiting.isEmpty) return;
  isPlanned = true;
  setImmediate(() => {
    isPlanned = false;
    waiting.take()?.();
    plan();
  });
}
