/**
 * Heavy accounts: their next event may become many deliveries, or a filter has to parse its large body, which costs as much. They take
 * turns among themselves, so that a pass stays short, and all other accounts have a turn in every pass. Every other event waits for the running pass, so their share of it shrinks
 * when passes take long. While this node has enough to send, heavy accounts also rest between their turns, so that fan-out leaves
 * the processor and the database to sending.
 *
 *   an event may cost many deliveries → heavy → resting (passes skip it) → its turn → resting → … → no such event next → forgotten
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

/**
 * After a pass that took longer, the share of heavy accounts is halved. After one that took less than half of it, the share is
 * doubled.
 */
const passMsMax = 25;
/** The share of heavy accounts, in deliveries. At most half of a pass. */
const shareMin = 250;
const shareFirst = 1_000;

export type HeavyTurns = Pick<PassRange, 'resting' | 'entitled' | 'heavyShare' | 'skipsFrom'>;

export class HeavyAccounts {
  /** What one event may cost in deliveries, by account. The account whose turn comes next is first. */
  readonly #accounts = new Map<string, number>();
  #restsUntil = Number.NEGATIVE_INFINITY;
  #share = shareFirst;

  /** Until when all heavy accounts rest, in milliseconds on the monotonic clock. */
  get restsUntil(): number {
    return this.#restsUntil;
  }

  /** Deliveries of one turn of heavy accounts. */
  get share(): number {
    return this.#share;
  }

  /** Whether the account's events are fanned out in slices. */
  isSliced(account: string): boolean {
    return (this.#accounts.get(account) ?? 0) >= sliceDeliveriesMin;
  }

  /** The account whose slice is next. @param isWaiting whether an account has events */
  nextSliced(now: number, isWaiting: (account: string) => boolean): string | undefined {
    if (now < this.#restsUntil) return undefined;
    return [...this.#accounts.keys()].find((account) => this.isSliced(account) && isWaiting(account));
  }

  /** When the next slice may be, in milliseconds on the monotonic clock; infinity if no account waits for one. */
  slicedAt(isWaiting: (account: string) => boolean): number {
    for (const account of this.#accounts.keys()) {
      if (this.isSliced(account) && isWaiting(account)) return this.#restsUntil;
    }
    return Number.POSITIVE_INFINITY;
  }

  /**
   * Decides which heavy accounts have their turn in the next pass, and which it skips. They get up to their share of the pass;
   * one account always fits.
   * @param visits whether the pass may visit the account
   * @param now milliseconds on the monotonic clock
   */
  turns(limits: PassLimits, visits: (account: string) => boolean, now: number): HeavyTurns {
    const resting: string[] = [];
    const entitled: string[] = [];
    const heavyShare = Math.min(this.#share, limits.deliveries / 2);
    let left = now < this.#restsUntil ? 0 : heavyShare;
    let isFirst = now >= this.#restsUntil;
    for (const [account, deliveries] of this.#accounts) {
      if (deliveries >= sliceDeliveriesMin || !visits(account)) continue;
      if (isFirst || deliveries <= left) {
        left -= deliveries;
        entitled.push(account);
      } else resting.push(account);
      isFirst = false;
    }
    // An account that cannot be remembered would be skipped for ever.
    const skipsFrom = this.#accounts.size < rememberedMax ? heavyShare : limits.deliveries;
    return { resting, entitled, heavyShare: Math.floor(heavyShare), skipsFrom };
  }

  /**
   * Learns from a pass.
   * @param durationMs how long the pass took
   * @param isBehind whether this node has enough to send for a while
   */
  learn(pass: FanOutPass, now: number, durationMs: number, isBehind: boolean): void {
    for (const heavy of pass.skipped) {
      // Counted again, it may have become larger. An account that rests is not counted.
      if (!this.#accounts.has(heavy.account) || heavy.deliveries >= sliceDeliveriesMin) this.#append(heavy);
    }
    // To the end of the queue, in the order of their turns.
    const taken = new Map(pass.heavy.map((heavy) => [heavy.account, heavy]));
    const known = [...this.#accounts.keys()].filter((account) => taken.has(account));
    for (const account of known) this.#accounts.delete(account);
    for (const account of [...known, ...taken.keys()]) {
      if (!this.#accounts.has(account)) this.#append(taken.get(account) as HeavyAccount);
    }
    // One whose next event is cheap has its turns like any other. In this queue it would be the first in every pass.
    const stays = new Set([...taken.keys(), ...pass.skipped.map(({ account }) => account)]);
    for (const { account, hasMore } of pass.visited) {
      if (!hasMore || !stays.has(account)) this.#accounts.delete(account);
    }
    if (pass.heavy.length === 0) return;
    const hasMore = pass.skipped.length > 0 || pass.visited.some((each) => each.hasMore);
    this.#adjust(now, durationMs, hasMore, isBehind);
  }

  /** Learns from a slice. @param isFull whether the event has further lanes */
  learnSlice(account: string, isFull: boolean, now: number, durationMs: number, isBehind: boolean): void {
    const deliveries = this.#accounts.get(account);
    this.#accounts.delete(account);
    if (deliveries !== undefined) this.#append({ account, deliveries });
    this.#adjust(now, durationMs, isFull, isBehind);
  }

  /** The account has no events left, or no longer many subscriptions. */
  forget(account: string): void {
    this.#accounts.delete(account);
  }

  #adjust(now: number, durationMs: number, isLimited: boolean, isBehind: boolean): void {
    if (durationMs > passMsMax) this.#share = Math.max(this.#share / 2, shareMin);
    else if (isLimited && durationMs < passMsMax / 2)
      this.#share = Math.min(this.#share * 2, passLimits.deliveries / 2);
    this.#restsUntil = isBehind ? now + Math.min(durationMs * restFactor, restMsMax) : now;
  }

  #append({ account, deliveries }: HeavyAccount): void {
    if (this.#accounts.has(account) || this.#accounts.size < rememberedMax)
      this.#accounts.set(account, deliveries);
  }
}
