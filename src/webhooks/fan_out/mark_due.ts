/**
 * Makes lanes due that have new deliveries: the second statement of a fan-out pass. Writes `lane_progress`.
 */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { LaneAddition } from './fan_out.ts';

/**
 * Decides who sends the new deliveries. They are committed by now. So this statement sees every lane that a node releases as idle
 * (see `releaseLanes`). Writes the owners into the additions.
 * @param node leases the lanes that no node leases; null to leave them to other nodes
 */
export async function markDue(db: Database, additions: LaneAddition[], node: string | null): Promise<void> {
  if (additions.length === 0) return;
  const lanes = bigintArray(additions.map(({ lane }) => lane));
  // Returns only lanes that another node leases; usually none.
  const { rows } = await sql<{ lane: string; owner: string | null }>`
    with known as materialized (
      select given.lane, progress.owner from unnest(${lanes}::bigint[]) as given (lane)
      cross join lateral (select owner from lane_progress where lane = given.lane offset 0) as progress
    ),
    free as (
      update lane_progress set
        owner = case when paused_until > now() then null else ${node}::bigint end,
        due_at = case when paused_until > now() then paused_until
          when ${node}::bigint is null then least(due_at, now()) end
      from known
      where known.owner is null and lane_progress.lane = known.lane and lane_progress.owner is null
      returning lane_progress.lane, lane_progress.owner
    )
    select lane, owner from known where owner <> ${node}::bigint or (${node}::bigint is null and owner is not null)
    union all
    select lane, owner from free where owner is null
    union all
    -- A node leased the lane between the two reads.
    select lane, null from known where owner is null and lane not in (select lane from free)`.execute(db);
  const owners = new Map(rows.map(({ lane, owner }) => [Number(lane), owner]));
  for (const addition of additions) {
    const owner = owners.get(addition.lane);
    addition.owner = owner === undefined ? node : owner;
  }
}
