/**
 * Event bodies of deliveries that wait or are in flight. Each body counts once, however many deliveries share it: in total, for each
 * tenant whose lanes refer to it, and for each app of a tenant.
 *
 *   read or published → retained by the first delivery → shared → released by the last delivery
 */

import type { EventContent } from '../sending/delivery_request.ts';

interface HeldBody {
  readonly event: EventContent;
  references: number;
}

/** Bodies that somebody refers to. A parent has those of its children, once for each child. */
class Bodies {
  readonly #parent: Bodies | null;
  readonly #held = new Map<number, HeldBody>();
  bytes = 0;

  constructor(parent: Bodies | null) {
    this.#parent = parent;
  }

  get(position: number): EventContent | undefined {
    return this.#held.get(position)?.event;
  }

  has(position: number): boolean {
    return this.#held.has(position);
  }

  /** Whether it has a body at one of the positions. Takes time for the shorter of the two lists only. */
  hasAny(positions: ReadonlySet<number>): boolean {
    if (positions.size > this.#held.size)
      return this.#held.keys().some((position) => positions.has(position));
    return positions.values().some((position) => this.#held.has(position));
  }

  /** @returns the event object that all share */
  retain(position: number, event: EventContent): EventContent {
    const body = this.#held.get(position);
    if (body !== undefined) {
      body.references += 1;
      return body.event;
    }
    const shared = this.#parent?.retain(position, event) ?? event;
    this.#held.set(position, { event: shared, references: 1 });
    this.bytes += shared.body.length;
    return shared;
  }

  release(position: number): void {
    const body = this.#held.get(position);
    if (body === undefined) return;
    body.references -= 1;
    if (body.references > 0) return;
    this.#held.delete(position);
    this.bytes -= body.event.body.length;
    this.#parent?.release(position);
  }
}

/** What all tenants have in memory together. */
export class DeliveryMemory {
  readonly bodies = new Bodies(null);
  /** Deliveries that wait to start. */
  waiting = 0;

  get bytes(): number {
    return this.bodies.bytes;
  }

  /** The event at a position, if a delivery in memory refers to it. */
  get(position: number): EventContent | undefined {
    return this.bodies.get(position);
  }
}

/**
 * What the lanes of one tenant (shared/tenant.ts) have in memory together.
 */
export class Tenant {
  readonly key: string;
  readonly memory: DeliveryMemory;
  readonly bodies: Bodies;
  readonly #apps = new Map<string | null, TenantApp>();
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
    this.memory = memory;
    this.bodies = new Bodies(memory.bodies);
  }

  get bytes(): number {
    return this.bodies.bytes;
  }

  /** Whether nothing refers to the tenant any more. */
  get isUnused(): boolean {
    return this.lanes === 0 && this.inFlight === 0;
  }

  has(position: number): boolean {
    return this.bodies.has(position);
  }

  /** Whether a delivery in memory refers to one of the positions. */
  hasAny(positions: ReadonlySet<number>): boolean {
    return this.bodies.hasAny(positions);
  }

  /** @param clientId the app of a subscription; null for a user's own ones */
  appOf(clientId: string | null): TenantApp {
    let app = this.#apps.get(clientId);
    if (app === undefined) {
      app = new TenantApp(clientId, this);
      this.#apps.set(clientId, app);
    }
    return app;
  }

  /** Forgets an app without lanes. What it has in flight still counts for the tenant. */
  forgetApp(app: TenantApp): void {
    if (app.lanes === 0 && this.#apps.get(app.clientId) === app) this.#apps.delete(app.clientId);
  }
}

/** What the lanes of one app of a tenant have in memory together. */
export class TenantApp {
  readonly clientId: string | null;
  readonly tenant: Tenant;
  readonly #bodies: Bodies;
  /** Lanes that this node leases. */
  lanes = 0;

  constructor(clientId: string | null, tenant: Tenant) {
    this.clientId = clientId;
    this.tenant = tenant;
    this.#bodies = new Bodies(tenant.bodies);
  }

  get bytes(): number {
    return this.#bodies.bytes;
  }

  /** A delivery of the event now waits in memory. @returns the event object that all its deliveries share */
  add(position: number, event: EventContent): EventContent {
    this.tenant.waiting += 1;
    this.tenant.memory.waiting += 1;
    return this.#bodies.retain(position, event);
  }

  /** A waiting delivery is now in flight. */
  begin(): void {
    this.#leaveWaiting();
    this.tenant.inFlight += 1;
  }

  /** An attempt has ended. */
  end(position: number): void {
    this.tenant.inFlight -= 1;
    this.#bodies.release(position);
  }

  /** A waiting delivery leaves memory. */
  drop(position: number): void {
    this.#leaveWaiting();
    this.#bodies.release(position);
  }

  #leaveWaiting(): void {
    this.tenant.waiting -= 1;
    this.tenant.memory.waiting -= 1;
  }
}
