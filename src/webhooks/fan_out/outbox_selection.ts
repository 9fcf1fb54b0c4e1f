/**
 * Selects what a fan-out pass takes from the outbox. The pass visits accounts in the order of their turns (turns.ts) and takes the
 * oldest events of each. Before any matching, the number of subscriptions that could get an event bounds the pass. These are the
 * subscriptions of the event's account, and of the apps that act for it. One with an expensive filter counts as several. If any has a
 * filter, the event's body counts too, once, because PostgreSQL parses it once for all filters. Each account gets an equal share of the
 * pass and at least one event. A pass skips heavy accounts that rest (heavy_accounts.ts), and further ones once the share of heavy
 * accounts is used. It skips accounts whose events are fanned out in slices (slices.ts).
 *
 *   visit accounts until a limit is reached → share per account → the events of it whose bodies fit → outbox rows and positions
 *
 * The lengths of bodies are read from the events, and only for accounts with a filter. They are known without reading the bodies.
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
/** An account is heavy if one of its events may cost as much as this many deliveries. */
export const heavyDeliveriesMin = 32;
/** If one event may cost as much as this many deliveries, it is fanned out in slices. */
export const sliceDeliveriesMin = passLimits.deliveries + 1;
/** SQL: what an event costs for a subscription, in deliveries. For use where `filter_weight` is the subscription's. */
export const subscriptionCost = sql`(1 + filter_weight)`;
/** Bytes of a body that cost as much as a delivery if a filter makes PostgreSQL parse it. So many as of a filter (`filter_weight`). */
export const bytesPerDelivery = 500;
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

/** A pass over one account, or none, without regard for other heavy accounts. */
export function rangeOf(visits: readonly Visit[], day: string, snapshot: Snapshot): PassRange {
  const limits = { accounts: 1, events: 1, deliveries: 1 };
  const entitled = visits.map(({ account }) => account);
  return {
    day,
    visits,
    snapshot,
    resting: [],
    entitled,
    heavyShare: limits.deliveries,
    skipsFrom: limits.deliveries,
    limits,
  };
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

/** SQL: what parsing an event's body costs, in deliveries; 0 if the body or the event was deleted. */
function parsingCost(day: string, position: RawBuilder<unknown>): RawBuilder<unknown> {
  return sql`coalesce((
    select octet_length(body) / ${sql.lit(bytesPerDelivery)} from events where day = ${day}::date and position = ${position} offset 0
  ), 0)`;
}

/** SQL: whether the pass sees an outbox row. */
function isVisible({ visits }: PassRange): RawBuilder<unknown> {
  return visits === null ? sql`true` : sql`pg_visible_in_snapshot(added_by, (select snapshot from visit))`;
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
  // Rows that are fanned out in slices are left to them.
  const isMeant =
    slice === null ? sql`through_lane = 0` : sql`id = ${slice.id} and through_lane = ${slice.after}`;
  return sql`
    ${visitAll(range)},
    ${walkAccounts(range, slice)},
    ${shareOut(range, condition)},
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
            select ctid as place, id, positions, lanes, size, day = ${range.day}::date and ${isMeant} as is_meant from outbox
            where turn = taking.turn and id > taking.after and ${isVisible(range)}
            -- One row more shows whether the account has more.
            order by id limit least(taking.share, ${sql.lit(accountRowsMax)}) + 1
          ) as each
          window earlier as (order by id rows unbounded preceding)
        ) as summed
        where before < taking.share and is_due and number <= ${sql.lit(accountRowsMax)}
      ) as o
    )`;
}

/** Common table expression `walk`. `candidates` is what the first event may cost, and `targets` that without its body. */
function walkAccounts(range: PassRange, slice: Slice | null) {
  const { day, resting, entitled, skipsFrom, limits } = range;
  const { accounts, deliveries } = limits;
  const isForSlices = slice === null ? sql`cost.count >= ${sql.lit(sliceDeliveriesMin)}` : sql`false`;
  return sql`
    walk as (
      select null::uuid as turn, null::bigint as after, null::date as day, false as is_skipped, 0 as candidates, 0 as targets,
        false as is_filtered, 0 as number, 0 as total, 0 as counted
      union all
      select next.turn, next.after, next.day, skip.is_skipped, cost.count, candidate.count, candidate.is_filtered, walk.number + 1,
        walk.total + case when skip.is_skipped then 0 else cost.count end, walk.counted + cost.count
      from walk
      cross join lateral (
        select place.turn, place.after, first.day, first.positions, first.lanes, coalesce(first.through_lane, 0) as through_lane,
          place.turn = any(${textArray(resting)}::text[]::uuid[]) as rests,
          place.turn = any(${textArray(entitled)}::text[]::uuid[]) as is_entitled
        from (
          -- Subqueries are computed once; a join would copy the arrays for each account.
          select (select accounts from visit)[walk.number + 1] as turn, (select afters from visit)[walk.number + 1] as after offset 0
        ) as place
        left join lateral (
          select day, positions, lanes, through_lane from outbox
          where turn = place.turn and id > place.after and ${isVisible(range)} order by id limit 1
        ) as first on true
      ) as next
      cross join lateral (
        select coalesce(max(greatest(
            case when next.through_lane > 0 then ${sql.lit(sliceDeliveriesMin)} end, cardinality(next.lanes), own.count + of_apps.count
          )), 0)::int as count,
          coalesce(bool_or(own.is_filtered or of_apps.is_filtered), false) as is_filtered
        from (
          select coalesce(sum(${subscriptionCost}), 0) as count, coalesce(bool_or(filter_digest is not null), false) as is_filtered from (
            select s.filter_weight, s.filter_digest from subscriptions s where s.account_id = next.turn and s.state <> 'ended'
            limit ${sql.lit(sliceDeliveriesMin)}
          ) as few
        ) as own
        cross join (
          select coalesce(sum(${subscriptionCost}), 0) as count, coalesce(bool_or(filter_digest is not null), false) as is_filtered from (
            select own.filter_weight, own.filter_digest from ${actingApps(sql`next.turn`)} as app
            cross join lateral (
              select s.filter_weight, s.filter_digest from subscriptions s
              where s.client_id = app.client_id and s.owner = 'client' and s.state <> 'ended' offset 0
            ) as own
            limit ${sql.lit(sliceDeliveriesMin)}
          ) as few
        ) as of_apps
        where next.day = ${day}::date and not next.rests
        -- Computed once, although it is used twice.
        offset 0
      ) as candidate
      cross join lateral (
        select candidate.count + case when candidate.is_filtered and next.lanes is null
          then ${parsingCost(day, sql`next.positions[1]`)} else 0 end as count
        offset 0
      ) as cost
      cross join lateral (
        select next.rests or ${isForSlices} or (
          cost.count >= ${sql.lit(heavyDeliveriesMin)} and walk.total >= ${skipsFrom}::float8 and not next.is_entitled
        ) as is_skipped
      ) as skip
      where walk.number < cardinality((select accounts from visit)) and walk.number < ${accounts}::int
        and walk.total < ${deliveries}::int and walk.counted < ${deliveries * countedFactor}::int
    )`;
}

/**
 * Common table expressions `sharing` (each account's share without regard for bodies) and `taking`. Of a heavy account, the events
 * have to fit in its part of the heavy share. All bodies of other accounts together may cost half of a pass, and such an account's
 * turn ends before an event that makes it a heavy one.
 */
function shareOut(range: PassRange, condition: RawBuilder<unknown>) {
  const { day, heavyShare, limits } = range;
  const { events, deliveries } = limits;
  return sql`
    sharing as materialized (
      select turn, after, targets, is_filtered, is_heavy, greatest(1, least(
          ${events}::int / count(*) over (),
          ${deliveries}::int / count(*) over () / greatest(candidates, 1),
          case when is_heavy then ${heavyShare}::int / count(*) filter (where is_heavy) over () / candidates end
        ))::int as share,
        case when is_heavy then ${heavyShare}::int / count(*) filter (where is_heavy) over ()
          when is_filtered then ${Math.floor(deliveries / 2)}::int / count(*) filter (where is_filtered and not is_heavy) over ()
        end as budget
      from (
        select *, candidates >= ${sql.lit(heavyDeliveriesMin)} as is_heavy from walk
        where day = ${day}::date and not is_skipped and ${condition}
      ) as walked
    ),
    taking as materialized (
      select turn, after, case when is_filtered and share > 1 then greatest(1, (
          select count(*) from (
            select sum(parsing + case when is_heavy then targets else 0 end) over earlier as total,
              bool_and(is_heavy or targets + parsing < ${sql.lit(heavyDeliveriesMin)}) over earlier as is_fitting
            from (
              select id, number, case when lanes is null then ${parsingCost(day, sql`one.position`)} else 0 end as parsing
              from (
                select id, positions, lanes, sum(size) over (order by id rows unbounded preceding) - size as before
                from (
                  select id, positions, lanes, size from outbox
                  where turn = sharing.turn and id > sharing.after and ${isVisible(range)}
                  order by id limit least(share, ${sql.lit(accountRowsMax)})
                ) as few
              ) as waiting
              cross join lateral unnest(positions[1:share - before]) with ordinality as one (position, number)
              where before < share
              -- Looked up once, although it is used twice.
              offset 0
            ) as weighed
            window earlier as (order by id, number rows unbounded preceding)
          ) as summed
          where total <= budget and is_fitting
        )) else share end::int as share
      from sharing
    )`;
}
