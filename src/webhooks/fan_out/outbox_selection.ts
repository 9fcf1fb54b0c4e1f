/**
 * Selects what a fan-out pass takes from the outbox. The pass visits accounts in the order of their turns (turns.ts) and takes the
 * oldest events of each. Before any matching, the number of subscriptions that could get an event bounds the pass. These are the
 * subscriptions of the event's account, and of the apps that act for it. One with an expensive filter counts as several. Each account gets an equal share of the pass and at least
 * one event. A pass skips heavy accounts that rest (heavy_accounts.ts), and further ones once the share of heavy accounts is used.
 * It skips accounts whose events are fanned out in slices (slices.ts).
 *
 *   visit accounts until a limit is reached → share per account → outbox rows and positions
 */

import { type RawBuilder, sql } from 'kysely';
import { bigintArray, textArray } from '../../database/arrays.ts';
import { findNew, type Snapshot } from './outbox_changes.ts';

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
/** If one event may become this many deliveries, it is fanned out in slices. */
export const sliceDeliveriesMin = passLimits.deliveries + 1;
/** SQL: what an event costs for a subscription, in deliveries. For use where `filter_weight` is the subscription's. */
export const subscriptionCost = sql`(1 + filter_weight)`;
/** Maximum outbox rows of one account in a pass. */
const accountRowsMax = 500;

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

/** An account to visit. */
export interface Visit {
  account: string;
  /** Its waiting rows have higher ids. */
  after: number;
}

/** What a pass may take. */
export interface PassRange {
  /** The pass takes events of this UTC day. A known day avoids look-ups in every day's partition. */
  day: string;
  /** The accounts to visit, in order; null for those with rows that the snapshot did not see. */
  visits: readonly Visit[] | null;
  /** With `visits`, the pass takes only rows that the snapshot sees. So it cannot overtake an earlier row of an account. */
  snapshot: Snapshot;
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

/** A part of the lanes that one event is for. */
export interface Slice {
  /** The outbox row. */
  id: number;
  /** The event has deliveries in the lanes up to this one. */
  after: number;
  /** The slice ends with this lane; null for all further lanes. */
  upTo: number | null;
}

/** Maximum subscriptions that a pass counts, as a multiple of the deliveries that it may make. */
const countedFactor = 4;

/** Common table expression `visit`: one row with the accounts and their places as arrays. */
function visitAll({ visits, snapshot }: PassRange): RawBuilder<unknown> {
  if (visits !== null) {
    return sql`
      visit as materialized (
        select ${textArray(visits.map(({ account }) => account))}::text[]::uuid[] as accounts,
          ${bigintArray(visits.map(({ after }) => after))}::bigint[] as afters,
          ${snapshot.text}::pg_snapshot as snapshot
      )`;
  }
  return sql`
    ${findNew(snapshot)},
    visit as materialized (
      select array_agg(account) as accounts, array_agg(after) as afters from found
    )`;
}

/**
 * Common table expressions: `walk` (the visited accounts, including those that are skipped), `taking` (accounts that get a turn,
 * with their share in events) and `chosen` (outbox rows: `take` of their `size` events, with the `positions` of those).
 * @param condition without which nothing is chosen
 * @param slice of the first event of the only account
 */
export function chooseFromOutbox(
  range: PassRange,
  condition: RawBuilder<unknown> = sql`true`,
  slice: Slice | null = null,
) {
  const { day, visits, resting, entitled, heavyShare, skipsFrom, limits } = range;
  const { accounts, deliveries } = limits;
  const isVisible =
    visits === null ? sql`true` : sql`pg_visible_in_snapshot(added_by, (select snapshot from visit))`;
  const isForSlices = slice === null ? sql`candidate.count >= ${sql.lit(sliceDeliveriesMin)}` : sql`false`;
  // Rows that are fanned out in slices are left to them.
  const isMeant =
    slice === null ? sql`through_lane = 0` : sql`id = ${slice.id} and through_lane = ${slice.after}`;
  return sql`
    ${visitAll(range)},
    walk as (
      select null::uuid as turn, null::bigint as after, null::date as day, false as is_skipped, 0 as candidates, 0 as number,
        0 as total, 0 as counted
      union all
      select next.turn, next.after, next.day, skip.is_skipped, candidate.count, walk.number + 1,
        walk.total + case when skip.is_skipped then 0 else candidate.count end, walk.counted + candidate.count
      from walk
      cross join lateral (
        select place.turn, place.after, first.day, first.lanes, coalesce(first.through_lane, 0) as through_lane,
          place.turn = any(${textArray(resting)}::text[]::uuid[]) as rests,
          place.turn = any(${textArray(entitled)}::text[]::uuid[]) as is_entitled
        from (
          -- Subqueries are computed once; a join would copy the arrays for each account.
          select (select accounts from visit)[walk.number + 1] as turn, (select afters from visit)[walk.number + 1] as after offset 0
        ) as place
        left join lateral (
          select day, lanes, through_lane from outbox
          where turn = place.turn and id > place.after and ${isVisible} order by id limit 1
        ) as first on true
      ) as next
      cross join lateral (
        select case when next.day = ${day}::date and not next.rests then greatest(
          case when next.through_lane > 0 then ${sql.lit(sliceDeliveriesMin)} end, cardinality(next.lanes), (
          select coalesce(sum(${subscriptionCost}), 0) from (
            select s.filter_weight from subscriptions s where s.account_id = next.turn and s.state <> 'ended'
            limit ${sql.lit(sliceDeliveriesMin)}
          ) as few
        ) + (
          select coalesce(sum(${subscriptionCost}), 0) from (
            select own.filter_weight from ${actingApps(sql`next.turn`)} as app
            cross join lateral (
              select s.filter_weight from subscriptions s
              where s.client_id = app.client_id and s.owner = 'client' and s.state <> 'ended' offset 0
            ) as own
            limit ${sql.lit(sliceDeliveriesMin)}
          ) as few
        ))::int else 0 end as count
        -- Computed once, although it is used twice.
        offset 0
      ) as candidate
      cross join lateral (
        select next.rests or ${isForSlices} or (
          candidate.count >= ${sql.lit(heavyDeliveriesMin)} and walk.total >= ${skipsFrom}::float8 and not next.is_entitled
        ) as is_skipped
      ) as skip
      where walk.number < cardinality((select accounts from visit)) and walk.number < ${accounts}::int
        and walk.total < ${deliveries}::int and walk.counted < ${deliveries * countedFactor}::int
    ),
    taking as materialized (
      select turn, after, greatest(1, least(
        ${limits.events}::int / count(*) over (),
        ${deliveries}::int / count(*) over () / greatest(candidates, 1),
        case when candidates >= ${sql.lit(heavyDeliveriesMin)}
          then ${heavyShare}::int / count(*) filter (where candidates >= ${sql.lit(heavyDeliveriesMin)}) over () / candidates
        end
      ))::int as share
      from walk where day = ${day}::date and not is_skipped and ${condition}
    ),
    chosen as materialized (
      select taking.turn, o.place, o.id, o.lanes, o.size, o.take, o.positions[1:o.take] as positions, o.has_more
      from taking
      cross join lateral (
        select place, id, positions, lanes, size, least(size, taking.share - before) as take,
          -- True in the last row that is taken, if the account has more.
          not is_next_meant or before + size > taking.share
            or (has_next and (before + size = taking.share or number = ${sql.lit(accountRowsMax)})) as has_more
        from (
          select each.*, sum(size) over earlier - size as before, row_number() over earlier as number,
            bool_and(is_meant) over earlier as is_due, lead(is_meant, 1, true) over earlier as is_next_meant,
            lead(true, 1, false) over earlier as has_next
          from (
            select ctid as place, id, positions, lanes, size, day = ${day}::date and ${isMeant} as is_meant from outbox
            where turn = taking.turn and id > taking.after and ${isVisible}
            -- One row more shows whether the account has more.
            order by id limit least(taking.share, ${sql.lit(accountRowsMax)}) + 1
          ) as each
          window earlier as (order by id rows unbounded preceding)
        ) as summed
        where before < taking.share and is_due and number <= ${sql.lit(accountRowsMax)}
      ) as o
    )`;
}
