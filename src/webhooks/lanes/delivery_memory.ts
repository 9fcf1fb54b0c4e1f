/**
 * Event bodies of deliveries that wait or are in flight. Each body counts once, however many deliveries share it: in total, and
 * for each tenant whose lanes refer to it.
 *
 *   read or published → retained by the first delivery → shared → released by the last delivery
 */

import type { EventContent } from '../sending/delivery_request.ts';

interface HeldBody {
  readonly event: EventContent;
  /** Number of tenants in `DeliveryMemory`, of deliveries in `Tenant`. */
  references: number;
}

/** What all tenants have in memory together. */
export class DeliveryMemory {
  readonly #bodies = new Map<number, HeldBody>();
  bytes = 0;
  /** Deliveries that wait to start. */
  waiting = 0;

  /** The event at a position, if a delivery in memory refers to it. */
  get(position: number): EventContent | undefined {
    return this.#bodies.get(position)?.event;
  }

  retain(position: number, event: EventContent): EventContent {
    const body = this.#bodies.get(position);
    if (body !== undefined) {
      body.references += 1;
      return body.event;
    }
    this.#bodies.set(position, { event, references: 1 });
    this.bytes += event.body.length;
    return event;
  }

  release(position: number): void {
    const body = this.#bodies.get(position);
    if (body === undefined) return;
    body.references -= 1;
    if (body.references > 0) return;
    this.#bodies.delete(position);
    this.bytes -= body.event.body.length;
  }
}

/**
 * What the lanes of one account have in memory together. The own subscriptions of an app count for the app.
 */
export class Tenant {
  readonly key: string;
  readonly #memory: DeliveryMemory;
  readonly #bodies = new Map<number, HeldBody>();
  bytes = 0;
  /** Deliveries that wait to start. */
  waiting = 0;
  /** Attempts in flight. */
  inFlight = 0;
  /** Lanes that this node leases. */
  lanes = 0;
  /** Lanes that this node left in the database because the tenant leases as many as it may. Each lets one leased lane end its turn. */
  refused = 0;

  constructor(key: string, memory: DeliveryMemory) {
    this.key = key;
    this.#memory = memory;
  }

  /** Whether nothing refers to the tenant any more. */
  get isUnused(): boolean {
    return this.lanes === 0 && this.inFlight === 0;
  }

  has(position: number): boolean {
    return this.#bodies.has(position);
  }

  /** Whether a delivery in memory refers to one of the positions. Takes time for the shorter of the two lists only. */
  hasAny(positions: ReadonlySet<number>): boolean {
    if (positions.size > this.#bodies.size)
      return this.#bodies.keys().some((position) => positions.has(position));
    return positions.values().some((position) => this.#bodies.has(position));
  }

  /** A delivery of the event now waits in memory. @returns the event object that all its deliveries share */
  add(position: number, event: EventContent): EventContent {
    this.waiting += 1;
    this.#memory.waiting += 1;
    const body = this.#bodies.get(position);
    if (body !== undefined) {
      body.references += 1;
      return body.event;
    }
    const shared = this.#memory.retain(position, event);
    this.#bodies.set(position, { event: shared, references: 1 });
    this.bytes += shared.body.length;
    return shared;
  }

  /** A waiting delivery is now in flight. */
  begin(): void {
    this.#leaveWaiting();
    this.inFlight += 1;
  }

  /** An attempt has ended. */
  end(position: number): void {
    this.inFlight -= 1;
    this.#release(position);
  }

  /** A waiting delivery leaves memory. */
  drop(position: number): void {
    this.#leaveWaiting();
    this.#release(position);
  }

  #leaveWaiting(): void {
    this.waiting -= 1;
    this.#memory.waiting -= 1;
  }

  #release(position: number): void {
    const body = this.#bodies.get(position);
    if (body === undefined) return;
    body.references -= 1;
    if (body.references > 0) return;
    this.#bodies.delete(position);
    this.bytes -= body.event.body.length;
    this.#memory.release(position);
  }
}
