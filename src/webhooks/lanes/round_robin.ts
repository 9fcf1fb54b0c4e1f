/**
 * RoundRobin: tenants take turns, and within a tenant its lanes. A tenant with ten thousand lanes gets as many turns as one
 * with a single lane.
 *
 *   tenant: in line → (taken: to the end of the line) → parked while it may not go on → revived
 */

import type { Lane } from './lane.ts';
import type { Tenant } from './waiting_memory.ts';

export class RoundRobin {
  readonly #inLine = new Map<Tenant, Set<Lane>>();
  /** They may not go on for now; what they are waiting for revives them. */
  readonly #parked = new Map<Tenant, Set<Lane>>();

  /** Whether no tenant is in line. */
  get isEmpty(): boolean {
    return this.#inLine.size === 0;
  }

  /** Tenants in line. */
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

  /** Takes out the next lane, of the first tenant that may go on. Parks the tenants before it. */
  take(mayGoOn: (tenant: Tenant) => boolean): Lane | undefined {
    for (const [tenant, lanes] of this.#inLine) {
      this.#inLine.delete(tenant);
      if (!mayGoOn(tenant)) {
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

  /** What the tenant waited for may have come. */
  revive(tenant: Tenant): void {
    const lanes = this.#parked.get(tenant);
    if (lanes === undefined) return;
    this.#parked.delete(tenant);
    this.#inLine.set(tenant, lanes);
  }

  reviveAll(): void {
    for (const [tenant, lanes] of this.#parked) this.#inLine.set(tenant, lanes);
    this.#parked.clear();
  }
}
