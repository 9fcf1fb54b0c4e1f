/**
 * Makes lanes due that have new deliveries: the second statement of a fan-out pass. Writes `lane_progress`.
 */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { type LaneTenantRow, laneTenant, readLaneTenant } from '../subscriptions/lane_tenant.ts';

/** Deliveries were added to this lane. */
export interface GrownLane {
  lane: number;
  /** The node that leases the lane; null for none. */
  owner: string | null;
  /** Whose lane it is, if no node leased it; null otherwise. */
  tenant: string | null;
}

/**
 * Decides who sends the new deliveries. They are committed by now. So this statement sees every lane that a node releases as idle
 * (see `releaseLanes`). Writes the owners and tenants into the additions.
 * @param node leases the lanes that no node leases; null to leave them to other nodes
 * @returns lanes that another session has locked; nothing is known of them
 */
export async function markDue<T extends GrownLane>(
  db: Database,
  additions: readonly T[],
  node: string | null,
): Promise<T[]> {
  if (additions.length === 0) return [];
  const lanes = bigintArray(additions.map(({ lane }) => lane));
  // Returns no lanes that the node leases already.
  const { rows } = await sql<{ lane: string; owner: string | null; is_locked: boolean } & LaneTenantRow>`
    with known as materialized (
      -- No node has the id 0: nobody sends what subscribers pull.
      select given.lane, case when progress.is_pulled then 0 else progress.owner end as owner from unnest(${lanes}::bigint[]) as given (lane)
      cross join lateral (select owner, is_pulled from lane_progress where lane = given.lane offset 0) as progress
    ),
    unlocked as materialized (
      select known.lane from known
      cross join lateral (
        select from lane_progress where lane = known.lane and owner is null for no key update skip locked
      ) as row
      where known.owner is null
    ),
    free as (
      update lane_progress set
        owner = case when paused_until > now() then null else ${node}::bigint end,
        due_at = case when paused_until > now() then paused_until
          when ${node}::bigint is null then least(due_at, now()) end,
        tenant = coalesce(of.tenant, lane_progress.tenant)
      from unlocked left join lateral ${laneTenant(sql`unlocked.lane`)} as of on true
      where lane_progress.lane = unlocked.lane and lane_progress.owner is null
      returning lane_progress.lane, lane_progress.owner, of.account_id, of.client_id, of.creator_id
    )
    select lane, owner, false as is_locked, null::uuid as account_id, null::text as client_id, null::uuid as creator_id from known
    where owner <> ${node}::bigint or (${node}::bigint is null and owner is not null)
    union all
    select lane, owner, false, account_id, client_id, creator_id from free
    union all
    -- Locked, or leased by a node between the two reads.
    select lane, null, true, null, null, null from known where owner is null and lane not in (select lane from free)`.execute(
    db,
  );
  const found = new Map(rows.map((row) => [Number(row.lane), row]));
  const locked: T[] = [];
  for (const addition of additions) {
    const row = found.get(addition.lane);
    addition.owner = row === undefined ? node : row.owner;
    addition.tenant = row === undefined ? null : readLaneTenant(row);
    if (row?.is_locked) locked.push(addition);
  }
  return locked;
}
