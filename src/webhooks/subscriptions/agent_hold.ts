/**
 * Holds the deliveries of agents' subscriptions that mostly fail: more than 95 % of at least 100 attempts in an hour, of the
 * newest deliveries. Nothing is sent until the agent refreshes its subscription; then what waits is sent. Other subscriptions are
 * disabled much later (failing.ts).
 *
 *   live → held (held_at) → refreshed → live
 */

import { sql } from 'kysely';
import { bigintArray } from '../../database/arrays.ts';
import type { Database, Transaction } from '../../database/database.ts';

const windowMinutes = 60;
const attemptsMin = 100;
/** Of the attempts that failed. */
const shareMax = 0.95;
/**
 * How many of a lane's deliveries are looked at, the last that were attempted, and how many attempts. A lane may have millions in two days, which no
 * index has by their time, and this is asked again after each burst of failures.
 */
const deliveriesMax = 1_000;
const readMax = 5_000;
/** Lanes of one statement. Thousands may fail at once, and other lanes wait for the end of this work. */
const lanesMax = 50;

/**
 * @param lanes whose last attempts failed; those of other subscriptions are left out
 * @returns how many this call held
 */
export async function holdFailingAgents(db: Database, lanes: readonly number[]): Promise<number> {
  let held = 0;
  for (let begin = 0; begin < lanes.length; begin += lanesMax)
    held += await holdSome(db, lanes.slice(begin, begin + lanesMax));
  return held;
}

async function holdSome(db: Database, lanes: readonly number[]): Promise<number> {
  const { rows } = await sql`
    with candidate as materialized (
      select a.id, a.lane, a.released_at, p.cursor
      from agent_subscriptions a join lane_progress p on p.lane = a.lane
      where a.lane = any(${bigintArray(lanes)}::bigint[]) and a.mode = 'webhook' and a.ended_at is null
        and a.held_at is null
    ),
    failing as materialized (
      select candidate.id, candidate.lane
      from candidate
      cross join lateral (
        select count(*) as attempts, count(*) filter (where error is not null) as failures
        from (
          select started_at, error from attempts
          where lane = candidate.lane and sequence > candidate.cursor - ${deliveriesMax}::int
            and day >= (now() at time zone 'utc')::date - 1
          limit ${readMax}::int
        ) as newest
        where started_at > greatest(now() - make_interval(mins => ${windowMinutes}::int), candidate.released_at)
      ) as recent
      where recent.attempts >= ${attemptsMin}::int and recent.failures > recent.attempts * ${shareMax}::float8
    ),
    -- In order, and without waiting: whatever ends subscriptions locks several of these rows, too.
    locked as materialized (
      select a.id from failing join agent_subscriptions a on a.id = failing.id
      where a.ended_at is null and a.held_at is null order by a.id for update of a skip locked
    ),
    held as (
      update agent_subscriptions a set held_at = now() from locked where a.id = locked.id
      returning a.lane
    )
    select notify_lane_changed(lane) from held`.execute(db);
  return rows.length;
}

/** A refresh ends the hold: the failures so far count no longer. @returns whether the subscription was held */
export async function releaseAgent(tx: Transaction, id: string, lane: number): Promise<boolean> {
  const { rows } = await sql`
    update agent_subscriptions set held_at = null, released_at = now()
    where id = ${id} and held_at is not null returning id`.execute(tx);
  if (rows.length === 0) return false;
  await sql`
    update lane_progress set failures = 0, failing_since = null, paused_until = null where lane = ${lane} and owner is null`.execute(
    tx,
  );
  return true;
}
