/**
 * Fan-out turns events into deliveries. One set-based statement takes events from the outbox account by account
 * (outbox_selection.ts), finds every subscription whose owner may read them now, numbers the deliveries in each lane without
 * gaps (log/numbering.ts), and inserts them. A second statement makes the lanes due that no node leases (mark_due.ts). One node at
 * a time fans out. A lane keeps each account's events in order; in a lane with events of many accounts, the accounts take turns.
 * Writes `deliveries`, `deferred_deliveries` and `lanes`, and deletes from `outbox`.
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
import { numberDeliveries } from '../log/numbering.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import { type Found, type FoundRow, foundColumns, readFound } from './outbox_changes.ts';
import {
  actingApps,
  chooseFromOutbox,
  heavyDeliveriesMin,
  type PassRange,
  type Slice,
} from './outbox_selection.ts';

/** What a pass added to one lane: the deliveries `first` … `first + events.length - 1`. */
export interface LaneAddition {
  lane: number;
  /** The node that leases the lane after the pass; null for none. */
  owner: string | null;
  /** Whose lane it is, if no node leased it before; null otherwise. */
  tenant: string | null;
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

/** What a pass found at an account. */
export interface VisitedAccount {
  account: string;
  /** The last outbox row of which all events are taken; null for none. */
  through: number | null;
  /** Whether the account has rows left. */
  hasMore: boolean;
  /** The UTC day of its oldest events, if it is not that of the pass. */
  otherDay: string | null;
}

export interface FanOutPass {
  /** The UTC day of the events. */
  day: string;
  additions: LaneAddition[];
  /** Positions of the processed events, including those without subscribers. */
  events: number[];
  /** Outbox rows that the pass took events from. */
  rows: number;
  visited: VisitedAccount[];
  /** Heavy accounts that the pass took events of, and those that it skipped. */
  heavy: HeavyAccount[];
  skipped: HeavyAccount[];
  /** Deliveries that were set aside because their lane is locked. */
  deferred: number;
  /** Without `visits`: all accounts with new rows, and the snapshot that sees these rows. */
  found: Found | null;
}

export interface FanOutOptions {
  /** Selects a row while this node is the leader (database/lease.ts). */
  held?: RawBuilder<unknown>;
  /** Sets deliveries aside if another session has locked their lane, in place of waiting for it. */
  skipsLocked?: boolean;
  /** The pass takes this part of one event. */
  slice?: Slice | null;
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

interface PassRow extends Partial<FoundRow> {
  is_leader: boolean;
  /** The number of visited accounts: the first ones of those to visit. */
  visited: number;
  /** Accounts with more events, each with the last row of which all are taken. */
  unfinished: string | null;
  /** Accounts with events of another day first, each with that day. */
  other_days: string | null;
  /** Accounts, each with what one of its events may become. */
  skipped: string | null;
  heavy: string | null;
  rows: number;
  events: string | null;
  deferred: number;
  /** One entry per lane. */
  lanes: string | null;
  firsts: string | null;
  /** The positions of each lane's events. */
  positions: string | null;
}

/**
 * Runs one pass. It is one statement and thus one transaction, so locks are never held while this process is busy.
 * `markDue` then decides who sends.
 * @throws LeaseLostError if this node is not the leader; then nothing changes
 */
export async function fanOut(
  db: Database,
  kinds: KindArrays,
  range: PassRange,
  { held = sql`select`, skipsLocked = false, slice = null }: FanOutOptions = {},
): Promise<FanOutPass> {
  const { day, visits } = range;
  const isInSlice = (lane: RawBuilder<unknown>) =>
    slice === null
      ? sql`true`
      : sql`${lane} > ${slice.after}::bigint and ${lane} <= coalesce(${slice.upTo}::bigint, 9223372036854775807)`;
  const isFinished = slice === null || slice.upTo === null;
  const { rows } = await sql<PassRow>`
    with recursive catalogue as materialized (
      select name, case when object is not null then array['read:' || object] end as scopes,
        string_to_array(patterns, ' ') as patterns
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    leadership as materialized (${held}),
    ${chooseFromOutbox(range, sql`exists (select from leadership)`, slice)},
    pair as materialized (
      select account_id, kind, array_agg(event.position) as positions, array_agg(created_at) as times
      from (select unnest(positions) as position from chosen where lanes is null) as given
      -- One by one: of an array, PostgreSQL before 17 read the whole day, with a plan from when its partition was empty.
      cross join lateral (
        select account_id, kind, position, created_at from events where day = ${day}::date and position = given.position offset 0
      ) as event
      where account_id is not null
      group by account_id, kind
    ),
    matched as materialized (
      select lane, position, digest
      from (
        select found.lane, found.filter_digest as digest, found.created_at as since, found.created_position as after,
          unnest(pair.positions) as position, unnest(pair.times) as time
        from pair
        join catalogue on catalogue.name = pair.kind
        cross join lateral (
          select s.lane, s.created_at, s.created_position, s.filter_digest
          from subscriptions s
          where s.account_id = pair.account_id and s.state <> 'ended' and s.kinds && catalogue.patterns
            and ${isInSlice(sql`s.lane`)}
            and (s.owner = 'user' or exists (
              select from grants g
              where g.id = s.grant_id and g.withdrawn_at is null
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes) offset 0))
            -- Subscriptions of deleted accounts and clients have ended already.
            and not exists (
              select from clients c where c.id = s.client_id and c.is_stopped offset 0)
          union all
          select s.lane, s.created_at, s.created_position, s.filter_digest
          from ${actingApps(sql`pair.account_id`, sql`(catalogue.scopes is null or g.scopes @> catalogue.scopes)`)} as app
          cross join lateral (
            select lane, created_at, created_position, filter_digest from subscriptions
            where client_id = app.client_id and owner = 'client' and state <> 'ended' and kinds && catalogue.patterns
              and ${isInSlice(sql`lane`)}
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
      select s.lane, event.position, null
      from (select unnest(positions) as position, lanes from chosen where lanes is not null) as given
      cross join lateral (
        select position from events where day = ${day}::date and position = given.position offset 0
      ) as event
      cross join lateral unnest(given.lanes) as target (lane)
      cross join lateral (
        select lane from subscriptions where lane = target.lane and state <> 'ended' offset 0
      ) as s
      where ${isInSlice(sql`target.lane`)}
    ),
    ${filterEvents(day)},
    grouped as materialized (
      select lane, count(*) as count, array_agg(position order by position) as positions from matched
      where digest is null or (position, digest) in (select position, digest from passed)
      group by lane
    ),
    ${numberDeliveries(day, skipsLocked ? hasNoneDeferred : null)},
    added as (
      insert into deliveries (day, lane, sequence, event)
      select ${day}::date, lane, generate_series(first, first + count - 1), unnest(positions)
      from numbered
    ),
    ${skipsLocked ? sql`${setAsideLocked(day)},` : sql``}
    ${isFinished ? takeEvents : advanceSlice(slice)}
    select exists (select from leadership) as is_leader,
      (select count(turn) from walk)::int as visited,
      (select string_agg(turn || ' ' || case when take = size then id else id - 1 end, ',') from chosen where has_more) as unfinished,
      (select string_agg(turn || ' ' || day, ',') from walk where day <> ${day}::date and not is_skipped) as other_days,
      (select string_agg(turn || ' ' || candidates, ',') from walk where is_skipped) as skipped,
      (select string_agg(turn || ' ' || candidates, ',') from walk
        where candidates >= ${sql.lit(heavyDeliveriesMin)} and not is_skipped) as heavy,
      (select count(*) from chosen)::int as rows,
      (select string_agg(array_to_string(positions, ','), ',') from chosen) as events,
      ${skipsLocked ? sql`(select count(*)::int from deferred)` : sql`0`} as deferred,
      ${visits === null ? sql`${foundColumns},` : sql``}
      array_to_string(array_agg(lane), ',') as lanes, array_to_string(array_agg(first), ',') as firsts,
      string_agg(array_to_string(positions, ','), ';') as positions
    from numbered`.execute(db);
  const row = rows[0] as PassRow;
  if (!row.is_leader) throw new LeaseLostError();
  return toPass(row, range);
}

/**
 * Common table expressions: `passed`, the events that meet a filter, by its digest. Each body is read once for all filters, and each
 * filter is evaluated once for an event, however many subscriptions have it.
 */
function filterEvents(day: string) {
  return sql`
    filtered as materialized (
      select position, array_agg(lane) as lanes
      from (
        select position, digest, min(lane) as lane from matched where digest is not null group by position, digest
      ) as each
      group by position
    ),
    passed as materialized (
      select filtered.position, filter.digest
      from filtered
      cross join lateral (
        select body_as_json(body) as body from events where day = ${day}::date and position = filtered.position offset 0
      ) as event
      cross join lateral unnest(filtered.lanes) as given (lane)
      cross join lateral (
        select filter_digest as digest, filter_path as path from subscriptions where lane = given.lane offset 0
      ) as filter
      where jsonb_path_match(event.body, filter.path, '{}', true)
    )`;
}

/** Common table expressions that remove what the pass has taken from the outbox. */
const takeEvents = sql`
    -- By row position: a join could read the whole outbox.
    taken as (
      delete from outbox where ctid = any(array(select place from chosen where take = size))
    ),
    shortened as (
      update outbox set through_lane = 0, positions = positions[1 + (
        (select jsonb_object_agg(id, take) from chosen where take < size) ->> id::text
      )::int:]
      where ctid = any(array(select place from chosen where take < size))
    )`;

/** The event has further lanes. */
function advanceSlice(slice: Slice) {
  return sql`
    advanced as (
      update outbox set through_lane = ${slice.upTo}::bigint where ctid = any(array(select place from chosen))
    )`;
}

/** A condition on `grouped`. What is new comes after what was set aside. */
const hasNoneDeferred = sql`
  not exists (select from deferred_deliveries d where d.lane = grouped.lane offset 0)`;

/**
 * Common table expression `deferred`: sets deliveries aside that are not numbered, because another session has locked their lane or
 * others of the lane were set aside earlier.
 */
function setAsideLocked(day: string) {
  return sql`
    deferred as (
      insert into deferred_deliveries (lane, position, day)
      select lane, unnest(positions), ${day}::date from grouped where lane not in (select lane from numbered)
      returning 1
    )`;
}

function toPass(row: PassRow, { day, visits }: PassRange): FanOutPass {
  const found = row.snapshot === undefined ? null : readFound(row as FoundRow);
  const unfinished = new Map(readPairs(row.unfinished));
  const otherDays = new Map(readPairs(row.other_days));
  const skipped = readHeavy(row.skipped);
  const left = new Set(skipped.map(({ account }) => account));
  return {
    day,
    additions: toAdditions(row, day),
    events: row.events?.split(',').map(Number) ?? [],
    rows: row.rows,
    visited: (visits ?? found?.accounts ?? []).slice(0, row.visited).map(({ account }) => ({
      account,
      through: Number(unfinished.get(account) ?? 0) || null,
      hasMore: unfinished.has(account) || otherDays.has(account) || left.has(account),
      otherDay: otherDays.get(account) ?? null,
    })),
    heavy: readHeavy(row.heavy),
    skipped,
    deferred: row.deferred,
    found,
  };
}

function readPairs(text: string | null): [string, string][] {
  return (text?.split(',') ?? []).map((pair) => pair.split(' ') as [string, string]);
}

function readHeavy(text: string | null): HeavyAccount[] {
  return readPairs(text).map(([account, deliveries]) => ({ account, deliveries: Number(deliveries) }));
}

function toAdditions({ lanes, firsts, positions }: PassRow, day: string): LaneAddition[] {
  const first = firsts?.split(',');
  const eventsOf = positions?.split(';');
  return (lanes?.split(',') ?? []).map((lane, index) => ({
    lane: Number(lane),
    owner: null,
    tenant: null,
    first: Number(first?.[index]),
    day,
    events: eventsOf?.[index]?.split(',').map(Number) ?? [],
  }));
}
