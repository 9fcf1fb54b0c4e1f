/**
 * Holds the deliveries of agents' subscriptions that mostly fail: more than 95 % of at least 100 attempts in an hour. Nothing is sent
 * until the agent refreshes its subscription; then what waits is sent. Other subscriptions are disabled much later (failing.ts).
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
 * @param lanes whose last attempts failed; those of other subscriptions are left out
 * @returns how many this call held
 */
export async function holdFailingAgents(db: Database, lanes: readonly number[]): Promise<number> {
  const { rows } = await sql`
    with candidate as materialized (
      select id, lane, released_at from agent_subscriptions
      where lane = any(${bigintArray(lanes)}::bigint[]) and mode = 'webhook' and ended_at is null and held_at is null
    ),
    failing as materialized (
      select candidate.id, candidate.lane
      from candidate
      cross join lateral (
        select count(*) as attempts, count(*) filter (where error is not null) as failures from attempts a
        where a.lane = candidate.lane and a.day >= (now() at time zone 'utc')::date - 1
          and a.started_at > greatest(now() - make_interval(mins => ${windowMinutes}::int), candidate.released_at)
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
