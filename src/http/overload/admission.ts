/**
 * Admits requests: a bounded number is in progress (each has a *place*), a bounded number waits, and the rest is refused. Waiting
 * requests are served by class (precedence.ts), and within a class by turns of the callers.
 *
 *   arrives → holds a place ⇄ paused → left
 *       ↘ waits ↗      ↘ (deadline) → refused
 *        ↘ refused
 *
 * A place is shared by all callers of the node. A class has a part of the places, so that slow requests of one class leave the others
 * some. In a class, and in what waits for it, callers have shares (shared/share.ts): a caller is an account, apps that act for
 * themselves, or a network; accounts also share what their app gets, and networks what their site gets.
 */

import { asServer } from '../../database/connection_user.ts';
import { BagItem } from '../../shared/bag.ts';
import { isFreeForAnybody, reserveOf } from '../../shared/share.ts';
import type { Caller } from './caller.ts';
import { HeldPlaces } from './held_places.ts';
import { LastTurns } from './last_turns.ts';
import { type Precedence, precedences } from './precedence.ts';
import { Queue, type Reason, type Waiter } from './queue.ts';

/** A request on its way through the admission. */
export class Place extends BagItem {
  readonly precedence: Precedence;
  state: 'new' | 'waiting' | 'held' | 'paused' | 'left' = 'new';
  /** Whether it has had a place, which it may have paused. */
  wasHeld = false;
  /** When it last got a place, in milliseconds of `performance.now()`. */
  heldAt = 0;
  readonly #admission: Admission;
  readonly #identify: () => Caller;
  #caller: Caller | undefined;
  #onLeft: (() => void) | undefined;

  /** @param identify called only when many requests are in progress, because it costs more than all the rest */
  constructor(admission: Admission, precedence: Precedence, identify: () => Caller) {
    super();
    this.#admission = admission;
    this.precedence = precedence;
    this.#identify = identify;
  }

  get caller(): Caller {
    this.#caller ??= this.#identify();
    return this.#caller;
  }

  /** @returns true if the request has a place; otherwise one of the functions is called, now or later */
  enter(admit: () => void, refuse: (reason: Reason) => void): boolean {
    return this.#admission.enter(this, admit, refuse);
  }

  /**
   * Waits for another place after this one was left, as a new request of the caller does.
   * @returns null if there is none in time, or the signal aborts before
   */
  another(signal: AbortSignal): Promise<Place | null> {
    if (signal.aborted) return Promise.resolve(null);
    const place = new Place(this.#admission, this.precedence, this.#identify);
    return new Promise((resolve) => {
      const end = (isHeld: boolean) => {
        signal.removeEventListener('abort', abort);
        resolve(isHeld ? place : null);
      };
      const admit = () => end(true);
      const refuse = () => end(false);
      const abort = () => {
        place.leave();
        end(false);
      };
      signal.addEventListener('abort', abort);
      if (place.enter(admit, refuse)) admit();
    });
  }

  /** Gives the place back for a while: the request waits for something else than this node. */
  pause(): void {
    this.#admission.pause(this);
  }

  /** Takes a place again after `pause`, before requests that had none. @returns a reason if there was none in time */
  resume(): Promise<Reason | null> {
    return this.#admission.resume(this);
  }

  /** Takes a place again after `pause`, if one is free. @returns false if the request has to wait for it */
  resumeNow(): boolean {
    return this.#admission.resumeNow(this);
  }

  /** The request ends, or needs no place any more. */
  leave(): void {
    this.#admission.leave(this);
    this.#onLeft?.();
  }

  /** Calls the function when the request has left, which may be long after its client has disconnected. */
  whenLeft(then: () => void): void {
    if (this.state === 'left') then();
    else this.#onLeft = then;
  }
}

/**
 * Waiting requests of each class, as multiples of the most places: so many that a burst of one caller on an idle node is served. Under
 * overload the target decides, and how many may wait at least. A person waits longer than a program should.
 */
const waits: Readonly<
  Record<Precedence, { factor: number; least: number; waitMsMax: number; targetMs: number }>
> = {
  first: { factor: 4, least: 1, waitMsMax: 5_000, targetMs: 1_000 },
  ordinary: { factor: 16, least: 1, waitMsMax: 1_000, targetMs: 25 },
  // Served more slowly than the others, so fewer wait for long.
  last: { factor: 8, least: 1 / 4, waitMsMax: 1_000, targetMs: 25 },
};
/** An interval of the queues. */
const sweepMs = 100;
const lastBeforeOrdinary: readonly Precedence[] = ['first', 'last', 'ordinary'];

export class Admission {
  readonly placesMax: number;
  #places: number;
  #inProgress = 0;
  #isOffering = false;
  readonly #lastTurns = new LastTurns();
  #sweep: NodeJS.Timeout | undefined;
  readonly #held: Readonly<Record<Precedence, HeldPlaces>> = {
    first: new HeldPlaces(),
    ordinary: new HeldPlaces(),
    last: new HeldPlaces(),
  };
  readonly #queues: Readonly<Record<Precedence, Queue<Place>>>;
  #sweptAt = 0;

  constructor(placesMax: number) {
    this.placesMax = placesMax;
    this.#places = placesMax;
    const queueOf = (precedence: Precedence) => {
      const { factor, least, ...limits } = waits[precedence];
      const [waitingMax, waitingMin] = [placesMax * factor, Math.ceil(placesMax * least)];
      return new Queue<Place>({ ...limits, waitingMax, waitingMin });
    };
    this.#queues = { first: queueOf('first'), ordinary: queueOf('ordinary'), last: queueOf('last') };
  }

  get places(): number {
    return this.#places;
  }

  /** Sets how many requests may be in progress. Fewer places end no request. */
  set places(places: number) {
    this.#places = places;
    this.#offer();
  }

  /** Says whether the server thread works nearly all the time. */
  set isBusy(isBusy: boolean) {
    this.#lastTurns.isBusy = isBusy;
    this.#offer();
  }

  get inProgress(): number {
    return this.#inProgress;
  }

  inProgressOf(precedence: Precedence): number {
    return this.#held[precedence].size;
  }

  waitingOf(precedence: Precedence): number {
    return this.#queues[precedence].waiting;
  }

  /** Whether requests wait. */
  get isCrowded(): boolean {
    return this.#sweep !== undefined;
  }

  /** Why a request would be refused now; null if it would not, or if that depends on a caller who is not known. */
  refusalOf(precedence: Precedence, caller: Caller | undefined): Reason | null {
    if (this.#hasRoomInClass(precedence) && this.#hasTurn(precedence, this.waitingOf(precedence))) {
      if (caller === undefined || this.#hasShare(precedence, () => caller)) return null;
    }
    return this.#queues[precedence].refusalOf(caller);
  }

  /** See `Place`. */
  enter(place: Place, admit: () => void, refuse: (reason: Reason) => void): boolean {
    const { precedence } = place;
    // Those that wait are kept from a free place by their shares, or are offered it with the next that is free.
    if (this.#hasRoom(place)) {
      this.#hold(place);
      return true;
    }
    const queue = this.#queues[precedence];
    const { reason, displaced } = queue.makeRoom(place.caller);
    if (reason !== null) {
      place.state = 'left';
      refuse(reason);
      return false;
    }
    place.state = 'waiting';
    queue.add({ place, admit, refuse, deadline: performance.now() + queue.limits.waitMsMax });
    this.#startSweep();
    if (displaced?.place.state === 'waiting') {
      displaced.place.state = 'left';
      // Not for whom this one arrived.
      asServer(() => displaced.refuse('share'));
    }
    return false;
  }

  pause(place: Place): void {
    if (place.state !== 'held') return;
    this.#release(place);
    place.state = 'paused';
  }

  resume(place: Place): Promise<Reason | null> {
    if (place.state !== 'paused') return Promise.resolve(null);
    return new Promise((resolve) => {
      const { precedence } = place;
      place.state = 'waiting';
      const queue = this.#queues[precedence];
      const deadline = performance.now() + queue.limits.waitMsMax;
      queue.addResumed({ place, admit: () => resolve(null), refuse: resolve, deadline });
      this.#startSweep();
      this.#offer();
    });
  }

  /** See `Place`. Overtakes nobody: a free place of a class was offered to what waits for it. */
  resumeNow(place: Place): boolean {
    const { precedence } = place;
    if (place.state !== 'paused') return true;
    if (!this.#queues[precedence].resumed.isEmpty || !this.#hasRoomInClass(precedence)) return false;
    if (!this.#hasShare(precedence, () => place.caller)) return false;
    this.#hold(place);
    return true;
  }

  leave(place: Place): void {
    if (place.state === 'held') this.#release(place);
    place.state = 'left';
  }

  #hold(place: Place): void {
    place.state = 'held';
    place.heldAt = performance.now();
    this.#held[place.precedence].add(place);
    this.#inProgress += 1;
    if (!place.wasHeld) this.#lastTurns.count(place.precedence);
    place.wasHeld = true;
  }

  #release(place: Place): void {
    this.#held[place.precedence].delete(place);
    this.#inProgress -= 1;
    if (this.#sweep === undefined) return;
    this.#queues[place.precedence].count(place.caller, performance.now() - place.heldAt);
    this.#offer();
  }

  #hasRoomInClass(precedence: Precedence): boolean {
    // When places become fewer, the others may hold more than all of them for long.
    if (precedence === 'first' && this.#held.first.size < reserveOf(this.placesMax)) return true;
    const others = precedence === 'first' ? 0 : reserveOf(this.#places);
    return (
      this.#inProgress < this.#places - others &&
      this.#held[precedence].size < partOf(precedence, this.#places)
    );
  }

  /**
   * Whether a request that never had a place has a turn for one.
   * @param before how many wait that come before it
   */
  #hasTurn(precedence: Precedence, before: number): boolean {
    if (precedence !== 'last' || !this.#lastTurns.isLimited(this.waitingOf('ordinary'))) return true;
    return this.#lastTurns.hasOne && before === 0;
  }

  #hasRoom(place: Place): boolean {
    const { precedence } = place;
    return (
      this.#hasRoomInClass(precedence) &&
      this.#hasTurn(precedence, this.waitingOf(precedence)) &&
      this.#hasShare(precedence, () => place.caller)
    );
  }

  #hasShare(precedence: Precedence, identify: () => Caller): boolean {
    const held = this.#held[precedence];
    const size = partOf(precedence, this.#places);
    if (isFreeForAnybody(size, held.size)) return true;
    return held.hasRoom(size, identify());
  }

  /** Gives free places to waiting requests. */
  #offer(): void {
    // A request that ends at once frees its place within `admit`.
    if (this.#isOffering) return;
    this.#isOffering = true;
    for (let next = this.#next(); next !== undefined; next = this.#next()) {
      // The client may have gone, which `leave` says.
      if (next.place.state !== 'waiting') continue;
      this.#hold(next.place);
      next.admit();
    }
    this.#isOffering = false;
  }

  #next(): Waiter<Place> | undefined {
    const order = this.#lastTurns.hasOne ? lastBeforeOrdinary : precedences;
    for (const precedence of order) {
      const queue = this.#queues[precedence];
      if (queue.waiting === 0 || !this.#hasRoomInClass(precedence)) continue;
      const next = queue.take(
        (caller) => this.#hasShare(precedence, () => caller),
        () => this.#hasTurn(precedence, 0),
      );
      if (next !== undefined) return next;
    }
    return undefined;
  }

  /** Stops the timer. Requests that still wait are refused by their connections' end. */
  stop(): void {
    clearInterval(this.#sweep);
  }

  #startSweep(): void {
    if (this.#sweep !== undefined) return;
    this.#sweptAt = performance.now();
    this.#sweep = setInterval(() => this.#expire(), sweepMs);
  }

  /** Refuses requests that waited too long, and bounds what waits. */
  #expire(): void {
    const now = performance.now();
    const refused: [Waiter<Place>, Reason][] = [];
    let left = 0;
    for (const precedence of precedences) {
      const queue = this.#queues[precedence];
      for (const waiter of queue.takeLate(now)) refused.push([waiter, 'deadline']);
      for (const waiter of queue.adapt(now - this.#sweptAt)) refused.push([waiter, 'full']);
      left += this.waitingOf(precedence);
    }
    this.#sweptAt = now;
    if (left === 0) {
      clearInterval(this.#sweep);
      this.#sweep = undefined;
    }
    for (const [{ place, refuse }, reason] of refused) {
      if (place.state !== 'waiting') continue;
      place.state = 'left';
      refuse(reason);
    }
    this.#lastTurns.endInterval();
    this.#offer();
  }
}

/** The places of a class. The reserve of all places is for the first class, which in turn leaves a quarter to the others. */
function partOf(precedence: Precedence, places: number): number {
  if (precedence === 'ordinary') return places - reserveOf(places);
  return Math.max(1, Math.floor(places * (precedence === 'first' ? 0.75 : 0.5)));
}
