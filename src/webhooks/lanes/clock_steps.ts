/**
 * Times of the database that a wrong clock has written. While the clock was ahead, pauses and retries were put off to
 * a time that nothing of this server asks for: such times are over.
 */

import { sql } from 'kysely';
import { retryStepSecondsMax } from '../../config/config.ts';
import type { Database } from '../../database/database.ts';
import { jitterMax, retryAfterSecondsMax } from '../sending/retry_schedule.ts';

const slackSeconds = 3_600;
/** Seconds that a lane pauses at most: for as long as a subscriber may ask. */
export const pauseSecondsMax = retryAfterSecondsMax + slackSeconds;
/** Seconds until a retry at most. */
const retrySecondsMax = retryStepSecondsMax * (1 + jitterMax) + slackSeconds;
/** Milliseconds by which the clock must have gone back to be looked after. */
export const stepMsMin = 5_000;

/**
 * Brings forward what was put off before the clock went back, so that it waits for as long as it was to. For one node of
 * all: what two bring forward comes too early.
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

/** To be called at the start, and when the clock has gone back. */
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
