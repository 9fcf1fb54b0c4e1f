/**
 * Bounds the memory of request bodies on a node: those that wait, that arrive, and that are being processed. A request reserves what
 * its `Content-Length` says, or the route's maximum if it has none, and keeps it until its response is on its way and its work has ended. Before the
 * body is parsed, it reserves what that makes of it. Callers have shares, as in the admission.
 */

import { Bag, BagItem } from '../../shared/bag.ts';
import { freeInGroup, freeOf, isFreeForAnybody } from '../../shared/share.ts';
import type { Caller } from './caller.ts';
import { ownKeyOf } from './caller_counts.ts';

/** Who has less than this part of the memory may use the reserves, like those that have none: a small body in progress keeps no other one out. */
const fewBytesPart = 1_024;

export class Reservation extends BagItem {
  bytes: number;
  readonly #budget: BodyBudget;
  #identify: () => Caller;

  constructor(budget: BodyBudget, bytes: number, identify: () => Caller) {
    super();
    this.#budget = budget;
    this.bytes = bytes;
    this.#identify = identify;
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
    return isFreeForAnybody(this.#bytesMax, this.#bytes + bytes) || bytes <= this.#roomOf(identify());
  }

  /** The most bytes that the caller may reserve now. */
  #roomOf(caller: Caller): number {
    const { part, group } = caller;
    let own = 0;
    let ofOwner = 0;
    let ofGroup = 0;
    for (const { caller: other, bytes } of this.#reservations) {
      if (ownKeyOf(other) === ownKeyOf(caller)) own += bytes;
      if (other.owner === caller.owner) ofOwner += bytes;
      if (group !== null && other.group === group) ofGroup += bytes;
    }
    const roomIn = (bytes: number) => freeInGroup(this.#bytesMax, this.#bytes, bytes, this.#counted(own));
    const room = freeOf(this.#bytesMax, this.#bytes, this.#counted(own));
    const inOwner = part === null ? room : roomIn(this.#counted(ofOwner));
    return Math.min(room, inOwner, group === null ? room : roomIn(ofGroup));
  }

  #counted(bytes: number): number {
    return bytes < this.#bytesMax / fewBytesPart ? 0 : bytes;
  }
}
