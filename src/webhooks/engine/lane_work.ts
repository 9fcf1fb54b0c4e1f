/**
 * Work about lanes that can wait, such as disabling the subscriptions of thousands that respond with 410 at once. One call runs at a
 * time and takes one connection, so that deliveries keep the others.
 *
 *   added → waiting (once, however often it is added) → work on all that wait → …
 */

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
      await this.#work(lanes).catch(this.#onError);
    }
    this.#isWorking = false;
  }
}
