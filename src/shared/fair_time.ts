/**
 * Who is next for something that works for one after the other: connections, a thread, turns of expensive reads. With equal turns, a dozen owners with
 * long pieces make each short piece of all others wait for a dozen of theirs. With recent time alone, whoever has used what nobody
 * else wanted is last for as long as that is remembered, and so is everybody who uses the same app.
 *
 * So this is start-time fair queueing (Goyal, Vin and Cheng, 1996). A virtual time is that up to which everybody who waits has been served.
 * What one has begins at it, or where the last one ended, and what begins first is next. Who has little comes a little
 * before the virtual time, because requests come in bursts. Of equals, whoever has had least lately is next, or by turns, whoever waits first.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from './entries.ts';
import type { GroupMember } from './owner_turns.ts';
import { namesMax, RecentTime } from './recent_time.ts';

/**
 * The time of a group is that of all its members divided by this. So an app gets no more than four accounts, although it may act for any number of
 * them. With an equal share for each app, all users of a large one together would get no more than one account of another.
 */
const groupWeight = 4;
/** So many milliseconds one may be behind. The more, the longer bursts may be, and the longer others wait for each that has had nothing. */
const creditMs = 250;
/** Less than any piece, so that it decides between equals only. */
const recentPart = 1 / 1_000;
/** With turns in place of time: whoever had none is next, as by plain turns, and of equals, the first. */
const creditTurns = 1;

/** Whose time it is. */
export type TimeOwner = Pick<GroupMember, 'owner' | 'group'>;

export class FairTime {
  readonly #isByTurns: boolean;
  /** In milliseconds of service, or in turns. */
  #virtualTime = 0;
  /** The virtual time at which what owners and groups have had ends. */
  readonly #ends = new LRUCache<string, number>(upTo(namesMax));
  readonly #recent = new RecentTime();

  /** @param isByTurns whether turns are shared, whatever time they take */
  constructor(isByTurns = false) {
    this.#isByTurns = isByTurns;
  }

  /** The owner begins while nobody waits who may. */
  begin(one: TimeOwner): void {
    this.catchUp([one]);
  }

  /** The owner has had so many milliseconds, or turns. */
  add({ owner, group }: TimeOwner, amount: number): void {
    if (!this.#isByTurns) this.#recent.add(owner, amount);
    this.#ends.set(owner, this.#endOf(owner) + amount);
    if (group !== null) this.#ends.set(group, this.#endOf(group) + amount / groupWeight);
  }

  /** These may begin, so nobody remains further behind the first of them than the credit. */
  catchUp(waiting: Iterable<TimeOwner>): void {
    let first = Number.POSITIVE_INFINITY;
    for (const one of waiting) first = Math.min(first, this.#startOf(one));
    if (first < Number.POSITIVE_INFINITY) this.#virtualTime = Math.max(this.#virtualTime, first);
  }

  /** Whoever has the least place is next. @param now milliseconds, the same for all that are compared */
  placeOf(one: TimeOwner, now: number): number {
    const start = this.#startOf(one);
    return this.#isByTurns ? start : start + this.#recent.of(one.owner, now) * recentPart;
  }

  /** Of those who wait, the next; of equals, the first. */
  nextOf<Some extends TimeOwner>(waiting: readonly Some[]): Some | undefined {
    this.catchUp(waiting);
    const now = performance.now();
    let next: Some | undefined;
    let least = Number.POSITIVE_INFINITY;
    for (const one of waiting) {
      const place = this.placeOf(one, now);
      if (place < least) [next, least] = [one, place];
    }
    return next;
  }

  #startOf({ owner, group }: TimeOwner): number {
    return Math.max(this.#endOf(owner), group === null ? Number.NEGATIVE_INFINITY : this.#endOf(group));
  }

  #endOf(name: string): number {
    return Math.max(
      this.#ends.peek(name) ?? Number.NEGATIVE_INFINITY,
      this.#virtualTime - (this.#isByTurns ? creditTurns : creditMs),
    );
  }
}
