/**
 * Who is next for something that works for one after the other: connections, a thread, turns of expensive reads. With equal turns, a dozen owners with
 * long pieces make each short piece of all others wait for a dozen of theirs. With recent time alone, whoever has used what nobody
 * else wanted is last for as long as that is remembered, and so is everybody who uses the same app.
 *
 * So this is start-time fair queueing (Goyal, Vin and Cheng, 1996). A virtual time is that up to which everybody who waits has been served.
 * What one has begins at it, or where the last one ended, and what begins first is next. Who has little comes a little
 * before the virtual time, because requests come in bursts. The members of a group share what it gets in the same way, with a virtual time of the
 * group: all of them begin where its last one ended, and without that, whoever has little would wait for all others. Of equals, the first is next.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from './entries.ts';
import type { GroupMember } from './owner_turns.ts';
import { namesMax } from './recent_time.ts';

/**
 * The time of a group is that of all its members divided by this. So an app gets no more than four accounts, although it may act for any number of
 * them. With an equal share for each app, all users of a large one together would get no more than one account of another.
 */
const groupWeight = 4;
/** So many milliseconds one may be behind. The more, the longer bursts may be, and the longer others wait for each that has had nothing. */
const creditMs = 250;
/** So little that it decides between members of a group only. */
const memberPart = 1 / 1_000;
/** With turns in place of time: whoever had none is next, as by plain turns, and of equals, the first. */
const creditTurns = 1;
/**
 * A member of a group may be so far behind its others: a request needs up to eight turns, or some 50 ms, and each piece would wait for one of all of
 * these. All of them may have it at once.
 */
const memberCredit = { turns: 8, ms: 50 };

/** Whose time it is. */
export type TimeOwner = Pick<GroupMember, 'owner' | 'group'>;

/** The virtual time of a group. */
interface GroupTime {
  /** If a group is forgotten before its members, what these have had refers to another one. */
  readonly id: number;
  time: number;
}

export class FairTime {
  readonly #credit: number;
  readonly #memberCredit: number;
  /** In milliseconds of service, or in turns. */
  #virtualTime = 0;
  /** The virtual time at which what owners and groups have had ends. */
  readonly #ends = new LRUCache<string, number>(upTo(namesMax));
  readonly #groups = new LRUCache<string, GroupTime>(upTo(namesMax));
  #nextId = 0;
  /** The virtual time of its group at which what a member has had ends. */
  readonly #memberEnds = new LRUCache<string, number>(upTo(namesMax));

  /** @param isByTurns whether turns are shared, whatever time they take */
  constructor(isByTurns = false) {
    this.#credit = isByTurns ? creditTurns : creditMs;
    this.#memberCredit = isByTurns ? memberCredit.turns : memberCredit.ms;
  }

  /** The owner begins while nobody waits who may. */
  begin(one: TimeOwner): void {
    this.catchUp([one]);
  }

  /** The owner has had so many milliseconds, or turns. */
  add({ owner, group }: TimeOwner, amount: number): void {
    this.#ends.set(owner, this.#endOf(owner) + amount);
    if (group === null) return;
    this.#ends.set(group, this.#endOf(group) + amount / groupWeight);
    const groupTime = this.#groupTimeOf(group);
    this.#memberEnds.set(nameOf(groupTime, owner), this.#memberEndOf(groupTime, owner) + amount);
  }

  /** These may begin, so nobody remains further behind the first of them than the credit, nor of the first of its group. */
  catchUp(waiting: Iterable<TimeOwner>): void {
    let first = Number.POSITIVE_INFINITY;
    const firsts = new Map<GroupTime, number>();
    for (const one of waiting) {
      first = Math.min(first, this.#startOf(one));
      if (one.group === null) continue;
      const groupTime = this.#groupTimeOf(one.group);
      const end = this.#memberEndOf(groupTime, one.owner);
      firsts.set(groupTime, Math.min(firsts.get(groupTime) ?? end, end));
    }
    if (first < Number.POSITIVE_INFINITY) this.#virtualTime = Math.max(this.#virtualTime, first);
    for (const [groupTime, end] of firsts) groupTime.time = Math.max(groupTime.time, end);
  }

  /** Whoever has the least place is next. */
  placeOf(one: TimeOwner): number {
    const { owner, group } = one;
    const start = this.#startOf(one);
    if (group === null) return start;
    const groupTime = this.#groupTimeOf(group);
    return start + (this.#memberEndOf(groupTime, owner) - groupTime.time) * memberPart;
  }

  /** Of those who wait, the next; of equals, the first. */
  nextOf<Some extends TimeOwner>(waiting: readonly Some[]): Some | undefined {
    this.catchUp(waiting);
    let next: Some | undefined;
    let least = Number.POSITIVE_INFINITY;
    for (const one of waiting) {
      const place = this.placeOf(one);
      if (place < least) [next, least] = [one, place];
    }
    return next;
  }

  #startOf({ owner, group }: TimeOwner): number {
    return Math.max(this.#endOf(owner), group === null ? Number.NEGATIVE_INFINITY : this.#endOf(group));
  }

  #endOf(name: string): number {
    return Math.max(this.#ends.peek(name) ?? Number.NEGATIVE_INFINITY, this.#virtualTime - this.#credit);
  }

  #groupTimeOf(group: string): GroupTime {
    const known = this.#groups.get(group);
    if (known !== undefined) return known;
    const created = { id: this.#nextId++, time: 0 };
    this.#groups.set(group, created);
    return created;
  }

  #memberEndOf(groupTime: GroupTime, owner: string): number {
    const end = this.#memberEnds.peek(nameOf(groupTime, owner)) ?? Number.NEGATIVE_INFINITY;
    return Math.max(end, groupTime.time - this.#memberCredit);
  }
}

function nameOf({ id }: GroupTime, member: string): string {
  return `${id} ${member}`;
}
