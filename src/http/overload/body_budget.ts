/**
 * Bounds the memory of request bodies on a node: those that wait, that arrive, and that are being processed. A request reserves what
 * its `Content-Length` says, or the route's maximum if it has none, and keeps it until its response is on its way and its work has ended. Before the
 * body is parsed, it reserves what that makes of it. Callers have shares, as in the admission.
 *
 * A body that does not end keeps its memory for a minute. So when a caller with nothing finds no room, bodies that are still arriving are taken back, of
 * callers that have more than it will: otherwise a few that take their shares one after the other would use up what is left to the rest of a group. Only of
 * those with whom it shares, or who together have more than these: an app that has used up its share takes nothing from a smaller one.
 */

import { Bag, BagItem } from '../../shared/bag.ts';
import { freeInGroup, freeOf, isFreeForAnybody } from '../../shared/share.ts';
import type { Caller } from './caller.ts';
import { ownKeyOf } from './caller_counts.ts';

/** Who has less than this part of the memory may use the reserves, like those that have none: a small body in progress keeps no other one out. */
const fewBytesPart = 1_024;

export class Reservation extends BagItem {
  bytes: number;
  #onTakenBack: (() => void) | null = null;
  readonly #budget: BodyBudget;
  #identify: () => Caller;

  constructor(budget: BodyBudget, bytes: number, identify: () => Caller) {
    super();
    this.#budget = budget;
    this.bytes = bytes;
    this.#identify = identify;
  }

  get isArriving(): boolean {
    return this.#onTakenBack !== null;
  }

  /** The body begins to arrive. @param end ends the request */
  mayBeTakenBack(end: () => void): void {
    this.#onTakenBack = end;
  }

  /** The body has arrived. */
  stay(): void {
    this.#onTakenBack = null;
  }

  takeBack(): void {
    this.release();
    this.#onTakenBack?.();
  }

  /** To be called when nothing of the body is left. Clients may not read the response for long. */
  release(): void {
    this.#budget.release(this);
  }

  /**
   * Reserves more if the body needs more.
   * @param bytes of all
   * @param caller whose token is known now: before, it may have been an address
   * @returns false if there is no room, or the caller's share is used up
   */
  growTo(bytes: number, caller: Caller): boolean {
    this.#identify = () => caller;
    return this.#budget.grow(this, bytes);
  }

  get caller(): Caller {
    return this.#identify();
  }
}

/** What a caller has, and those with whom it shares. */
interface Held {
  own: number;
  ofOwner: number;
  ofGroup: number;
}

interface Holder {
  readonly caller: Caller;
  bytes: number;
  /** Those of its bodies that may be taken back. */
  readonly arriving: Reservation[];
}

export class BodyBudget {
  readonly #bytesMax: number;
  readonly #reservations = new Bag<Reservation>();
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** @returns null if there is no room, or the caller's share is used up */
  reserve(bytes: number, identify: () => Caller): Reservation | null {
    if (!this.#hasRoom(bytes, identify)) return null;
    const reservation = new Reservation(this, bytes, identify);
    this.#reservations.add(reservation);
    this.#bytes += bytes;
    return reservation;
  }

  /** @returns false if nothing more was reserved, because there is no room */
  grow(reservation: Reservation, bytes: number): boolean {
    const { bytes: before, caller } = reservation;
    if (bytes <= before || reservation.index === null) return true;
    // As if it reserved all at once: what it has already must not count as something else of the caller.
    reservation.bytes = 0;
    this.#bytes -= before;
    const hasRoom = this.#hasRoom(bytes, () => caller);
    reservation.bytes = hasRoom ? bytes : before;
    this.#bytes += reservation.bytes;
    return hasRoom;
  }

  release(reservation: Reservation): void {
    if (this.#reservations.delete(reservation)) this.#bytes -= reservation.bytes;
  }

  #hasRoom(bytes: number, identify: () => Caller): boolean {
    if (isFreeForAnybody(this.#bytesMax, this.#bytes + bytes)) return true;
    const caller = identify();
    const held: Held = { own: 0, ofOwner: 0, ofGroup: 0 };
    for (const reservation of this.#reservations) count(held, caller, reservation, reservation.bytes);
    return bytes <= this.#roomOf(caller, held, this.#bytes) || this.#makeRoom(bytes, caller, held);
  }

  /** The most bytes that a caller may reserve. @param used of all */
  #roomOf({ part, group }: Caller, { own, ofOwner, ofGroup }: Held, used: number): number {
    const roomIn = (bytes: number) => freeInGroup(this.#bytesMax, used, bytes, this.#counted(own));
    const room = freeOf(this.#bytesMax, used, this.#counted(own));
    const inOwner = part === null ? room : roomIn(this.#counted(ofOwner));
    return Math.min(room, inOwner, group === null ? room : roomIn(ofGroup));
  }

  /** Takes bodies back for a caller that has nothing, from whoever has most. @returns false if that is not enough: then none is taken back */
  #makeRoom(bytes: number, caller: Caller, held: Held): boolean {
    if (this.#counted(held.own) > 0) return false;
    const holders = this.#holdersFor(caller, Math.max(held.ofOwner, held.ofGroup) + bytes);
    const taken: Reservation[] = [];
    let used = this.#bytes;
    while (bytes > this.#roomOf(caller, held, used)) {
      const largest = holders.reduce<Holder | undefined>(
        (one, other) => (other.bytes > (one?.bytes ?? 0) ? other : one),
        undefined,
      );
      if (largest === undefined || largest.bytes <= held.own + bytes) return false;
      const reservation = largest.arriving.pop() as Reservation;
      if (largest.arriving.length === 0) holders.splice(holders.indexOf(largest), 1);
      largest.bytes -= reservation.bytes;
      used -= reservation.bytes;
      count(held, caller, reservation, -reservation.bytes);
      taken.push(reservation);
    }
    for (const reservation of taken) reservation.takeBack();
    return true;
  }

  /** Who has bodies that may be taken back for a caller. @param together what the caller has then with those with whom it shares */
  #holdersFor(caller: Caller, together: number): Holder[] {
    const totals = new Map<string, number>();
    const holders = new Map<string, Holder>();
    for (const reservation of this.#reservations) {
      const { caller: other, bytes } = reservation;
      for (const name of [other.owner, other.group ?? '']) totals.set(name, (totals.get(name) ?? 0) + bytes);
      const key = ownKeyOf(other);
      const holder = holders.get(key) ?? { caller: other, bytes: 0, arriving: [] };
      holder.bytes += bytes;
      if (reservation.isArriving) holder.arriving.push(reservation);
      holders.set(key, holder);
    }
    const totalOf = (name: string | null) => (name === null ? 0 : (totals.get(name) ?? 0));
    return [...holders.values()].filter(({ caller: { owner, group }, arriving }) => {
      const shares = owner === caller.owner || (group !== null && group === caller.group);
      return arriving.length > 0 && (shares || Math.max(totalOf(owner), totalOf(group)) > together);
    });
  }

  #counted(bytes: number): number {
    return bytes < this.#bytesMax / fewBytesPart ? 0 : bytes;
  }
}

function count(held: Held, caller: Caller, { caller: other }: Reservation, bytes: number): void {
  if (ownKeyOf(other) === ownKeyOf(caller)) held.own += bytes;
  if (other.owner === caller.owner) held.ofOwner += bytes;
  if (caller.group !== null && other.group === caller.group) held.ofGroup += bytes;
}
