/**
 * Steps of the database's clock. Heartbeats store the clock's time (node.ts). When the clock goes back, times that were planned
 * before are too far in the future. One statement brings them forward and stores the new time, so it happens once for each step,
 * whichever node does it. Until then, planned times are read relative to the stored time (lane_store.ts). Owns the table
 * `database_clock`.
 *
 *   heartbeat stores the time → clock goes back → a heartbeat finds the stored time ahead → times brought forward, once
 *                                                                                         → every node reloads its lanes
 */

import { sql } from 'kysely';
import { retryStepSecondsMax } from '../../config/config.ts';
import type { Database } from '../../database/database.ts';
import { jitterMax, retryAfterSecondsMax } from '../sending/retry_schedule.ts';

const slackSeconds = 3_600;
/** Longest pause of a lane: the longest `Retry-After` that is honored, with slack. */
export const pauseSecondsMax = retryAfterSecondsMax + slackSeconds;
/** Longest time until a retry, with slack. A retry that is due later was planned by a wrong clock, and is due now. */
export const retrySecondsMax = retryStepSecondsMax * (1 + jitterMax) + slackSeconds;
/** Smaller backward steps of the clock are ignored. */
const stepSecondsMin = 5;
/** The stored time is at least this old before a heartbeat replaces it. */
const storeAfterMs = 200;

/**
 * Common table expression `clock` for heartbeats, with the columns `went_back` and `steps` (the number of earlier steps). It
 * stores the time, but never waits for another node that stores it. A slow statement does not look like a step, because it reads
 * the clock after the stored time.
 */
export const clockOfHeartbeat = sql`
  clock as materialized (
    select steps, latest > clock_timestamp() + make_interval(secs => ${stepSecondsMin}) as went_back from database_clock
  ),
  stored as (
    update database_clock set latest = clock_timestamp()
    where id in (
      select id from database_clock
      where latest < clock_timestamp() - ${storeAfterMs} * interval '1 millisecond' for update skip locked)
  )`;

/**
 * The time to which planned times are relative. After a backward step it is ahead of the clock, until `followClock` has brought
 * the planned times forward.
 */
export const plannedNow = sql`greatest(now(), (select latest from database_clock))`;

/**
 * The time from which statements plan. A statement reads it once it has its locks. So a statement that waited for `followClock`
 * plans by the corrected clock.
 */
export const plannedFrom = sql`clock_timestamp()`;

/** Milliseconds that `followClock` waits for statements in flight. Later statements wait behind it. */
const followLockMs = 200;

/**
 * Brings planned times forward after the clock went back, so that everything waits as long as intended. Changes nothing if the
 * clock did not go back, or if another node does this already. First waits for statements in flight that planned by the earlier
 * clock.
 * @throws DatabaseError if they take too long. The next heartbeat calls it again.
 */
export async function followClock(db: Database): Promise<void> {
  const { rows } = await sql`select from database_clock where ${hasGoneBack}`.execute(db);
  if (rows.length === 0) return;
  await waitForStatements(db);
  if (await bringForward(db)) await repairTimes(db);
}

const hasGoneBack = sql`latest > clock_timestamp() + make_interval(secs => ${stepSecondsMin})`;

/**
 * Waits for the statements in flight that plan. Later statements plan by the right clock (`plannedFrom`). The lock is released at
 * once. It also conflicts with an autovacuum, which may run for minutes. PostgreSQL cancels the autovacuum once this statement
 * has waited for the deadlock timeout.
 */
async function waitForStatements(db: Database): Promise<void> {
  await sql`
    do $$
    begin
      perform set_config('lock_timeout', (${sql.lit(followLockMs)} + case when exists (
          select from pg_locks where mode = 'ShareUpdateExclusiveLock' and granted and relation in (
            'retries'::regclass, 'lane_progress'::regclass, 'failing_warnings'::regclass, 'delivery_holds'::regclass)
        ) then (select setting::int from pg_settings where name = 'deadlock_timeout') else 0 end)::text, true);
      lock table retries, lane_progress, failing_warnings, delivery_holds in share row exclusive mode;
    end $$`.execute(db);
}

/** @returns whether the times were brought forward; false if another node does it or the clock has caught up */
async function bringForward(db: Database): Promise<boolean> {
  const { rows } = await sql<{ is_done: boolean }>`
    with step as materialized (
      select clock_timestamp() as now, latest - clock_timestamp() as size from database_clock
      where ${hasGoneBack} for update skip locked
    ),
    followed as (
      update database_clock set latest = step.now, steps = steps + 1 from step returning steps
    ),
    retried as (
      update retries set due_at = due_at - step.size from step where due_at > step.now
    ),
    progressed as (
      update lane_progress set
        paused_until = case when paused_until > step.now then paused_until - step.size else paused_until end,
        due_at = case when due_at > step.now then due_at - step.size else due_at end,
        failing_since = case when failing_since > step.now then failing_since - step.size else failing_since end
      from step
      where paused_until > step.now or due_at > step.now or failing_since > step.now
    ),
    warned as (
      -- A warning that was given before the clock went ahead keeps its time.
      update failing_warnings set given_at = given_at - step.size, disables_at = disables_at - step.size,
        failing_since = case when failing_since > step.now then failing_since - step.size else failing_since end
      from step where given_at > step.now
    ),
    held as (
      update delivery_holds set until = until - step.size from step where until > step.now
    )
    select exists (select from followed) as is_done`.execute(db);
  return rows[0]?.is_done ?? false;
}

/** Ends waits that are longer than any setting allows. Call it at start and after the clock went back. */
export async function repairTimes(db: Database): Promise<void> {
  await sql`
    update lane_progress set paused_until = null, due_at = case when owner is null then now() end
    where paused_until > ${plannedNow} + make_interval(secs => ${pauseSecondsMax})`.execute(db);
  await sql`
    update lane_progress set due_at = now()
    where due_at > ${plannedNow} + make_interval(secs => ${retrySecondsMax})`.execute(db);
  await sql`
    update retries set due_at = now()
    where due_at > ${plannedNow} + make_interval(secs => ${retrySecondsMax})`.execute(db);
}
