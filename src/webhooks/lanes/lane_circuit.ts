/**
 * What the results of a lane's attempts say about its subscriber: how many attempts may run, and whether deliveries wait for a probe. In the
 * lane of an app's own subscription also which accounts are set aside (account_circuits.ts).
 */

import { circuitFailures } from '../sending/retry_schedule.ts';
import { AccountCircuits } from './account_circuits.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { LaneState } from './lane_store.ts';
import type { WaitingDeliveries } from './waiting_deliveries.ts';

/** Maximum attempts in flight of one lane, and the window of a lane without a success yet. */
export const windowMax = 32;
const windowStart = 4;

/** A delivery that waits because of its account. */
export interface SetAside {
  delivery: LoadedDelivery;
  /** Milliseconds until it is due. */
  dueMs: number;
}

export class LaneCircuit {
  readonly #accounts = new AccountCircuits();
  /** Failures in a row. */
  failures: number;
  /** Those of them that say something about one account only. */
  #ofAccounts = 0;
  /** Whether the lane's last attempt was accepted. Before its first attempt on this node: as far as the lane's row shows. */
  isProven: boolean;
  window = windowStart;

  constructor({ cursor, failures, pauseMs, subscription }: LaneState) {
    this.failures = failures;
    this.isProven = cursor > 0 && failures === 0;
    // Which of them were of one account is not known.
    if (subscription.accountId === null && pauseMs === 0) this.#ofAccounts = failures;
  }

  /** Failures in a row that count for the lane. */
  get count(): number {
    return this.failures - this.#ofAccounts;
  }

  get isOpen(): boolean {
    return this.count >= circuitFailures;
  }

  /** Whether a failure says something about the account only: its circuit is open, and that of the lane is not. */
  isOfAccount(account: string | null): boolean {
    return account !== null && !this.isOpen && this.#accounts.isOpen(account);
  }

  /**
   * Drops the deliveries of accounts that must wait, from the next one until there is one that need not. The lane's own probe is one of an
   * account that does not fail, if there is one.
   * @param accountOf null in a lane that has no circuits of accounts
   */
  setAside(
    waiting: WaitingDeliveries,
    accountOf: (delivery: LoadedDelivery) => string | null,
    now: number,
  ): SetAside[] {
    const isOther = (each: LoadedDelivery) => !this.#accounts.isOpen(accountOf(each) ?? '');
    const aside: SetAside[] = [];
    for (let { next } = waiting; next !== undefined; next = waiting.next) {
      const account = accountOf(next);
      if (account === null || isByHand(next)) break;
      const isOutdone = this.isOpen && this.#accounts.isOpen(account) && waiting.some(isOther);
      if (!isOutdone && !this.#accounts.mustWait(account, now)) break;
      const dropped = waiting.dropSome((each) => accountOf(each) === account && !isByHand(each));
      for (const delivery of dropped) aside.push({ delivery, dueMs: this.#accounts.setAside(account, now) });
    }
    return aside;
  }

  /** An attempt begins. @param account null in a lane that has no circuits of accounts */
  begin(account: string | null): void {
    if (account !== null) this.#accounts.begin(account);
  }

  /** An attempt has ended, whatever its result. */
  end(account: string | null): void {
    if (account !== null) this.#accounts.end(account);
  }

  /** Applies a result: the window grows with successes and shrinks with failures. @param retryAfterMs what the subscriber asked for, or 0 */
  record(account: string | null, isAccepted: boolean, now: number, retryAfterMs: number): void {
    const isOfAccount = this.isOfAccount(account);
    if (account !== null && isAccepted) this.#accounts.succeed(account);
    else if (account !== null) this.#accounts.fail(account, now, retryAfterMs);
    if (isAccepted) {
      this.isProven = true;
      this.failures = 0;
      this.#ofAccounts = 0;
      if (this.window < windowMax) this.window += 1;
      return;
    }
    this.failures += 1;
    if (isOfAccount) this.#ofAccounts += 1;
    else {
      this.isProven = false;
      this.window = Math.max(1, this.window >> 1);
    }
  }
}

function isByHand({ retry }: LoadedDelivery): boolean {
  return retry?.isManual === true;
}
