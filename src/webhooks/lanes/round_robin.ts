/**
 * A round-robin queue: tenants take turns, and so do the lanes of a tenant. A tenant with ten thousand lanes gets as many turns
 * as a tenant with one.
 *
 * A tenant that had nothing queued for some rounds has a head start of as many turns. While tenants with a head start are queued,
 * they get every second turn. Without it, a tenant with few deliveries would wait behind the backlogs of all others (compare the
 * new flows of FQ-CoDel, RFC 8290, section 4.1.2).
 *
 *   queued with a head start → (head start used up) → queued → taken, back to the end → removed when it has no lane left
 *   taken while it may not continue → set aside → queued again
 */

import type { Tenant } from './delivery_memory.ts';
import type { Lane } from './lane.ts';

/** Maximum turns of a head start: as many as a lane may have attempts in flight. */
const headStart = 32;

interface Queued {
  readonly lanes: Set<Lane>;
  /** Turns left of its head start. */
  left: number;
}

/** A tenant that has left the queue. */
interface Gone {
  readonly left: number;
  /** The number of turns when it left. */
  readonly at: number;
  /** Turns of a round: one for each tenant in line. */
  readonly round: number;
}

export class RoundRobin {
  /** Tenants with a head start. */
  readonly #starting = new Map<Tenant, Queued>();
  readonly #inLine = new Map<Tenant, Queued>();
  /** Tenants that may not continue now. The event that they wait for puts them back into the queue. */
  readonly #setAside = new Map<Tenant, Queued>();
  readonly #gone = new WeakMap<Tenant, Gone>();
  /** Turns that tenants without a head start have had. */
  #turns = 0;
  /** Whether the last turn was of a tenant with a head start. */
  #wasStarting = false;

  /** Whether no tenant is queued. */
  get isEmpty(): boolean {
    return this.tenantCount === 0;
  }

  /** Whether no tenant is queued or set aside. */
  get isUnused(): boolean {
    return this.isEmpty && this.#setAside.size === 0;
  }

  /** The number of queued tenants. */
  get tenantCount(): number {
    return this.#starting.size + this.#inLine.size;
  }

  add(lane: Lane): void {
    const { tenant } = lane;
    const queued = this.#starting.get(tenant) ?? this.#inLine.get(tenant) ?? this.#setAside.get(tenant);
    if (queued !== undefined) {
      queued.lanes.add(lane);
      return;
    }
    this.#queue(tenant, { lanes: new Set([lane]), left: this.#leftOf(tenant) });
  }

  delete(lane: Lane): void {
    for (const tenants of [this.#starting, this.#inLine, this.#setAside]) {
      const queued = tenants.get(lane.tenant);
      if (queued === undefined || !queued.lanes.delete(lane) || queued.lanes.size > 0) continue;
      tenants.delete(lane.tenant);
      this.#leave(lane.tenant, queued);
    }
  }

  /** Takes the next lane of the first tenant that may continue. Sets the tenants before it aside. */
  take(mayContinue: (tenant: Tenant) => boolean): Lane | undefined {
    const [first, second] = this.#wasStarting
      ? [this.#inLine, this.#starting]
      : [this.#starting, this.#inLine];
    return this.#takeFrom(first, mayContinue) ?? this.#takeFrom(second, mayContinue);
  }

  /** Puts a tenant that was set aside back into the queue. */
  requeue(tenant: Tenant): void {
    const queued = this.#setAside.get(tenant);
    if (queued === undefined) return;
    this.#setAside.delete(tenant);
    this.#queue(tenant, queued);
  }

  requeueAll(): void {
    for (const [tenant, queued] of this.#setAside) this.#queue(tenant, queued);
    this.#setAside.clear();
  }

  #takeFrom(tenants: Map<Tenant, Queued>, mayContinue: (tenant: Tenant) => boolean): Lane | undefined {
    for (const [tenant, queued] of tenants) {
      tenants.delete(tenant);
      if (!mayContinue(tenant)) {
        this.#setAside.set(tenant, queued);
        continue;
      }
      this.#wasStarting = tenants === this.#starting;
      if (this.#wasStarting) queued.left -= 1;
      else this.#turns += 1;
      const lane = queued.lanes.values().next().value as Lane;
      queued.lanes.delete(lane);
      if (queued.lanes.size > 0) this.#queue(tenant, queued);
      else this.#leave(tenant, queued);
      return lane;
    }
    return undefined;
  }

  /** Each round without the tenant gives it one more turn of a head start. */
  #leftOf(tenant: Tenant): number {
    const gone = this.#gone.get(tenant);
    if (gone === undefined) return headStart;
    return Math.min(headStart, gone.left + Math.floor((this.#turns - gone.at) / gone.round));
  }

  #queue(tenant: Tenant, queued: Queued): void {
    (queued.left > 0 ? this.#starting : this.#inLine).set(tenant, queued);
  }

  #leave(tenant: Tenant, { left }: Queued): void {
    this.#gone.set(tenant, { left, at: this.#turns, round: Math.max(1, this.#inLine.size) });
  }
}
