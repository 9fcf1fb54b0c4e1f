/**
 * Accounts whose deliveries are on hold in the lane of an app's own subscription. Such a lane carries events of many
 * accounts: a delivery hold on one account stops that account's deliveries, and the others continue.
 *
 *   held → released;   released while the lane reads from the database → held until that read has ended
 */

import type { EventContent } from '../sending/delivery_request.ts';
import type { Stoppable } from '../sending/exchange.ts';

/** Accounts whose stops are counted, at most. */
export const countedAccountsMax = 1_000;

export class AccountHolds {
  readonly #held = new Set<string>();
  /** The number of each account's last stop. Numbers grow over all accounts. */
  readonly #stops = new Map<string, number>();
  #lastStop = 0;
  /** Accounts that were released during a read. The read may return deliveries from before the release. */
  readonly #releasedDuringRead = new Set<string>();

  /** Accounts on hold now. */
  get accounts(): ReadonlySet<string> {
    return this.#held;
  }

  /**
   * @returns how much the lane's own stop count must grow. Above zero if the table of stops was full. It is then empty again, and
   *   the lane stops every attempt that remembers a number from it.
   */
  hold(account: string): number {
    this.#held.add(account);
    let laneStops = 0;
    if (this.#stops.size >= countedAccountsMax) {
      this.#stops.clear();
      laneStops = this.#lastStop + 1;
    }
    this.#lastStop += 1;
    this.#stops.set(account, this.#lastStop);
    return laneStops;
  }

  release(account: string, isReading: boolean): void {
    this.#held.delete(account);
    if (isReading) this.#releasedDuringRead.add(account);
  }

  /** A read begins and no other is running. Its result is newer than all releases so far. */
  forgetReleases(): void {
    this.#releasedDuringRead.clear();
  }

  /** Whether the event's account is on hold now. */
  holds({ accountId }: EventContent): boolean {
    return accountId !== null && this.#held.has(accountId);
  }

  /** Whether the event's account is on hold now, or was at the start of the current read. */
  covers(event: EventContent): boolean {
    return this.holds(event) || this.#releasedDuringRead.has(event.accountId ?? '');
  }

  /** Grows with each hold of the account. */
  stopCount(account: string): number {
    return this.#stops.get(account) ?? 0;
  }

  /** What can stop attempts of an account's events: the lane, or a hold of the account. */
  stoppable(lane: Stoppable, account: string): Stoppable {
    const holds = this;
    return {
      get stopCount() {
        return lane.stopCount + holds.stopCount(account);
      },
    };
  }
}
