/**
 * Heavy accounts: each of their events may become many deliveries. They take turns among themselves, so that a pass stays short,
 * and all other accounts have a turn in every pass. Every other event waits for the running pass, so their share of it shrinks
 * when passes take long. While this node has enough to send, heavy accounts also rest between their turns, so that fan-out leaves
 * the processor and the database to sending.
 *
 *   an event may become many deliveries → heavy → resting (passes skip it) → its turn → resting → … → no event left → forgotten
 */

import type { FanOutPass, HeavyAccount } from './fan_out.ts';
import { type PassLimits, type PassRange, passLimits } from './outbox_selection.ts';

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
  /** Deliveries of one event, by account. The account whose turn comes next is first. */
  readonly #accounts = new Map<string, number>();
  /** Accounts that had events in this rotation. */
  readonly #seen = new Set<string>();
  #restsUntil = Number.NEGATIVE_INFINITY;
  #share = shareFirst;

  /** Until when all heavy accounts rest, in milliseconds on the monotonic clock. */
  get restsUntil(): number {
    return this.#restsUntil;
  }

  /**
   * Decides which heavy accounts have their turn in the next pass, and which it skips. They get up to their share of the pass;
   * one account always fits.
   * @param after the pass starts after this account
   * @param now milliseconds on the monotonic clock
   */
  turns(limits: PassLimits, after: string, now: number): HeavyTurns {
    const resting: string[] = [];
    const entitled: string[] = [];
    const heavyShare = Math.min(this.#share, limits.deliveries / 2);
    let left = now < this.#restsUntil ? 0 : heavyShare;
    let isFirst = now >= this.#restsUntil;
    for (const [account, deliveries] of this.#accounts) {
      if (account <= after) continue;
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
    for (const { account } of pass.skipped) this.#seen.add(account);
    for (const heavy of pass.skipped) if (!this.#accounts.has(heavy.account)) this.#append(heavy);
    const taken = new Map(pass.heavy.map((heavy) => [heavy.account, heavy]));
    for (const account of taken.keys()) this.#seen.add(account);
    // To the end of the queue, in the order of their turns.
    const known = [...this.#accounts.keys()].filter((account) => taken.has(account));
    for (const account of known) this.#accounts.delete(account);
    for (const account of [...known, ...taken.keys()]) {
      if (!this.#accounts.has(account)) this.#append(taken.get(account) as HeavyAccount);
    }
    if (pass.heavy.length > 0) {
      const isLimited = pass.hasMore || pass.skipped.length > 0;
      if (durationMs > passMsMax) this.#share = Math.max(this.#share / 2, shareMin);
      else if (isLimited && durationMs < passMsMax / 2)
        this.#share = Math.min(this.#share * 2, passLimits.deliveries / 2);
      this.#restsUntil = isBehind ? now + Math.min(durationMs * restFactor, restMsMax) : now;
    }
    if (!pass.isEnd) return;
    for (const account of this.#accounts.keys()) if (!this.#seen.has(account)) this.#accounts.delete(account);
    this.#seen.clear();
  }

  #append({ account, deliveries }: HeavyAccount): void {
    if (this.#accounts.size < rememberedMax) this.#accounts.set(account, deliveries);
  }
}
