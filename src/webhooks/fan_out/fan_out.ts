/**
 * Fan-out turns events into deliveries. One set-based statement takes events from the outbox account by account
 * (outbox_selection.ts), finds every subscription whose owner may read them now, numbers the deliveries in each lane without
 * gaps, and inserts them. A second statement makes the lanes due that no node leases (mark_due.ts). One node at a time fans
 * out. A lane keeps each account's events in order; in a lane with events of many accounts, the accounts take turns.
 * Writes `deliveries` and `lanes.next_sequence`, and deletes from `outbox`.
 *
 *   committed → outbox → (one statement) → deliveries → lanes due → handed to the worker, or read by it
 *
 * Two rules keep the plan fast. Rows that the statement itself produces are combined through arrays, because the planner
 * assumes few of them and would choose nested loops. Each `exists` has `offset 0`, so that it stays a look-up by key and is
 * not turned into a hash of the whole table.
 */

import { type RawBuilder, sql } from 'kysely';
import { textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { LeaseLostError } from '../../database/lease.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { type AppSubscriptions, mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import {
  accountRowsMax,
  actingApps,
  chooseFromOutbox,
  heavyDeliveriesMin,
  mayVisitMore,
  type PassRange,
} from './outbox_selection.ts';

/** What a pass added to one lane: the deliveries `first` … `first + events.length - 1`. */
export interface LaneAddition {
  lane: number;
  /** The node that leases the lane after the pass; null for none. */
  owner: string | null;
  first: number;
  day: string;
  /** Positions of the events, in order of the sequence. */
  events: number[];
}

export interface HeavyAccount {
  account: string;
  /** What one of its events may become; 0 if the account was not counted because it rests. */
  deliveries: number;
}

export interface FanOutPass {
  additions: LaneAddition[];
  /** Positions of the processed events, including those without subscribers. */
  events: number[];
  /** Outbox rows that the pass took events from. */
  rows: number;
  /** The last account that the pass visited. The next pass starts after it. */
  last: string;
  /** Whether no account comes after that one. */
  isEnd: boolean;
  /** Whether a visited account may have more events of the same day. */
  hasMore: boolean;
  /** Heavy accounts that the pass took events of, and those that it skipped. */
  heavy: HeavyAccount[];
  skipped: HeavyAccount[];
  /** Other UTC days of which visited accounts have older events first. */
  otherDays: string[];
}

/** The catalogue in the form that the statements take. */
export interface KindArrays {
  names: Buffer;
  objects: Buffer;
  patterns: Buffer;
  /** Which apps may have subscriptions of their own. */
  appSubscriptions: AppSubscriptions;
}

export function kindArrays(catalogue: Catalogue, appSubscriptions: AppSubscriptions = 'all'): KindArrays {
  const kinds = [...catalogue.kinds.values()];
  return {
    names: textArray(kinds.map(({ name }) => name)),
    objects: textArray(kinds.map(({ object }) => object)),
    // PostgreSQL arrays of arrays must be rectangular.
    patterns: textArray(kinds.map(({ patterns }) => patterns.join(' '))),
    appSubscriptions,
  };
}

interface PassRow {
  is_leader: boolean;
  other_days: string | null;
  last: string;
  is_end: boolean;
  has_more: boolean;
  skipped: string | null;
  heavy: string | null;
  rows: number;
  events: string | null;
  /** One entry per lane. */
  lanes: string | null;
  firsts: string | null;
  /** The positions of each lane's events. */
  positions: string | null;
}

/**
 * Runs one pass. It is one statement and thus one transaction, so locks are never held while this process is busy.
 * `markDue` then decides who sends.
 * @param held selects a row while this node is the leader (database/lease.ts)
 * @throws LeaseLostError if it is not; then nothing changes
 */
export async function fanOut(
  db: Database,
  kinds: KindArrays,
  range: PassRange,
  held: RawBuilder<unknown> = sql`select`,
): Promise<FanOutPass> {
  const { day, limits } = range;
  const { rows } = await sql<PassRow>`
    with recursive catalogue as materialized (
      select name, case when object is not null then array['read:' || object] end as scopes,
        string_to_array(patterns, ' ') as patterns
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    leadership as materialized (${held}),
    ${chooseFromOutbox(range, sql`exists (select from leadership)`)},
    pair as materialized (
      select account_id, kind, array_agg(position) as positions, array_agg(created_at) as times
      from events
      where day = ${day}::date and account_id is not null
        and position = any(array(select unnest(positions) from chosen where lanes is null))
      group by account_id, kind
    ),
    matched as materialized (
      select lane, position
      from (
        select found.lane, found.created_at as since, found.created_position as after,
          unnest(pair.positions) as position, unnest(pair.times) as time
        from pair
        join catalogue on catalogue.name = pair.kind
        cross join lateral (
          select s.lane, s.created_at, s.created_position
          from subscriptions s
          where s.account_id = pair.account_id and s.state <> 'ended' and s.kinds && catalogue.patterns
            and (s.owner = 'user' or exists (
              select from grants g
              where g.id = s.grant_id and g.withdrawn_at is null
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes) offset 0))
            -- Subscriptions of deleted accounts and clients have ended already.
            and not exists (
              select from clients c where c.id = s.client_id and c.is_stopped offset 0)
          union all
          select s.lane, s.created_at, s.created_position
          from ${actingApps(sql`pair.account_id`, sql`(catalogue.scopes is null or g.scopes @> catalogue.scopes)`)} as app
          cross join lateral (
            select lane, created_at, created_position from subscriptions
            where client_id = app.client_id and owner = 'client' and state <> 'ended' and kinds && catalogue.patterns
            offset 0
          ) as s
          where exists (
            select from clients c where c.id = app.client_id and ${mayOwnSubscriptions(kinds.appSubscriptions)} offset 0)
          offset 0
        ) as found
        where not exists (
          select from accounts a where a.id = pair.account_id and a.disabled_at is not null offset 0)
      ) as each
      -- A subscription does not get events from before its creation. The second condition covers transactions that
      -- overlapped. Positions are compared as well as times, because the clock may have been set.
      where position > after or since <= time + interval '1 second'
      union all
      select s.lane, event.position
      from (select unnest(positions) as position, lanes from chosen where lanes is not null) as given
      cross join lateral (
        select position from events where day = ${day}::date and position = given.position offset 0
      ) as event
      cross join lateral unnest(given.lanes) as target (lane)
      cross join lateral (
        select lane from subscriptions where lane = target.lane and state <> 'ended' offset 0
      ) as s
    ),
    grouped as materialized (
      select lane, count(*) as count, array_agg(position order by position) as positions from matched group by lane
    ),
    head as (
      update lanes set next_sequence = lanes.next_sequence + grouped.count
      from grouped where lanes.id = grouped.lane
      returning lanes.id as lane, lanes.next_sequence - grouped.count as first, grouped.positions, grouped.count
    ),
    added as (
      insert into deliveries (day, lane, sequence, event)
      select ${day}::date, lane, generate_series(first, first + count - 1), unnest(positions)
      from head
    ),
    -- By row position: a join could read the whole outbox.
    taken as (
      delete from outbox where ctid = any(array(select place from chosen where take = size))
    ),
    shortened as (
      update outbox set positions = positions[1 + (
        (select jsonb_object_agg(id, take) from chosen where take < size) ->> id::text
      )::int:]
      where ctid = any(array(select place from chosen where take < size))
    )
    select exists (select from leadership) as is_leader,
      (select string_agg(distinct day::text, ',') from walk where day <> ${day}::date and not is_skipped) as other_days,
      (select turn from walk order by number desc limit 1) as last,
      (select ${mayVisitMore(limits)} from walk order by number desc limit 1) as is_end,
      exists (
        select from chosen group by turn having sum(take) >= max(share) or count(*) >= ${accountRowsMax}::int
      ) as has_more,
      (select string_agg(turn || ' ' || candidates, ',') from walk where is_skipped) as skipped,
      (select string_agg(turn || ' ' || candidates, ',') from walk
        where candidates >= ${sql.lit(heavyDeliveriesMin)} and not is_skipped) as heavy,
      (select count(*) from chosen)::int as rows,
      (select string_agg(array_to_string(positions, ','), ',') from chosen) as events,
      array_to_string(array_agg(lane), ',') as lanes, array_to_string(array_agg(first), ',') as firsts,
      string_agg(array_to_string(positions, ','), ';') as positions
    from head`.execute(db);
  const row = rows[0] as PassRow;
  if (!row.is_leader) throw new LeaseLostError();
  return toPass(row, day);
}

function toPass(row: PassRow, day: string): FanOutPass {
  const first = row.firsts?.split(',');
  const positions = row.positions?.split(';');
  const additions = (row.lanes?.split(',') ?? []).map(
    (lane, index): LaneAddition => ({
      lane: Number(lane),
      owner: null,
      first: Number(first?.[index]),
      day,
      events: positions?.[index]?.split(',').map(Number) ?? [],
    }),
  );
  return {
    additions,
    events: row.events?.split(',').map(Number) ?? [],
    rows: row.rows,
    last: row.last,
    isEnd: row.is_end,
    hasMore: row.has_more,
    heavy: readHeavy(row.heavy),
    skipped: readHeavy(row.skipped),
    otherDays: row.other_days?.split(',') ?? [],
  };
}

function readHeavy(text: string | null): HeavyAccount[] {
  return (text?.split(',') ?? []).map((pair) => {
    const [account = '', deliveries] = pair.split(' ');
    return { account, deliveries: Number(deliveries) };
  });
}
