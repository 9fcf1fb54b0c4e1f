/**
 * Work about lanes that can wait, such as disabling the subscriptions of thousands that respond with 410 at once. One call runs at a
 * time and takes one connection, for a tenth of the time, so that deliveries keep the others.
 *
 *   added → waiting (once, however often it is added) → work on all that wait → rest → …
 */

import { setTimeout as sleep } from 'node:timers/promises';

/** After work, the next waits this many times as long as it took. Subscribers that only fail ask for it with each response. */
const restFactor = 9;

export class LaneWork {
  readonly #work: (lanes: number[]) => Promise<void>;
  readonly #onError: (error: Error) => void;
  #waiting = new Set<number>();
  #isWorking = false;

  /** @param work what it does not do because of an error is left out: the next response of the subscriber asks for it again */
  constructor(work: (lanes: number[]) => Promise<void>, onError: (error: Error) => void) {
    this.#work = work;
    this.#onError = onError;
  }

  /** Never throws. */
  add(lanes: Iterable<number>): void {
    for (const lane of lanes) this.#waiting.add(lane);
    if (!this.#isWorking) void this.#run();
  }

  async #run(): Promise<void> {
    this.#isWorking = true;
    while (this.#waiting.size > 0) {
      const lanes = [...this.#waiting];
      this.#waiting = new Set();
      const begunAt = performance.now();
      await this.#work(lanes).catch(this.#onError);
      await sleep((performance.now() - begunAt) * restFactor, undefined, { ref: false });
    }
    this.#isWorking = false;
  }
}
