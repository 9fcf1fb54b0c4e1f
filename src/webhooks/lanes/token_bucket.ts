/** A token bucket: how many attempts may start in a second, and how many at once after a pause. */

export class TokenBucket {
  readonly #perSecond: number;
  readonly #burst: number;
  #tokens: number;
  #at: number;

  /**
   * @param perSecond attempts
   * @param burst attempts at once after a pause, at least one
   * @param now milliseconds of the process's clock
   */
  constructor(perSecond: number, burst: number, now: number) {
    this.#perSecond = perSecond;
    this.#burst = Math.max(burst, 1);
    this.#tokens = this.#burst;
    this.#at = now;
  }

  /** @returns null where an attempt may start now; else when the next one may, in milliseconds of the process's clock */
  nextAt(now: number): number | null {
    const gained = ((now - this.#at) / 1_000) * this.#perSecond;
    this.#tokens = Math.min(this.#tokens + gained, this.#burst);
    this.#at = now;
    return this.#tokens >= 1 ? null : now + (1_000 * (1 - this.#tokens)) / this.#perSecond;
  }

  take(): void {
    this.#tokens -= 1;
  }
}
