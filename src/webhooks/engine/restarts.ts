/** How often an engine that ended is started again: each time after a longer pause, and only so often in a time. */

/** Restarts in so many milliseconds at most. */
export const restartsMax = 5;
const periodMs = 600_000;
/** Milliseconds before the first restart of a period; doubled with each. */
const firstPauseMs = 100;

export class Restarts {
  /** All there have been. */
  count = 0;
  #recent: number[] = [];

  /**
   * @param now milliseconds of any clock that does not go back
   * @returns milliseconds to wait before the restart; undefined where there have been too many
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
