/**
 * What waits for the places of one class, and how much may wait.
 *
 * A short queue takes up a burst. A queue that stands makes every request late and serves none sooner, so it is bounded: when the
 * requests of a whole interval had to wait longer than the target, only as many may wait as are served within the target (Little's
 * law). The bound ends when nothing waits any more. The smallest value of an interval counts, as in CoDel (RFC 8289).
 */

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
  /** Requests that had a place before, by owner. They go first, as far as the shares of their owners allow. */
  readonly resumed = new Map<string, Waiter<Request>[]>();
  /** By owner. An owner moves to the end after its turn. */
  readonly byOwner = new Map<string, Waiter<Request>[]>();
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
    append(this.byOwner, waiter);
    this.#waiting.change(waiter.place.caller, 1);
  }

  /** Adds a request that had a place before. */
  addResumed(waiter: Waiter<Request>): void {
    append(this.resumed, waiter);
    this.#resumed += 1;
  }

  /** All that wait. */
  get waiting(): number {
    return this.size + this.#resumed;
  }

  /** Takes the oldest resumed request of an owner, and moves the owner to the end. */
  takeResumed(owner: string, waiting: Waiter<Request>[]): Waiter<Request> {
    this.#resumed -= 1;
    return shift(this.resumed, owner, waiting);
  }

  /** Takes the oldest request of an owner, and moves the owner to the end. */
  take(owner: string, waiting: Waiter<Request>[]): Waiter<Request> {
    this.#taken += 1;
    return this.#shift(owner, waiting);
  }

  /** Takes out the requests that waited too long, and those whose clients have gone. */
  takeLate(now: number): Waiter<Request>[] {
    const late: Waiter<Request>[] = [];
    const isLate = (waiter: Waiter<Request> | undefined) =>
      waiter !== undefined && (waiter.deadline <= now || waiter.place.state === 'left');
    for (const [owner, waiting] of [...this.resumed]) {
      while (isLate(waiting[0])) late.push(this.takeResumed(owner, waiting));
    }
    for (const [owner, waiting] of [...this.byOwner]) {
      while (isLate(waiting[0])) late.push(this.#shift(owner, waiting));
    }
    return late;
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

  /** Leaves an equal part to each app, and to each caller without one, and of an app to each account: its oldest requests. */
  #trim(): Waiter<Request>[] {
    const ofGroup = new Map<string, number>();
    for (const waiting of this.byOwner.values()) ofGroup.set(groupOf(waiting), 0);
    const part = Math.max(1, Math.floor(this.#limit / ofGroup.size));
    const kept = new Map<string, number>();
    let left = this.#limit;
    // In each round, each account keeps one more.
    for (let round = 0, before = -1; left > 0 && left !== before; round += 1) {
      before = left;
      for (const [owner, waiting] of this.byOwner) {
        const group = groupOf(waiting);
        const own = ofGroup.get(group) ?? 0;
        if (waiting.length <= round || own >= part || left === 0) continue;
        ofGroup.set(group, own + 1);
        kept.set(owner, round + 1);
        left -= 1;
      }
    }
    const excess: Waiter<Request>[] = [];
    for (const [owner, waiting] of this.byOwner) {
      const cut = waiting.splice(kept.get(owner) ?? 0);
      if (waiting.length === 0) this.byOwner.delete(owner);
      for (const { place } of cut) this.#waiting.change(place.caller, -1);
      excess.push(...cut);
    }
    return excess;
  }

  #shift(owner: string, waiting: Waiter<Request>[]): Waiter<Request> {
    const first = shift(this.byOwner, owner, waiting);
    this.#waiting.change(first.place.caller, -1);
    this.#fewest = Math.min(this.#fewest, this.size);
    return first;
  }
}

function append<Request extends Waiting>(
  queue: Map<string, Waiter<Request>[]>,
  waiter: Waiter<Request>,
): void {
  const { owner } = waiter.place.caller;
  const waiting = queue.get(owner);
  if (waiting === undefined) queue.set(owner, [waiter]);
  else waiting.push(waiter);
}

/** Takes the oldest request of an owner, and moves the owner to the end. */
function shift<Request extends Waiting>(
  queue: Map<string, Waiter<Request>[]>,
  owner: string,
  waiting: Waiter<Request>[],
): Waiter<Request> {
  const first = waiting.shift() as Waiter<Request>;
  queue.delete(owner);
  if (waiting.length > 0) queue.set(owner, waiting);
  return first;
}

function groupOf([first]: Waiter<Waiting>[]): string {
  const { owner, group } = (first as Waiter<Waiting>).place.caller;
  return group ?? owner;
}
