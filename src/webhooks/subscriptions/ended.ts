/**
 * Deletes subscriptions that ended longer ago than the log is kept, with everything that refers to them: lanes, progress, revisions,
 * recoveries. Until then, deliveries and attempts refer to them. Their secrets and static headers are erased when they end, by a
 * trigger (`subscription_ended`).
 *
 *   active or disabled → ended, without secrets → (the last delivery is dropped) → deleted
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';

/** Maximum subscriptions of one statement. Each deletes rows of seven tables. */
const sliceMax = 200;

/**
 * Skips subscriptions that another node is deleting, and those that still have deliveries, because a day was kept longer.
 * @param before an SQL expression: the time until which they ended
 * @returns the number of deleted subscriptions
 */
export async function deleteEnded(db: Database, before: RawBuilder<unknown>): Promise<number> {
  let deleted = 0;
  let after = { ended_at: '-infinity', lane: '0' };
  for (;;) {
    const { rows } = await sql<{ ended_at: string | null; lane: string; seen: number; deleted: number }>`
      with slice as materialized (
        select lane, ended_at from subscriptions
        where state = 'ended' and ended_at < ${before}
          and (ended_at, lane) > (${after.ended_at}::timestamptz, ${after.lane}::bigint)
        order by ended_at, lane limit ${sliceMax}::int for update skip locked
      ),
      gone as (
        delete from subscriptions using slice
        where subscriptions.lane = slice.lane
          and not exists (select from deliveries d where d.lane = slice.lane offset 0)
          and not exists (select from retries r where r.lane = slice.lane offset 0)
        returning 1
      )
      select last.ended_at::text as ended_at, last.lane, (select count(*)::int from slice) as seen,
        (select count(*)::int from gone) as deleted
      from (select 1) as one
      left join (select ended_at, lane from slice order by ended_at desc, lane desc limit 1) as last on true`.execute(
      db,
    );
    const row = rows[0] as (typeof rows)[number];
    deleted += row.deleted;
    if (row.ended_at === null || row.seen < sliceMax) return deleted;
    after = { ended_at: row.ended_at, lane: row.lane };
  }
}
