/**
 * Slices: an event for very many lanes becomes deliveries in several passes, with passes for other accounts between them. The
 * outbox row remembers the lane that the last slice ended with, so a new leader continues there.
 *
 *   in the outbox → lanes up to a, up to b, … have deliveries → the last slice takes the event from the outbox
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import type { Snapshot } from './outbox_changes.ts';
import { actingApps, type Slice, subscriptionCost, type Visit } from './outbox_selection.ts';

/** A slice, and the UTC day of its event. */
export interface NextSlice extends Slice {
  day: string;
}

/**
 * Finds the next slice of the oldest event of an account. Its lanes are in the order of their ids.
 * @param max deliveries of the slice, with the weights of their filters
 * @returns undefined if no event waits
 */
export async function findSlice(
  db: Database,
  { account, after }: Visit,
  snapshot: Snapshot,
  max: number,
): Promise<NextSlice | undefined> {
  const last = max - 1;
  const { rows } = await sql<{ id: string; day: string; through_lane: string; up_to: string | null }>`
    with next as materialized (
      select id, day, lanes, through_lane from outbox
      where turn = ${account}::uuid and id > ${after}::bigint
        and pg_visible_in_snapshot(added_by, ${snapshot.text}::pg_snapshot)
      order by id limit 1
    )
    select id, day::text, through_lane, case when lanes is not null then (
        select lane from unnest(lanes) as lane where lane > through_lane order by lane offset ${last}::int limit 1
      ) else (
        select min(lane) from (
          select lane, sum(${subscriptionCost}) over (order by lane) as total from (
          (
            select lane, filter_weight from subscriptions s
            where s.account_id = ${account}::uuid and s.state <> 'ended' and s.lane > through_lane
            order by lane limit ${max}::int
          )
          union all
          select own.lane, own.filter_weight
          from ${actingApps(sql`${account}::uuid`)} as app
          cross join lateral (
            select lane, filter_weight from subscriptions s
            where s.client_id = app.client_id and s.owner = 'client' and s.state <> 'ended' and s.lane > through_lane
            order by lane limit ${max}::int
          ) as own
          ) as each
        ) as summed
        where total >= ${max}::int
      ) end as up_to
    from next`.execute(db);
  const [row] = rows;
  return (
    row && {
      id: Number(row.id),
      day: row.day,
      after: Number(row.through_lane),
      upTo: row.up_to === null ? null : Number(row.up_to),
    }
  );
}
