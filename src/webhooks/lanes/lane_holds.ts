/**
 * Applies delivery holds (grants/delivery_hold.ts) to the lanes of this node. This node reads the table of holds at each
 * notification, and polls it. A node that has not polled recently starts nothing (lane_leases.ts).
 *
 *   begun (covered lanes stop, unsent attempts are cancelled) → acknowledged → over (covered lanes are loaded again)
 *
 * A hold on one account covers only part of the lane of an app's own subscription. That account's deliveries are put back, and
 * the others continue. An ordered lane continues up to the account's first delivery.
 *
 * Data that was read during a hold may be older than the change that the hold protects. So a reader begins a watch before it
 * reads, and afterwards reads again what the watch covers.
 */

import { isId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import type { HintBatch } from '../../database/hints.ts';
import {
  acknowledgeHolds,
  type DeliveryHold,
  type HoldSubject,
  overPrefix,
  readDeliveryHolds,
} from '../../grants/delivery_hold.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';

export interface LaneHoldsOptions {
  db: Database;
  /** This node's id. */
  node: string;
  lanes: LeasedLanes;
  background: BackgroundTasks;
  /** Lanes that continue as soon as they have been loaded again. */
  onOver: (lanes: number[]) => void;
  /** An app's lane dropped these deliveries of an account from memory, because the account is on hold. */
  onAccountHeld: (lane: Lane, waiting: LoadedDelivery[]) => void;
}

export class LaneHolds {
  readonly #options: LaneHoldsOptions;
  readonly #all = new Map<string, { hold: DeliveryHold; isAcknowledged: boolean }>();
  readonly #watches = new Set<HoldWatch>();
  #polling: Promise<void> = Promise.resolve();

  constructor(options: LaneHoldsOptions) {
    this.#options = options;
  }

  /** Whether a hold covers the whole lane of the subscription. */
  isOnHold(subscription: Subscription): boolean {
    if (this.#all.size === 0) return false;
    return this.#all.values().some(({ hold }) => coversLane(hold, subscription));
  }

  /** Accounts whose deliveries are on hold in the lane of an app's own subscription. */
  heldAccounts(subscription: Subscription): string[] {
    return [...this.#all.values()]
      .filter(({ hold }) => coversAccount(hold, subscription))
      .map(({ hold }) => hold.accountId as string);
  }

  /**
   * Notifications say that holds began or are over: reads the holds.
   * @returns how many of the payloads announce a hold that did not exist
   */
  async heed({ payloads }: HintBatch): Promise<number> {
    const before = new Set(this.#all.keys());
    await this.poll();
    const isTrue = (payload: string) => {
      const isOver = payload.startsWith(overPrefix);
      const id = isOver ? payload.slice(overPrefix.length) : payload;
      if (isOver) return isId(id);
      return before.has(id) || this.#all.has(id) || payloads.has(overPrefix + id);
    };
    return [...payloads].filter((payload) => !isTrue(payload)).length;
  }

  /** Reads all holds and acknowledges them. One read follows the other. @throws Error of the database */
  async poll(): Promise<void> {
    const polling = this.#polling.then(async () => {
      const found = await readDeliveryHolds(this.#options.db);
      const present = new Set(found.map(({ id }) => id));
      this.#begin(found);
      this.#end([...this.#all.keys()].filter((id) => !present.has(id)));
      await this.#acknowledge();
    });
    this.#polling = polling.catch(() => {});
    await polling;
  }

  /** Begins a watch. The caller ends it. */
  watch(): HoldWatch {
    const watch = new HoldWatch((ended) => this.#watches.delete(ended));
    this.#watches.add(watch);
    return watch;
  }

  #begin(holds: readonly DeliveryHold[]): void {
    for (const hold of holds) {
      if (this.#all.has(hold.id)) continue;
      this.#all.set(hold.id, { hold, isAcknowledged: false });
      for (const lane of this.#options.lanes.all()) {
        if (coversLane(hold, lane.subscription)) lane.hold();
        else if (coversAccount(hold, lane.subscription)) {
          this.#options.onAccountHeld(lane, lane.holdAccount(hold.accountId as string));
        }
      }
    }
  }

  async #acknowledge(): Promise<void> {
    const { db, node } = this.#options;
    const unacknowledged = [...this.#all.values()].filter(({ isAcknowledged }) => !isAcknowledged);
    if (unacknowledged.length === 0) return;
    await acknowledgeHolds(
      db,
      node,
      unacknowledged.map(({ hold }) => hold.id),
    );
    for (const one of unacknowledged) one.isAcknowledged = true;
  }

  #end(ids: readonly string[]): void {
    const { lanes, onOver } = this.#options;
    const ended: DeliveryHold[] = [];
    for (const id of ids) {
      const one = this.#all.get(id);
      if (one === undefined) continue;
      this.#all.delete(id);
      for (const watch of this.#watches) watch.add(one.hold);
      ended.push(one.hold);
    }
    if (ended.length === 0) return;
    const freed: number[] = [];
    for (const lane of lanes.all()) {
      // Other holds may cover thousands of other lanes.
      const isCovered = lane.isOnHold && ended.some((hold) => coversLane(hold, lane.subscription));
      if (isCovered && !this.isOnHold(lane.subscription)) freed.push(lane.id);
      if (lane.heldAccounts.size > 0) this.#releaseAccounts(lane);
    }
    onOver(freed);
  }

  #releaseAccounts(lane: Lane): void {
    const held = new Set(this.heldAccounts(lane.subscription));
    for (const account of lane.heldAccounts) if (!held.has(account)) lane.releaseAccount(account);
    this.#options.lanes.reschedule(lane);
  }
}

/** Maximum holds that a watch remembers. Beyond that it covers everything. */
const watchedMax = 1_000;

/** Remembers the holds that ended since the watch began. */
export class HoldWatch {
  readonly #over: HoldSubject[] = [];
  readonly #onEnd: (watch: HoldWatch) => void;

  constructor(onEnd: (watch: HoldWatch) => void) {
    this.#onEnd = onEnd;
  }

  get hasEndedHolds(): boolean {
    return this.#over.length > 0;
  }

  add(subject: HoldSubject): void {
    if (this.#over.length < watchedMax) this.#over.push(subject);
  }

  /** Whether an ended hold covered the lane or part of it. */
  covers(subscription: Subscription): boolean {
    return this.#has(subscription, (subject) => coversAccount(subject, subscription));
  }

  /** Whether an ended hold covered the whole lane. */
  coversLane(subscription: Subscription): boolean {
    return this.#has(subscription, () => false);
  }

  #has(subscription: Subscription, isOther: (subject: HoldSubject) => boolean): boolean {
    if (this.#over.length === watchedMax) return true;
    return this.#over.some((subject) => coversLane(subject, subscription) || isOther(subject));
  }

  end(): void {
    this.#onEnd(this);
  }
}

function coversLane({ clientId, accountId, lane }: HoldSubject, subscription: Subscription): boolean {
  if (lane !== null) return subscription.lane === lane;
  if (clientId !== null && subscription.clientId !== clientId) return false;
  return accountId === null || subscription.accountId === accountId;
}

/**
 * An app's own subscription has events of many accounts. Those of one account are on hold, and the others continue.
 */
function coversAccount({ clientId, accountId }: HoldSubject, subscription: Subscription): boolean {
  if (accountId === null || subscription.accountId !== null) return false;
  return clientId === null || subscription.clientId === clientId;
}
