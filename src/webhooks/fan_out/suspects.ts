/**
 * Accounts whose events fan-out could not process. Each is handled apart from the others, one event at a time and after a pause
 * that grows, so that it costs the others little. An event that the database refuses is parked. An event that only takes too long
 * is tried again for half a minute first, because that can be the database's fault.
 *
 *   a pass of this account alone failed → suspect → (event refused) → event parked → …
 *                                                 → (eight events succeeded, or no events left) → like the others
 */

/** Milliseconds until the next attempt: the first pause, doubled after each failure. */
const pauseMs = 500;
const pauseMsMax = 60_000;
/** Failures of the same account because of time, in a row, after which its event is parked: half a minute. */
const timeoutsMax = 6;
/** Successful events in a row after which an account is like the others. */
const successesMin = 8;
/**
 * If the events of this many accounts are refused, and no other event succeeds in between, something else is wrong. Then no event
 * is parked.
 */
const refusedMax = 3;
/** Maximum accounts to remember. Further ones are tried with the others. */
const suspectsMax = 1_000;

interface Suspect {
  failures: number;
  successes: number;
  /** Not tried before, in milliseconds on the monotonic clock. */
  notBefore: number;
}

export class Suspects {
  readonly #suspects = new Map<string, Suspect>();
  /** Accounts whose events were refused since an event succeeded. */
  readonly #refused = new Set<string>();

  has(account: string): boolean {
    return this.#suspects.has(account);
  }

  get size(): number {
    return this.#suspects.size;
  }

  /** Handles an account apart from now on. @returns false if there are too many */
  add(account: string, now: number): boolean {
    if (this.#suspects.size >= suspectsMax) return false;
    this.#suspects.set(account, { failures: 0, successes: 0, notBefore: now });
    return true;
  }

  /** The account whose next event is due to be tried. */
  next(now: number): string | undefined {
    for (const [account, { notBefore }] of this.#suspects) if (notBefore <= now) return account;
    return undefined;
  }

  /** When the next one is due, in milliseconds on the monotonic clock; infinity for never. */
  get dueAt(): number {
    return Math.min(
      Number.POSITIVE_INFINITY,
      ...[...this.#suspects.values()].map(({ notBefore }) => notBefore),
    );
  }

  /**
   * An event of the account failed alone.
   * @param isSlow whether it took too long, and was not refused
   * @returns whether to park the event
   */
  fail(account: string, isSlow: boolean, now: number): boolean {
    const suspect = this.#suspects.get(account);
    if (suspect === undefined) return false;
    suspect.successes = 0;
    suspect.failures += 1;
    suspect.notBefore = now + Math.min(pauseMs * 2 ** (suspect.failures - 1), pauseMsMax);
    this.#toEnd(account, suspect);
    if (isSlow) return suspect.failures >= timeoutsMax;
    this.#refused.add(account);
    return this.#refused.size < refusedMax;
  }

  /** The account's event was parked, or its turn is over for another reason. */
  proceed(account: string, now: number): void {
    const suspect = this.#suspects.get(account);
    if (suspect === undefined) return;
    suspect.failures = 0;
    suspect.notBefore = now;
    this.#toEnd(account, suspect);
  }

  /** An event of the account succeeded. */
  succeed(account: string, now: number): void {
    const suspect = this.#suspects.get(account);
    if (suspect === undefined) return;
    suspect.successes += 1;
    if (suspect.successes >= successesMin) this.#suspects.delete(account);
    else this.proceed(account, now);
  }

  /** Events of others succeeded, so the database works. */
  clearRefused(): void {
    this.#refused.clear();
  }

  /** The account has no events left. */
  forget(account: string): void {
    this.#suspects.delete(account);
  }

  #toEnd(account: string, suspect: Suspect): void {
    this.#suspects.delete(account);
    this.#suspects.set(account, suspect);
  }
}
