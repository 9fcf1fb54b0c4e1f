/** Work of which a few pieces run at once, because each is expensive. What waits is run by turns of the owners (owner_turns.ts). */

import { OwnerTurns } from './owner_turns.ts';

export class LimitedWork {
  readonly #max: number;
  #running = 0;
  readonly #waiting = new OwnerTurns<() => void>();

  /** @param max how many pieces run at once */
  constructor(max: number) {
    this.#max = max;
  }

  /** How many pieces of the owner wait for their turn. */
  waitingOf(owner: string): number {
    return this.#waiting.countOf(owner);
  }

  /** Runs the work when it is its turn. @returns its result @throws what the work throws */
  async run<Result>(owner: string, work: () => Promise<Result>): Promise<Result> {
    if (this.#running < this.#max) this.#running += 1;
    else await new Promise<void>((resolve) => this.#waiting.add(owner, resolve));
    try {
      return await work();
    } finally {
      // The next one takes over this place.
      const next = this.#waiting.take();
      if (next === undefined) this.#running -= 1;
      else next();
    }
  }
}
