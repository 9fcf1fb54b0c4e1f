/** Makes lanes due that a pass of the fan-out added to: the second statement of a pass. Writes `lane_progress`. */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { LaneAddition } from './fan_out.ts';

/**
 * Marks who is to send, in a statement of its own: what was added is committed by now, so no node can let go of a
 * lane for want of work (see `releaseLanes`) without this statement seeing it. Writes the owners into the additions.
 * @param node takes the lanes that nobody holds; null to leave them to others
 */
export async function markDue(db: Database, additions: LaneAddition[], node: string | null): Promise<void> {
  if (additions.length === 0) return;
  const lanes = bigintArray(additions.map(({ lane }) => lane));
  // Told are only those that are not the node's after this: of most lanes there is nothing to tell.
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
    -- Somebody took it between the two looks.
    select lane, null from known where owner is null and lane not in (select lane from free)`.execute(db);
  const owners = new Map(rows.map(({ lane, owner }) => [Number(lane), owner]));
  for (const addition of additions) {
    const owner = owners.get(addition.lane);
    addition.owner = owner === undefined ? node : owner;
  }
}
