/**
 * Selects what a fan-out pass takes from the outbox. Accounts take turns: a pass visits them in order of their ids, starts after
 * the last account of the previous pass, and takes the oldest events of each. Before any matching, the number of subscriptions
 * that could get an event bounds the pass. These are the subscriptions of the event's account, and of the apps that act for it.
 * Each account gets an equal share of the pass and at least one event. A pass skips heavy accounts that rest (heavy_accounts.ts),
 * and further ones once the share of heavy accounts is used.
 *
 *   start after the last account → visit accounts until a limit is reached → share per account → outbox rows and positions
 */

import { type RawBuilder, sql } from 'kysely';
import { textArray } from '../../database/arrays.ts';

/** Limits of one pass. */
export interface PassLimits {
  accounts: number;
  events: number;
  /**
   * Maximum deliveries from the first events of all visited accounts. The same maximum holds separately for the shares.
   */
  deliveries: number;
}

export const passLimits: PassLimits = { accounts: 1_000, events: 2_000, deliveries: 5_000 };
/** An account is heavy if one of its events may become this many deliveries. */
export const heavyDeliveriesMin = 32;
/** Maximum outbox rows of one account in a pass. */
export const accountRowsMax = 500;
/** Sorts before every account id. */
export const beforeFirstTurn = '00000000-0000-0000-0000-000000000000';

/**
 * Selects the apps that act for an account; none if no app has subscriptions of its own. For use in `from`, with the column
 * `client_id`. A join in the other direction would read the subscriptions of all apps for each account.
 * @param condition on the grant `g`
 */
export function actingApps(account: RawBuilder<unknown>, condition: RawBuilder<unknown> = sql`true`) {
  return sql`(
    select distinct g.client_id from grants g
    where exists (select from subscriptions where owner = 'client' and state <> 'ended')
      and g.account_id = ${account} and g.withdrawn_at is null and ${condition}
    offset 0
  )`;
}

/** Where a pass starts, and what it may take. */
export interface PassRange {
  /** The pass takes events of this UTC day. A known day avoids look-ups in every day's partition. */
  day: string;
  /** The pass starts after this account. */
  after: string;
  /** Accounts that the pass skips. */
  resting: readonly string[];
  /** Heavy accounts whose turn it is. They are not skipped. */
  entitled: readonly string[];
  /** Deliveries that the events of heavy accounts may become in total. Each account has at least one event. */
  heavyShare: number;
  /** When a pass has this many deliveries, it skips other heavy accounts. */
  skipsFrom: number;
  limits: PassLimits;
}

/** Maximum subscriptions that a pass counts, as a multiple of the deliveries that it may make. */
const countedFactor = 4;

/** Whether the pass may visit another account after the one in the row of `walk`. */
export function mayVisitMore({ accounts, deliveries }: PassLimits) {
  return sql`(walk.number < ${accounts}::int and walk.total < ${deliveries}::int
    and walk.counted < ${deliveries * countedFactor}::int)`;
}

/**
 * Common table expressions: `walk` (the visited accounts, including those that are skipped), `taking` (accounts that get a turn,
 * with their share in events) and `chosen` (outbox rows: `take` of their `size` events, with the `positions` of those).
 * @param condition without which nothing is chosen
 */
export function chooseFromOutbox(
  { day, after, resting, entitled, heavyShare, skipsFrom, limits }: PassRange,
  condition: RawBuilder<unknown> = sql`true`,
) {
  const candidatesMax = limits.deliveries + 1;
  return sql`
    walk as (
      select ${after}::uuid as turn, null::date as day, false as is_skipped, 0 as candidates, 0 as number,
        0 as total, 0 as counted
      union all
      select next.turn, next.day, skip.is_skipped, candidate.count, walk.number + 1,
        walk.total + case when skip.is_skipped then 0 else candidate.count end, walk.counted + candidate.count
      from walk
      cross join lateral (
        select turn, day, lanes, turn = any(${textArray(resting)}::text[]::uuid[]) as rests,
          turn = any(${textArray(entitled)}::text[]::uuid[]) as is_entitled from outbox
        where turn > walk.turn order by turn, id limit 1
      ) as next
      cross join lateral (
        select case when next.day = ${day}::date and not next.rests then greatest(coalesce(cardinality(next.lanes), 0), (
          select count(*) from (
            select from subscriptions s where s.account_id = next.turn and s.state <> 'ended'
            limit ${candidatesMax}::int
          ) as few
        ) + (
          select count(*) from (
            select from ${actingApps(sql`next.turn`)} as app
            cross join lateral (
              select from subscriptions s
              where s.client_id = app.client_id and s.owner = 'client' and s.state <> 'ended' offset 0
            ) as own
            limit ${candidatesMax}::int
          ) as few
        ))::int else 0 end as count
        -- Computed once, although it is used twice.
        offset 0
      ) as candidate
      cross join lateral (
        select next.rests or (
          candidate.count >= ${sql.lit(heavyDeliveriesMin)} and walk.total >= ${skipsFrom}::float8 and not next.is_entitled
        ) as is_skipped
      ) as skip
      where ${mayVisitMore(limits)}
    ),
    taking as materialized (
      select turn, greatest(1, least(
        ${limits.events}::int / count(*) over (),
        ${limits.deliveries}::int / count(*) over () / greatest(candidates, 1),
        case when candidates >= ${sql.lit(heavyDeliveriesMin)}
          then ${heavyShare}::int / count(*) filter (where candidates >= ${sql.lit(heavyDeliveriesMin)}) over () / candidates
        end
      ))::int as share
      from walk where day = ${day}::date and not is_skipped and ${condition}
    ),
    chosen as materialized (
      select taking.turn, taking.share, o.place, o.id, o.lanes, o.size, o.take, o.positions[1:o.take] as positions
      from taking
      cross join lateral (
        select place, id, positions, lanes, size, least(size, taking.share - before) as take
        from (
          select each.*, sum(size) over earlier - size as before, bool_and(day = ${day}::date) over earlier as is_due
          from (
            select ctid as place, id, day, positions, lanes, size from outbox
            where turn = taking.turn order by id limit least(taking.share, ${accountRowsMax}::int)
          ) as each
          window earlier as (order by id rows unbounded preceding)
        ) as summed
        where before < taking.share and is_due
      ) as o
    )`;
}
