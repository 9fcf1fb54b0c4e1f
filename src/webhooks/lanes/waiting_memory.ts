/**
 * The bodies that wait in memory or are in flight. Each body counts once, however many deliveries share it: in all, and
 * for each tenant whose lanes refer to it.
 *
 *   read or published → held (by the first delivery) → shared → released (by the last delivery)
 */

import type { EventContent } from '../sending/delivery_request.ts';

interface HeldBody {
  readonly event: EventContent;
  /** Of tenants in `WaitingMemory`, of deliveries in a `Tenant`. */
  references: number;
}

/** What all tenants have in memory together. */
export class WaitingMemory {
  readonly #bodies = new Map<number, HeldBody>();
  bytes = 0;
  /** Deliveries that wait to be started. */
  waiting = 0;

  /** An event that some delivery in memory refers to. @param position the event's */
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

/** One account, or one app as the owner of its own subscriptions: what its lanes have in memory together. */
export class Tenant {
  readonly key: string;
  readonly #memory: WaitingMemory;
  readonly #bodies = new Map<number, HeldBody>();
  bytes = 0;
  /** Deliveries that wait to be started. */
  waiting = 0;
  /** Attempts in flight, and those of them that began less than a second ago. */
  inFlight = 0;
  recent = 0;
  /** Lanes that this node holds. */
  lanes = 0;
  /** When a lane was last left to wait in the database, because the tenant holds as many as it may. */
  refusedAt = Number.NEGATIVE_INFINITY;

  constructor(key: string, memory: WaitingMemory) {
    this.key = key;
    this.#memory = memory;
  }

  /** Whether nothing refers to it any more. */
  get isUnused(): boolean {
    return this.lanes === 0 && this.inFlight === 0;
  }

  has(position: number): boolean {
    return this.#bodies.has(position);
  }

  /** A delivery of the event waits in memory. @returns the event that all of its deliveries share */
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

  /** A delivery that waited is in flight. */
  begin(): void {
    this.#leaveWaiting();
    this.inFlight += 1;
  }

  /** An attempt has ended. */
  end(position: number): void {
    this.inFlight -= 1;
    this.#release(position);
  }

  /** A delivery that waited is not kept in memory any more. */
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
