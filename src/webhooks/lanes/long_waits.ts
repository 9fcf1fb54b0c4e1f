/**
 * Ends waits that are longer than any setting allows: the times that they wait for were planned by a clock that was set back since.
 * So a step of the database's clock delays a delivery by at most the longest pause of its retry schedule or, if that is longer, the
 * longest `Retry-After`.
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { jitterMax, retryAfterSecondsMax } from '../sending/retry_schedule.ts';

/** @param retryScheduleSeconds of subscriptions without a schedule of their own */
export async function endLongWaits(db: Database, retryScheduleSeconds: readonly number[]): Promise<void> {
  const latest = sql`now() + make_interval(secs => greatest(${retryAfterSecondsMax}, ${1 + jitterMax}::float8 * coalesce(
    (select max(step) from unnest(s.retry_schedule) as step), ${Math.max(...retryScheduleSeconds)})))`;
  await sql`
    update retries r set due_at = now() from subscriptions s where s.lane = r.lane and r.due_at > ${latest}`.execute(
    db,
  );
  await sql`
    update lane_progress p set due_at = case when p.owner is null then now() end,
      paused_until = case when p.paused_until <= now() + make_interval(secs => ${retryAfterSecondsMax}) then p.paused_until end
    from subscriptions s
    where s.lane = p.lane
      and (p.due_at > ${latest} or p.paused_until > now() + make_interval(secs => ${retryAfterSecondsMax}))`.execute(
    db,
  );
}
