/**
 * The rate limit of one subscription (`rate_limit`): a token bucket without bursts. The owner can change the rate at any time,
 * so each call passes the current one.
 */

export class RateLimiter {
  #tokens = 1;
  #tokensAt = 0;

  /** Adds the tokens gained since the last call. @param now milliseconds on the monotonic clock */
  mayStart(perSecond: number, now: number): boolean {
    // No bursts: unused rate is not saved, except for what makes up for late timers.
    const burst = Math.max(1, perSecond * 0.05);
    this.#tokens = Math.min(burst, this.#tokens + ((now - this.#tokensAt) / 1_000) * perSecond);
    this.#tokensAt = now;
    return this.#tokens >= 1;
  }

  /** When the next attempt may start, in milliseconds on the monotonic clock. */
  nextAt(perSecond: number): number {
    return this.#tokensAt + (1_000 * (1 - this.#tokens)) / perSecond;
  }

  take(): void {
    this.#tokens -= 1;
  }
}
