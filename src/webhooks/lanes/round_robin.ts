/**
 * A round-robin queue: tenants take turns, and so do the lanes of a tenant. A tenant with ten thousand lanes gets as many turns
 * as a tenant with one.
 *
 *   tenant: queued → taken, back to the end of the queue → parked while it may not continue → queued again
 */

import type { Lane } from './lane.ts';
import type { Tenant } from './waiting_memory.ts';

export class RoundRobin {
  readonly #inLine = new Map<Tenant, Set<Lane>>();
  /** Tenants that may not continue now. Whatever they wait for puts them back into the queue. */
  readonly #parked = new Map<Tenant, Set<Lane>>();

  /** Whether no tenant is queued. */
  get isEmpty(): boolean {
    return this.#inLine.size === 0;
  }

  /** The number of queued tenants. */
  get tenantCount(): number {
    return this.#inLine.size;
  }

  add(lane: Lane): void {
    const lanes = this.#parked.get(lane.tenant) ?? this.#inLine.get(lane.tenant);
    if (lanes === undefined) this.#inLine.set(lane.tenant, new Set([lane]));
    else lanes.add(lane);
  }

  delete(lane: Lane): void {
    for (const tenants of [this.#inLine, this.#parked]) {
      const lanes = tenants.get(lane.tenant);
      if (lanes?.delete(lane) && lanes.size === 0) tenants.delete(lane.tenant);
    }
  }

  /** Takes the next lane of the first tenant that may continue. Parks the tenants before it. */
  take(mayContinue: (tenant: Tenant) => boolean): Lane | undefined {
    for (const [tenant, lanes] of this.#inLine) {
      this.#inLine.delete(tenant);
      if (!mayContinue(tenant)) {
        this.#parked.set(tenant, lanes);
        continue;
      }
      const lane = lanes.values().next().value as Lane;
      lanes.delete(lane);
      if (lanes.size > 0) this.#inLine.set(tenant, lanes);
      return lane;
    }
    return undefined;
  }

  /** Puts a parked tenant back into the queue. */
  requeue(tenant: Tenant): void {
    const lanes = this.#parked.get(tenant);
    if (lanes === undefined) return;
    this.#parked.delete(tenant);
    this.#inLine.set(tenant, lanes);
  }

  requeueAll(): void {
    for (const [tenant, lanes] of this.#parked) this.#inLine.set(tenant, lanes);
    this.#parked.clear();
  }
}
