/** How many deliveries one read takes for each of its lanes. */

import type { Tenant, TenantApp } from './delivery_memory.ts';
import type { Lane } from './lane.ts';

/**
 * Divides a read: tenants get equal parts, so do the apps of a tenant, and the lanes of an app. With parts for lanes, a tenant with a thousand lanes
 * left almost nothing to a tenant with one.
 * @param lanes all lanes of the read @param max deliveries @param least deliveries of a lane, however many there are
 * @returns the deliveries of each lane
 */
export function readShares(
  lanes: readonly Pick<Lane, 'tenant' | 'app'>[],
  max: number,
  least: number,
): number[] {
  const lanesOf = new Map<TenantApp, number>();
  const appsOf = new Map<Tenant, Set<TenantApp>>();
  for (const { tenant, app } of lanes) {
    lanesOf.set(app, (lanesOf.get(app) ?? 0) + 1);
    appsOf.set(tenant, (appsOf.get(tenant) ?? new Set()).add(app));
  }
  return lanes.map(({ tenant, app }) => {
    const divisor = appsOf.size * (appsOf.get(tenant)?.size ?? 1) * (lanesOf.get(app) ?? 1);
    return Math.max(least, Math.floor(max / divisor));
  });
}
