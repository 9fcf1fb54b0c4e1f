/**
 * What waits for the places of one class, and how much may wait.
 *
 * A short queue takes up a burst. A queue that stands makes every request late and serves none sooner, so it is bounded: when the
 * requests of a whole interval had to wait longer than the target, only as many may wait as are served within the target (Little's
 * law). The bound ends when nothing waits any more. The smallest value of an interval counts, as in CoDel (RFC 8289).
 */

import { OwnerTurns } from '../../shared/owner_turns.ts';
import type { Caller } from './caller.ts';
import { CallerCounts } from './caller_counts.ts';

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

  /** Why the caller may have none more waiting; null if it may. Without a caller, of those whose share is not used up. */
  refusalOf(caller: Caller | undefined): Reason | null {
    if (this.size >= this.#limit) return 'full';
    if (caller === undefined) return null;
    return this.#waiting.hasRoom(this.#limit, caller) ? null : 'share';
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
