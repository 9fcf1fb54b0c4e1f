/**
 * What waits for the places of one class, and how much may wait.
 *
 * A short queue takes up a burst. A queue that stands makes every request late and serves none sooner, so it is bounded: when the
 * requests of a whole interval had to wait longer than the target, only as many may wait as are served within the target (Little's
 * law). The bound ends when nothing waits any more. The smallest value of an interval counts, as in CoDel (RFC 8289).
 *
 * With twenty callers that always wait, the share of each is two requests, and a burst of three by whoever sends one a second would be refused. So a few
 * of whoever has had little time in places lately take the place of requests of whoever has had most. Requests do not count, but their time: otherwise a
 * caller with many short ones would give way to those who keep the node busy with few long ones. And nobody loses more than a small part of its requests.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from '../../shared/entries.ts';
import { OwnerTurns, type Sharer } from '../../shared/owner_turns.ts';
import { namesMax, RecentTime } from '../../shared/recent_time.ts';
import type { Caller } from './caller.ts';
import { CallerCounts } from './caller_counts.ts';

/** So many requests of a caller that has had little may wait, whatever the others have. */
const burstMax = 8;
/** It has had little if it had less than this part of what another one had. */
const littlePart = 1 / 4;
/** So much of a caller's waiting requests, of those that get a place, others may displace at most. */
const displacedPart = 1 / 16;
/** Only those of so many callers, because each refused request looks for one. */
const busiestMax = 16;
/**
 * A caller counts for as much as its group divided by this, beside callers outside of the group. Otherwise an app with very many users, or a site
 * with very many networks, would take the places of everybody who has much to do.
 */
const groupWeight = 4;

/** Why a request was refused: too many of its class wait, its caller's share is used up, or it waited too long. */
export type Reason = 'full' | 'share' | 'deadline';

/** A request that waits. */
export interface Waiting {
  readonly caller: Caller;
  readonly state: string;
}

export interface Waiter<Request extends Waiting> {
  place: Request;
  deadline: number;
  admit: () => void;
  refuse: (reason: Reason) => void;
}

export interface QueueLimits {
  /** The most waiting requests, and how many may wait however few are served. */
  waitingMax: number;
  waitingMin: number;
  /** Longest wait in milliseconds. */
  waitMsMax: number;
  /** Longest wait in milliseconds that may last. */
  targetMs: number;
}

export class Queue<Request extends Waiting> {
  readonly limits: QueueLimits;
  /** Requests that had a place before. They go first, as far as the shares of their callers allow. */
  readonly resumed = new OwnerTurns<Waiter<Request>>();
  readonly others = new OwnerTurns<Waiter<Request>>();
  readonly #waiting = new CallerCounts();
  /** The milliseconds that callers and groups have had in places lately, while requests waited. */
  readonly #had = new RecentTime();
  /** How many requests of callers others may displace. */
  readonly #displaceable = new LRUCache<string, number>(upTo(namesMax));
  /** Who had most of those that waited at the end of the last interval. */
  #busiest: readonly Sharer[] = [];
  /** Whoever has had as much has not had little. */
  #little = 0;
  #resumed = 0;
  #limit: number;
  /** Of the current interval. */
  #fewest = 0;
  #taken = 0;

  constructor(limits: QueueLimits) {
    this.limits = limits;
    this.#limit = limits.waitingMax;
  }

  get size(): number {
    return this.#waiting.size;
  }

  /** Why the caller may have none more waiting; null if it may, perhaps in place of others. Without a caller, of those whose share is not used up. */
  refusalOf(caller: Caller | undefined): Reason | null {
    const reason = this.#reasonFor(caller);
    return reason !== null && caller !== undefined && this.#findDisplaced(caller) ? null : reason;
  }

  #reasonFor(caller: Caller | undefined): Reason | null {
    if (this.size >= this.#limit) return 'full';
    if (caller === undefined) return null;
    return this.#waiting.hasRoom(this.#limit, caller) ? null : 'share';
  }

  /** Makes room for a request. @returns why it may not wait, or the request that may wait no longer, if there is one */
  makeRoom(caller: Caller): { reason: Reason | null; displaced?: Waiter<Request> } {
    const reason = this.#reasonFor(caller);
    const displaced = reason === null ? undefined : this.#findDisplaced(caller);
    if (displaced === undefined) return { reason };
    const { caller: other } = displaced.place;
    this.others.remove(other.owner, displaced);
    this.#waiting.change(other, -1);
    this.#displaceable.set(other.owner, this.#displaceableOf(other) - 1);
    return { reason: null, displaced };
  }

  /** Finds the newest request of the caller that has had most, if it has had much more than this one. */
  #findDisplaced(caller: Caller): Waiter<Request> | undefined {
    const now = performance.now();
    const { owner, group } = caller;
    const own = this.#had.of(owner, now);
    if (own >= this.#little || this.others.countOf(owner) >= burstMax) return undefined;
    const withGroup = group === null ? own : Math.max(own, this.#had.of(group, now) / groupWeight);
    let [most, displaced]: [number, Waiter<Request> | undefined] = [0, undefined];
    for (const other of this.#busiest) {
      const waiter = this.others.lastOfPart(other);
      if (waiter === undefined) continue;
      const had = this.#had.of(other.owner, now);
      const isOfGroup = group !== null && waiter.place.caller.group === group;
      const isLittle = (isOfGroup ? own : withGroup) < littlePart * had;
      if (isLittle && had > most && this.#displaceableOf(other) >= 1) [most, displaced] = [had, waiter];
    }
    return displaced;
  }

  #displaceableOf({ owner }: { readonly owner: string }): number {
    return this.#displaceable.get(owner) ?? 0;
  }

  /** The caller has had a place for so long, while requests waited. */
  count({ owner, group }: Caller, ms: number): void {
    this.#had.add(owner, ms);
    if (group !== null) this.#had.add(group, ms);
  }

  add(waiter: Waiter<Request>): void {
    const { caller } = waiter.place;
    this.others.add(caller.owner, waiter, caller.part);
    this.#waiting.change(caller, 1);
  }

  /** Adds a request that had a place before. */
  addResumed(waiter: Waiter<Request>): void {
    const { owner, part } = waiter.place.caller;
    this.resumed.add(owner, waiter, part);
    this.#resumed += 1;
  }

  /** All that wait. */
  get waiting(): number {
    return this.size + this.#resumed;
  }

  /** Takes the next request whose caller may go: of those that had a place before first. */
  take(mayGo: (caller: Caller) => boolean, areNewOnesMeant: () => boolean): Waiter<Request> | undefined {
    for (const [{ owner, part }, { place }] of this.resumed.firsts()) {
      if (!mayGo(place.caller)) continue;
      this.#resumed -= 1;
      return this.resumed.takeOf(owner, part);
    }
    if (!areNewOnesMeant()) return undefined;
    for (const [{ owner, part }, { place }] of this.others.firsts()) {
      if (!mayGo(place.caller)) continue;
      this.#taken += 1;
      this.#leave(place);
      this.#displaceable.set(owner, Math.min(this.#displaceableOf(place.caller) + displacedPart, burstMax));
      return this.others.takeOf(owner, part);
    }
    return undefined;
  }

  /** Takes out the requests that waited too long, and those whose clients have gone. */
  takeLate(now: number): Waiter<Request>[] {
    const isLate = ({ deadline, place }: Waiter<Request>) => deadline <= now || place.state === 'left';
    const resumed = this.resumed.takeIf(isLate);
    this.#resumed -= resumed.length;
    const others = this.others.takeIf(isLate);
    for (const { place } of others) this.#leave(place);
    return [...resumed, ...others];
  }

  /** Ends an interval, and bounds what waits. @returns the requests that may wait no longer */
  adapt(elapsedMs: number): Waiter<Request>[] {
    const { waitingMax, waitingMin, targetMs } = this.limits;
    const waitMs = (this.#fewest * elapsedMs) / Math.max(this.#taken, 1);
    if (this.#fewest === 0) this.#limit = waitingMax;
    else if (waitMs > targetMs || this.#limit < waitingMax) {
      const servedInTime = Math.floor((this.#taken * targetMs) / elapsedMs);
      this.#limit = Math.min(waitingMax, Math.max(waitingMin, servedInTime));
    }
    const excess = this.size > this.#limit ? this.#trim() : [];
    this.#findBusiest();
    this.#fewest = this.size;
    this.#taken = 0;
    return excess;
  }

  /**
   * Leaves an equal part to each app, and to each caller without one, and of an app to each account: its oldest requests. An account has no more
   * for several apps: anybody has many.
   */
  #trim(): Waiter<Request>[] {
    const lines = [...this.others.lines()].map((line) => line.toReversed());
    const shareOf = sharesOf(lines.flat());
    const shares = Math.min(new Set(lines.flat().map(shareOf)).size, lines.length);
    const part = Math.max(1, Math.floor(this.#limit / shares));
    const keptOf = new Map<string, number>();
    const kept = new Set<Waiter<Request>>();
    const keepNext = (line: Waiter<Request>[]) => {
      for (let waiter = line.pop(); waiter !== undefined; waiter = line.pop()) {
        const own = [...new Set([shareOf(waiter), waiter.place.caller.owner])];
        if (own.some((share) => (keptOf.get(share) ?? 0) >= part)) continue;
        for (const share of own) keptOf.set(share, (keptOf.get(share) ?? 0) + 1);
        kept.add(waiter);
        return;
      }
    };
    // In each round, each account keeps one more.
    while (lines.some(({ length }) => length > 0)) {
      for (const line of lines) if (kept.size < this.#limit) keepNext(line);
      if (kept.size >= this.#limit) break;
    }
    const excess = this.others.takeIf((waiter) => !kept.has(waiter));
    for (const { place } of excess) this.#waiting.change(place.caller, -1);
    return excess;
  }

  #findBusiest(): void {
    const now = performance.now();
    const all = [...this.others.firsts()].map(([sharer]) => ({
      sharer,
      had: this.#had.of(sharer.owner, now),
    }));
    all.sort((one, other) => other.had - one.had);
    this.#busiest = all.slice(0, busiestMax).map(({ sharer }) => sharer);
    this.#little = littlePart * (all[0]?.had ?? 0);
  }

  #leave({ caller }: Request): void {
    this.#waiting.change(caller, -1);
    this.#fewest = Math.min(this.#fewest, this.size);
  }
}

/** Whose part each waiter takes from: its app's, or its caller's, who may have any number of apps without another caller. */
function sharesOf(waiters: readonly Waiter<Waiting>[]): (waiter: Waiter<Waiting>) => string {
  const ownersOf = new Map<string, Set<string>>();
  for (const { place } of waiters) {
    const { owner, group } = place.caller;
    if (group !== null) ownersOf.set(group, (ownersOf.get(group) ?? new Set()).add(owner));
  }
  return ({ place }) => {
    const { owner, group } = place.caller;
    return group === null || ownersOf.get(group)?.size === 1 ? owner : group;
  };
}
