/**
 * Repairs times in the database after the clock was wrong. While the clock was ahead, pauses and retries may have
 * been scheduled for times that no setting allows.
 */

import { sql } from 'kysely';
import { retryStepSecondsMax } from '../../config/config.ts';
import type { Database } from '../../database/database.ts';
import { jitterMax, retryAfterSecondsMax } from '../sending/retry_schedule.ts';

const slackSeconds = 3_600;
/** Longest pause of a lane: the longest `Retry-After` that is honored, with slack. */
export const pauseSecondsMax = retryAfterSecondsMax + slackSeconds;
/** Longest time until a retry, with slack. */
const retrySecondsMax = retryStepSecondsMax * (1 + jitterMax) + slackSeconds;
/** Smaller backward steps of the clock are ignored. */
export const stepMsMin = 5_000;

/**
 * After the clock went back, brings forward what was scheduled before, so that it waits as long as intended. Only one
 * node may call this: a second call would bring it forward again.
 * @param stepMs milliseconds by which the clock went back
 */
export async function shiftTimes(db: Database, stepMs: number): Promise<void> {
  const step = sql`make_interval(secs => ${stepMs / 1_000})`;
  await sql`update retries set due_at = due_at - ${step} where due_at > now()`.execute(db);
  await sql`
    update lane_progress set
      paused_until = case when paused_until > now() then paused_until - ${step} else paused_until end,
      due_at = case when due_at > now() then due_at - ${step} else due_at end
    where paused_until > now() or due_at > now()`.execute(db);
}

/** Ends waits that are longer than any setting allows. Call it at start and after the clock went back. */
export async function repairTimes(db: Database): Promise<void> {
  await sql`
    update lane_progress set paused_until = null, due_at = case when owner is null then now() end
    where paused_until > now() + make_interval(secs => ${pauseSecondsMax})`.execute(db);
  await sql`
    update lane_progress set due_at = now()
    where due_at > now() + make_interval(secs => ${retrySecondsMax})`.execute(db);
  await sql`
    update retries set due_at = now()
    where due_at > now() + make_interval(secs => ${retrySecondsMax})`.execute(db);
}
