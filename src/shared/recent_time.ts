/**
 * How much time owners have had lately of something that works for one after the other. Next is whoever has had least: with equal turns, a
 * dozen owners with long pieces make each short piece of all others wait for a dozen of theirs.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from './entries.ts';
import type { GroupMember } from './owner_turns.ts';

/** After so many milliseconds, half of the time counts. The longer, the longer new owners go before a busy one. */
const halfMs = 10_000;
/** Maximum owners and groups to remember. */
const ownersMax = 10_000;
/**
 * This part of what a group has had counts for each of its members. So an app gets no more than five accounts, although it may act for any number
 * of them. With an equal share for each app, all users of a large one together would get no more than one account of another.
 */
const groupPart = 1 / 4;

/** Whose time it is. */
export type TimeOwner = Pick<GroupMember, 'owner' | 'group'>;

export class RecentTime {
  /** The milliseconds that owners and groups have had, and when they had the last of them. */
  readonly #had = new LRUCache<string, { ms: number; at: number }>(upTo(ownersMax));

  /** The owner has had so many milliseconds more. */
  add({ owner, group }: TimeOwner, ms: number): void {
    const now = performance.now();
    this.#add(owner, ms, now);
    if (group !== null) this.#add(group, ms, now);
  }

  /** Of those whose owners have had equally much, the first. */
  leastOf<Some extends TimeOwner>(those: Iterable<Some>): Some | undefined {
    const now = performance.now();
    let first: Some | undefined;
    let least = Number.POSITIVE_INFINITY;
    for (const one of those) {
      const ms = this.of(one, now);
      if (ms < least) [first, least] = [one, ms];
    }
    return first;
  }

  /** What counts of the time of an owner and its group, in milliseconds: whoever has least is next. */
  of({ owner, group }: TimeOwner, now = performance.now()): number {
    const ofGroup = group === null ? 0 : this.#leftOf(group, now);
    return this.#leftOf(owner, now) + ofGroup * groupPart;
  }

  #add(name: string, ms: number, now: number): void {
    this.#had.set(name, { ms: this.#leftOf(name, now) + ms, at: now });
  }

  #leftOf(name: string, now: number): number {
    const had = this.#had.peek(name);
    return had === undefined ? 0 : had.ms * 0.5 ** ((now - had.at) / halfMs);
  }
}
