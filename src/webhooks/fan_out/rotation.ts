/**
 * Tracks where fan-out is in its rotation over the accounts. One rotation visits every account with waiting events once, in one
 * or more passes, and takes events of one UTC day. If the oldest events of some accounts are of another day, that day's rotation
 * is next.
 *
 *   rotation of a day → pass after pass, each after the last account of the previous one → end → rotation of the next day
 */

import type { FanOutPass } from './fan_out.ts';
import type { HeavyTurns } from './heavy_accounts.ts';
import { beforeFirstTurn, type PassLimits, type PassRange } from './outbox_selection.ts';

/** Events to fan out now; only events of accounts that rest; nothing. */
export type Remainder = 'more' | 'resting' | 'none';

export class Rotation {
  #day: string;
  #after = beforeFirstTurn;
  readonly #otherDays = new Set<string>();
  /** Whether a pass of this rotation left events of a visited account behind. */
  #hasMore = false;
  /** Whether a pass of this rotation skipped an account. */
  #hasSkipped = false;

  /** @param day the UTC day of most events at first */
  constructor(day: string) {
    this.#day = day;
  }

  /** The next pass starts after this account. */
  get after(): string {
    return this.#after;
  }

  range(
    limits: PassLimits,
    heavy: HeavyTurns = {
      resting: [],
      entitled: [],
      heavyShare: limits.deliveries,
      skipsFrom: limits.deliveries,
    },
  ): PassRange {
    return { day: this.#day, after: this.#after, ...heavy, limits };
  }

  /** Skips an account that cannot have its turn now. */
  skip(turn: string): void {
    this.#after = turn;
    this.#hasMore = true;
  }

  /** @returns what the outbox has left, as far as this rotation has seen */
  advance({ last, isEnd, hasMore, skipped, otherDays }: FanOutPass): Remainder {
    this.#hasMore ||= hasMore;
    this.#hasSkipped ||= skipped.length > 0;
    for (const day of otherDays) this.#otherDays.add(day);
    this.#after = isEnd ? beforeFirstTurn : last;
    if (!isEnd) return 'more';
    const hasMoreNow = this.#hasMore || this.#otherDays.size > 0;
    const remainder = hasMoreNow ? 'more' : this.#hasSkipped ? 'resting' : 'none';
    const days = [...this.#otherDays].sort();
    this.#day = days.find((day) => day > this.#day) ?? days[0] ?? this.#day;
    this.#otherDays.clear();
    this.#hasMore = false;
    this.#hasSkipped = false;
    return remainder;
  }
}
