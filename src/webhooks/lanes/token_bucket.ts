/** A token bucket: how many attempts may start per second, and how many at once after a quiet time. */

export class TokenBucket {
  readonly #perSecond: number;
  readonly #burst: number;
  #tokens: number;
  #at: number;

  /**
   * @param perSecond attempts per second
   * @param burst attempts at once after a quiet time, at least one
   * @param now milliseconds on the monotonic clock
   */
  constructor(perSecond: number, burst: number, now: number) {
    this.#perSecond = perSecond;
    this.#burst = Math.max(burst, 1);
    this.#tokens = this.#burst;
    this.#at = now;
  }

  /**
   * @returns null if an attempt may start now; otherwise when the next one may, in milliseconds on the monotonic
   *   clock
   */
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
