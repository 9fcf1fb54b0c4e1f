/**
 * Which lanes of this node stand still, because the right to some of their deliveries is about to end (see
 * grants/delivery_hold.ts). They are told of by notifications, and looked for besides: a node that has not looked lately
 * starts nothing at all (see lane_leases.ts).
 *
 *   begun (its lanes are closed, what is not on its way is called off) → answered → over (its lanes are loaded again)
 *   of one account in the lane of an app's own subscription, unless it is ordered: that account's deliveries are put back,
 *   the lane goes on
 *
 * What was read or decided before a standstill was over may be older than what it was for. A watch tells: who reads
 * begins one before, and reads again what is concerned.
 */

import type { Database } from '../../database/database.ts';
import {
  acknowledgeHolds,
  type DeliveryHold,
  type HoldNotice,
  type HoldSubject,
  readDeliveryHolds,
} from '../../grants/delivery_hold.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane, Waiting } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';

export interface LaneHoldsOptions {
  db: Database;
  /** This node's id. */
  node: string;
  lanes: LeasedLanes;
  background: BackgroundTasks;
  /** Lanes that may go on, as soon as they have been loaded again. */
  onOver: (lanes: number[]) => void;
  /** Deliveries of an account that an app's lane had in memory, and may not start now. */
  onAccountHeld: (lane: Lane, waiting: Waiting[]) => void;
}

export class LaneHolds {
  readonly #options: LaneHoldsOptions;
  readonly #all = new Map<string, { standstill: DeliveryHold; isAnswered: boolean }>();
  readonly #watches = new Set<HoldWatch>();
  /** Those that ended during a look, whose answer may still have them. */
  #endedDuringPoll: Set<string> | undefined;

  constructor(options: LaneHoldsOptions) {
    this.#options = options;
  }

  /** Whether nothing of this subscription may be started now. */
  isOnHold(subscription: Subscription): boolean {
    if (this.#all.size === 0) return false;
    return this.#all.values().some(({ standstill }) => concernsWhole(standstill, subscription));
  }

  /** The accounts of which nothing may be started now in the lane of an app's own subscription. */
  heldAccounts(subscription: Subscription): string[] {
    return [...this.#all.values()]
      .filter(({ standstill }) => concernsPart(standstill, subscription))
      .map(({ standstill }) => standstill.accountId as string);
  }

  receive(news: HoldNotice): void {
    if ('isOver' in news) {
      this.#end([news.id]);
      return;
    }
    this.#begin([news]);
    this.#options.background.run(() => this.#answer());
  }

  /** What notifications may have failed to tell. @throws Error of the database */
  async poll(): Promise<void> {
    const before = [...this.#all.keys()];
    const over = new Set<string>();
    this.#endedDuringPoll = over;
    try {
      const found = await readDeliveryHolds(this.#options.db);
      const present = new Set(found.map(({ id }) => id));
      this.#begin(found.filter(({ id }) => !over.has(id)));
      this.#end(before.filter((id) => !present.has(id)));
    } finally {
      this.#endedDuringPoll = undefined;
    }
    await this.#answer();
  }

  /** To be ended by whoever began it. */
  watch(): HoldWatch {
    const watch = new HoldWatch((ended) => this.#watches.delete(ended));
    this.#watches.add(watch);
    return watch;
  }

  #begin(standstills: readonly DeliveryHold[]): void {
    for (const standstill of standstills) {
      if (this.#all.has(standstill.id)) continue;
      this.#all.set(standstill.id, { standstill, isAnswered: false });
      for (const lane of this.#options.lanes.all()) {
        if (concernsWhole(standstill, lane.subscription)) lane.hold();
        else if (concernsPart(standstill, lane.subscription)) {
          this.#options.onAccountHeld(lane, lane.holdAccount(standstill.accountId as string));
        }
      }
    }
  }

  async #answer(): Promise<void> {
    const { db, node } = this.#options;
    const unanswered = [...this.#all.values()].filter(({ isAnswered }) => !isAnswered);
    if (unanswered.length === 0) return;
    await acknowledgeHolds(
      db,
      node,
      unanswered.map(({ standstill }) => standstill.id),
    );
    for (const one of unanswered) one.isAnswered = true;
  }

  #end(ids: readonly string[]): void {
    const { lanes, onOver } = this.#options;
    let isAny = false;
    for (const id of ids) {
      this.#endedDuringPoll?.add(id);
      const one = this.#all.get(id);
      if (one === undefined) continue;
      this.#all.delete(id);
      for (const watch of this.#watches) watch.add(one.standstill);
      isAny = true;
    }
    if (!isAny) return;
    const freed: number[] = [];
    for (const lane of lanes.all()) {
      if (lane.isOnHold && !this.isOnHold(lane.subscription)) freed.push(lane.id);
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

/** Standstills that a watch keeps at most: past that it takes everything to be concerned. */
const watchedMax = 1_000;

/** What was over since the watch was begun. */
export class HoldWatch {
  readonly #over: HoldSubject[] = [];
  readonly #onEnd: (watch: HoldWatch) => void;

  constructor(onEnd: (watch: HoldWatch) => void) {
    this.#onEnd = onEnd;
  }

  get hasEnded(): boolean {
    return this.#over.length > 0;
  }

  add(subject: HoldSubject): void {
    if (this.#over.length < watchedMax) this.#over.push(subject);
  }

  /** Whether something of the lane was held. */
  concerns(subscription: Subscription): boolean {
    return this.#has(subscription, (subject) => concernsPart(subject, subscription));
  }

  /** Whether all of it was. */
  concernsWhole(subscription: Subscription): boolean {
    return this.#has(subscription, () => false);
  }

  #has(subscription: Subscription, isOther: (subject: HoldSubject) => boolean): boolean {
    if (this.#over.length === watchedMax) return true;
    return this.#over.some((subject) => concernsWhole(subject, subscription) || isOther(subject));
  }

  end(): void {
    this.#onEnd(this);
  }
}

function concernsWhole({ clientId, accountId, lane }: HoldSubject, subscription: Subscription): boolean {
  if (lane !== null) return subscription.lane === lane;
  if (clientId !== null && subscription.clientId !== clientId) return false;
  if (accountId === null) return true;
  // An ordered one waits behind a delivery that is held, whoever the others are of.
  return subscription.accountId === null ? subscription.ordered : subscription.accountId === accountId;
}

/** An app's own subscription has the events of many accounts: those of one are held, the others go on. */
function concernsPart({ clientId, accountId }: HoldSubject, subscription: Subscription): boolean {
  if (accountId === null || subscription.accountId !== null || subscription.ordered) return false;
  return clientId === null || subscription.clientId === clientId;
}
