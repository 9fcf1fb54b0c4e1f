/**
 * Turns of what is done with the results of exchanges that have long responses. To look for secrets in one takes up to some milliseconds, and hundreds of exchanges
 * can end at the same moment: hosts hang until the time is over, or close all connections at once. So each turn of the event loop
 * does some milliseconds of it, and tenants take turns.
 *
 *   ended → done at once, or, if this turn of the event loop has no time left: waiting, by tenant → its turn → done
 */

import { OwnerTurns } from '../../shared/owner_turns.ts';

/** Milliseconds of a turn of the event loop. Work that has begun ends later. */
const turnMs = 5;

export class ResultTurns {
  readonly #waiting = new OwnerTurns<() => void>();
  #isPlanned = false;
  /** What this turn of the event loop has spent. */
  #spentMs = 0;

  /** @param work called once, at once or later; must not throw */
  take(tenant: string, work: () => void): void {
    if (this.#waiting.isEmpty && this.#spentMs < turnMs) this.#do(work);
    else this.#waiting.add(tenant, work);
    this.#plan();
  }

  #do(work: () => void): void {
    const startedAt = performance.now();
    try {
      work();
    } finally {
      this.#spentMs += performance.now() - startedAt;
    }
  }

  #plan(): void {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    setImmediate(() => {
      this.#isPlanned = false;
      this.#spentMs = 0;
      try {
        while (!this.#waiting.isEmpty && this.#spentMs < turnMs) this.#do(this.#waiting.take() as () => void);
      } finally {
        if (!this.#waiting.isEmpty || this.#spentMs > 0) this.#plan();
      }
    });
  }
}
