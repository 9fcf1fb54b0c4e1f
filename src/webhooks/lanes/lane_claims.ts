/** Which due lanes a node takes, and gives back for want of room. Writes `lane_progress`. */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { type LaneTenantRow, laneTenant, readLaneTenant } from '../subscriptions/lane_tenant.ts';

/**
 * Claims due lanes that no node leases. If there are more than `limit`, one half are those that have been due longest, the other half those
 * that became due last: so a single lane does not wait behind the thousands of other tenants.
 * @returns their ids, each with its tenant
 */
export async function claimLanes(
  db: Database,
  node: string,
  limit: number,
): Promise<Map<number, string | null>> {
  const { rows } = await sql<{ lane: string } & LaneTenantRow>`
    with oldest as materialized (
      select lane from lane_progress where owner is null and due_at <= now()
      order by due_at limit ${Math.ceil(limit / 2)} for update skip locked
    ),
    newest as materialized (
      select lane from lane_progress where owner is null and due_at <= now()
      order by due_at desc limit ${Math.floor(limit / 2)} for update skip locked
    ),
    claimed as (update lane_progress set owner = ${node}::bigint, due_at = null
    from (select lane from oldest union select lane from newest) as due
    where lane_progress.lane = due.lane
    returning lane_progress.lane)
    select claimed.lane, tenant.* from claimed
    left join lateral ${laneTenant(sql`claimed.lane`)} as tenant on true`.execute(db);
  return new Map(rows.map((row) => [Number(row.lane), readLaneTenant(row)]));
}

/**
 * Seconds until a lane is due again that a node had no room for. A random time of up to the same length is added.
 */
const postponeSeconds = 3;

/** Returns lanes that the node has no room for. Lanes that became due later now come first. */
export async function postponeLanes(db: Database, node: string, lanes: readonly number[]): Promise<void> {
  if (lanes.length === 0) return;
  await sql`
    update lane_progress set owner = null, due_at = greatest(
      now() + make_interval(secs => ${postponeSeconds}::float8 * (1 + random())), paused_until)
    where lane in (
      select lane from lane_progress
      where lane = any(${bigintArray(lanes)}::bigint[]) and owner = ${node}::bigint for no key update skip locked
    )`.execute(db);
}
