/**
 * A pace for passes: under load they start at an interval, so that each does more work. After a quiet time a few may start in
 * close succession, so that a light load never waits (the generic cell rate algorithm).
 */
export class Pace {
  readonly #intervalMs: number;
  readonly #toleranceMs: number;
  /** When the next start is due at the interval. In the past after a quiet time. */
  #dueAt = Number.NEGATIVE_INFINITY;

  /**
   * @param intervalMs average milliseconds between two starts
   * @param atOnce how many may start in close succession after a quiet time, at least one
   */
  constructor(intervalMs: number, atOnce: number) {
    this.#intervalMs = intervalMs;
    this.#toleranceMs = intervalMs * (atOnce - 1);
  }

  /** @returns milliseconds until the next start may be; 0 or less if it may be now */
  waitMs(now: number): number {
    return this.#dueAt - this.#toleranceMs - now;
  }

  /** Call at each start. */
  start(now: number): void {
    this.#dueAt = Math.max(this.#dueAt, now) + this.#intervalMs;
  }

  /** Allows the next start at once. */
  skip(): void {
    this.#dueAt = Number.NEGATIVE_INFINITY;
  }
}
