/** A token bucket: how many actions may start per second, and how many at once after a quiet time. */

export class TokenBucket {
  readonly #perSecond: number;
  readonly #burst: number;
  #tokens: number;
  #at: number;

  /**
   * @param perSecond actions per second
   * @param burst actions at once after a quiet time, at least one
   * @param now milliseconds on the monotonic clock
   */
  constructor(perSecond: number, burst: number, now: number) {
    this.#perSecond = perSecond;
    this.#burst = Math.max(burst, 1);
    this.#tokens = this.#burst;
    this.#at = now;
  }

  /**
   * @returns null if an action may start now; otherwise when the next one may, in milliseconds on the monotonic
   *   clock
   */
  nextAt(now: number): number | null {
    const gained = ((now - this.#at) / 1_000) * this.#perSecond;
    this.#tokens = Math.min(this.#tokens + gained, this.#burst);
    this.#at = now;
    return this.#tokens >= 1 ? null : now + (1_000 * (1 - this.#tokens)) / this.#perSecond;
  }

  /** How many actions may start now. */
  available(now: number): number {
    this.nextAt(now);
    return Math.floor(this.#tokens);
  }

  /** Uses one token. Call it only if `nextAt` returned null. */
  take(): void {
    this.#tokens -= 1;
  }

  /** Gives a token back, as far as the burst allows. */
  giveBack(): void {
    this.#tokens = Math.min(this.#tokens + 1, this.#burst);
  }
}

/** A bucket that saves no unused rate, except for what makes up for late timers. @returns null if there is no limit */
export function steadyRate(perSecond: number | null, now: number): TokenBucket | null {
  return perSecond === null ? null : new TokenBucket(perSecond, perSecond * 0.05, now);
}
