/** Limits how often a dead engine is restarted: with a growing pause, and a maximum number per period. */

/** Maximum restarts in one period. */
export const restartsMax = 5;
const periodMs = 600_000;
/** Milliseconds before the first restart of a period; doubled with each restart. */
const firstPauseMs = 100;

export class Restarts {
  /** All restarts so far. */
  count = 0;
  #recent: number[] = [];

  /**
   * @param now milliseconds on a monotonic clock
   * @returns milliseconds to wait before the restart; undefined if the maximum is reached
   */
  next(now: number): number | undefined {
    this.#recent = this.#recent.filter((at) => now - at < periodMs);
    if (this.#recent.length >= restartsMax) return undefined;
    const pauseMs = firstPauseMs * 2 ** this.#recent.length;
    this.#recent.push(now);
    this.count += 1;
    return pauseMs;
  }
}
