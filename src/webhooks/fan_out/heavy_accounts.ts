/**
 * Heavy accounts: their next event may become many deliveries, or a filter has to parse its large body, which costs as much. They take
 * turns among themselves, so that a pass stays short, and all other accounts have a turn in every pass. Every other event waits for the running pass, so their share of it shrinks
 * when passes take long. While this node has enough to send, heavy accounts also rest between their turns, so that fan-out leaves
 * the processor and the database to sending.
 *
 *   an event may cost many deliveries → heavy → resting (passes skip it) → its turn → resting → … → no such event next → forgotten
 *
 * Turns are fair by cost, not by number (weighted fair queueing, Demers, Keshav and Shenker 1989): the turn comes first that would end
 * first if the deliveries of all these accounts were made evenly. So an event for 40 lanes waits for the running pass and some 40
 * deliveries of each other account, however many lanes their events are for. A rest after large turns leaves some room for small ones.
 *
 * If one event may cost more deliveries than fit in a pass, the account's turns are slices of that event (slices.ts).
 */

import type { FanOutPass, HeavyAccount } from './fan_out.ts';
import { type PassLimits, type PassRange, passLimits, sliceDeliveriesMin } from './outbox_selection.ts';

/** Maximum heavy accounts to remember. Beyond it, accounts take their turns like any other. */
const rememberedMax = 1_000;
/** Heavy accounts rest this many times the duration of their pass, up to a second, while this node has enough to send. */
const restFactor = 3;
const restMsMax = 1_000;
/** Deliveries of one turn, and of all turns, during a rest. */
const smallMax = 250;
const smallOfRestMax = 1_000;

/**
 * After a pass that took longer, the share of heavy accounts is halved. After one that took less than half of it, the share is
 * doubled.
 */
const passMsMax = 25;
/** The share of heavy accounts, in deliveries. At most half of a pass. */
const shareMin = 250;
const shareFirst = 1_000;

export type HeavyTurns = Pick<PassRange, 'resting' | 'entitled' | 'heavyShare' | 'skipsFrom'>;

interface Turn {
  /** What one event may cost, in deliveries. */
  deliveries: number;
  /** When its next turn would end if all accounts were served evenly, in virtual time: deliveries that each account had since then. */
  endsAt: number;
}

export class HeavyAccounts {
  readonly #accounts = new Map<string, Turn>();
  /** The virtual time, at which accounts join the queue. */
  #time = 0;
  #restsUntil = Number.NEGATIVE_INFINITY;
  /** Deliveries that small turns may still cost during this rest. */
  #smallLeft = 0;
  #share = shareFirst;
  #shareOfPass = 0;

  /** Deliveries of one turn of heavy accounts. */
  get share(): number {
    return this.#share;
  }

  /** Whether the account's events are fanned out in slices. */
  isSliced(account: string): boolean {
    return (this.#accounts.get(account)?.deliveries ?? 0) >= sliceDeliveriesMin;
  }

  /** The account whose slice is next. @param isWaiting whether an account has events */
  nextSliced(now: number, isWaiting: (account: string) => boolean): string | undefined {
    if (now < this.#restsUntil) return undefined;
    return this.#inOrder(isWaiting).find(([, turn]) => turn.deliveries >= sliceDeliveriesMin)?.[0];
  }

  /** When the next slice may be, in milliseconds on the monotonic clock; infinity if no account waits for one. */
  slicedAt(isWaiting: (account: string) => boolean): number {
    for (const account of this.#accounts.keys()) {
      if (this.isSliced(account) && isWaiting(account)) return this.#restsUntil;
    }
    return Number.POSITIVE_INFINITY;
  }

  /** When the next pass may take events of heavy accounts, in milliseconds on the monotonic clock. */
  turnAt(now: number, visits: (account: string) => boolean): number {
    for (const [account, turn] of this.#accounts) if (visits(account) && this.#isSmall(turn)) return now;
    return this.#restsUntil;
  }

  /**
   * Decides which heavy accounts have their turn in the next pass, and which it skips. They get up to their share of the pass; the
   * first one always fits.
   * @param visits whether the pass may visit the account
   * @param now milliseconds on the monotonic clock
   */
  turns(limits: PassLimits, visits: (account: string) => boolean, now: number): HeavyTurns {
    const resting: string[] = [];
    const entitled: string[] = [];
    const isRest = now < this.#restsUntil;
    const heavyShare = Math.min(
      this.#share,
      limits.deliveries / 2,
      isRest ? this.#smallLeft : Number.POSITIVE_INFINITY,
    );
    let left = heavyShare;
    let isFirst = !isRest;
    for (const [account, turn] of this.#inOrder(visits)) {
      const { deliveries } = turn;
      const fits = isFirst || (deliveries <= left && (!isRest || deliveries <= smallMax));
      isFirst = false;
      if (fits) left -= deliveries;
      if (deliveries >= sliceDeliveriesMin) continue;
      (fits ? entitled : resting).push(account);
    }
    // An account that cannot be remembered would be skipped for ever.
    const isFull = this.#accounts.size >= rememberedMax;
    const skipsFrom = isFull ? limits.deliveries : isRest ? 0 : heavyShare;
    this.#shareOfPass = Math.max(Math.floor(heavyShare), 0);
    return { resting, entitled, heavyShare: this.#shareOfPass, skipsFrom };
  }

  /**
   * Learns from a pass.
   * @param durationMs how long the pass took
   * @param isBehind whether this node has enough to send for a while
   */
  learn(pass: FanOutPass, now: number, durationMs: number, isBehind: boolean): void {
    // An account that rests is not counted: it is skipped with 0.
    for (const heavy of [...pass.heavy, ...pass.skipped]) if (heavy.deliveries > 0) this.#remember(heavy);
    const share = this.#shareOfPass / Math.max(pass.heavy.length, 1);
    let taken = 0;
    for (const { account, deliveries } of pass.heavy) {
      // It had as many events as fit in its part of the share, at least one.
      const cost = Math.max(deliveries, share);
      taken += cost;
      this.#advance(account, cost);
    }
    // One whose next event is cheap has its turns like any other. In this queue it would be the first in every pass.
    const stays = new Set([...pass.heavy, ...pass.skipped].map(({ account }) => account));
    for (const { account, hasMore } of pass.visited) {
      if (!hasMore || !stays.has(account)) this.#accounts.delete(account);
    }
    if (pass.heavy.length === 0) return;
    const hasMore = pass.skipped.length > 0 || pass.visited.some((each) => each.hasMore);
    this.#adjust(now, durationMs, hasMore, isBehind, taken);
  }

  /** Learns from a slice. @param isFull whether the event has further lanes */
  learnSlice(account: string, isFull: boolean, now: number, durationMs: number, isBehind: boolean): void {
    this.#advance(account, this.#share);
    this.#adjust(now, durationMs, isFull, isBehind, 0);
  }

  /** The account has no events left, or no longer many subscriptions. */
  forget(account: string): void {
    this.#accounts.delete(account);
  }

  /** @param taken deliveries that the pass took of heavy accounts; 0 for a slice, which is not during a rest */
  #adjust(now: number, durationMs: number, isLimited: boolean, isBehind: boolean, taken: number): void {
    if (durationMs > passMsMax) this.#share = Math.max(this.#share / 2, shareMin);
    else if (isLimited && durationMs < passMsMax / 2)
      this.#share = Math.min(this.#share * 2, passLimits.deliveries / 2);
    if (!isBehind) this.#restsUntil = now;
    // Small turns do not prolong the rest.
    else if (now - durationMs < this.#restsUntil) this.#smallLeft -= taken;
    else {
      this.#restsUntil = now + Math.min(durationMs * restFactor, restMsMax);
      this.#smallLeft = smallOfRestMax;
    }
  }

  /** The accounts that may have a turn, the one whose turn ends first is first. */
  #inOrder(visits: (account: string) => boolean): [account: string, turn: Turn][] {
    const waiting = [...this.#accounts].filter(([account]) => visits(account));
    return waiting.sort(([, one], [, other]) => one.endsAt - other.endsAt);
  }

  #isSmall({ deliveries }: Turn): boolean {
    return deliveries <= Math.min(smallMax, this.#smallLeft);
  }

  #remember({ account, deliveries }: HeavyAccount): void {
    const known = this.#accounts.get(account);
    // Its next event may cost more or less than the last one.
    if (known !== undefined) known.deliveries = deliveries;
    else if (this.#accounts.size < rememberedMax) {
      const cost = deliveries >= sliceDeliveriesMin ? this.#share : deliveries;
      this.#accounts.set(account, { deliveries, endsAt: this.#time + cost });
    }
  }

  /** The account has had a turn. */
  #advance(account: string, deliveries: number): void {
    const turn = this.#accounts.get(account);
    if (turn === undefined) return;
    this.#time += deliveries / this.#accounts.size;
    turn.endsAt += deliveries;
  }
}
