/**
 * Fan-out: events become deliveries. One set-based statement finds, for up to some thousand events, every subscription
 * whose owner may read them at this moment, numbers the deliveries in each lane without a gap, and writes them; a
 * second one makes the lanes due that no node holds. One node at a time fans out, so that a lane's sequence follows
 * the order of the events. The statement joins what it made itself by arrays, never by keys: the planner takes all of
 * that for a handful of rows, and would compare every one with every other. What `exists` asks is kept a look-up by key with
 * `offset 0`: the planner would hash all that there is, anew for each account. Writes `deliveries`, `lanes.next_sequence`, and takes from `outbox`.
 *
 *   events committed → in the outbox → (one statement) → deliveries → lanes marked → handed to the worker or read by it
 */

import { sql } from 'kysely';
import { bigintArray, textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { Catalogue } from '../../events/catalogue.ts';
import { type AppSubscriptions, mayHaveOwn } from '../subscriptions/app_subscriptions.ts';

/** Rows of the outbox and events of one pass at most, and deliveries (one event for more subscriptions than that is still one pass). */
const passRowsMax = 500;
const passEventsMax = 2_000;
const passDeliveriesMax = 20_000;

/** What a pass added to one lane: deliveries `first` … `first + events.length - 1`. */
export interface LaneAddition {
  lane: number;
  /** Who holds the lane after the pass; null for nobody. */
  owner: string | null;
  first: number;
  day: string;
  /** Positions of the events, in the order of the sequence. */
  events: number[];
}

export interface FanOutPass {
  additions: LaneAddition[];
  /** Positions of the events that it dealt with, those that nobody gets included. */
  events: number[];
  /** Day of what is in the outbox: where it is not the one that was asked for, nothing was done. Null for empty. */
  day: string | null;
}

/** The catalogue in the form that the statements take. */
export interface KindArrays {
  names: Buffer;
  objects: Buffer;
  patterns: Buffer;
  /** Which apps get events by subscriptions of their own. */
  appSubscriptions: AppSubscriptions;
}

export function kindArrays(catalogue: Catalogue, appSubscriptions: AppSubscriptions = 'all'): KindArrays {
  const kinds = [...catalogue.kinds.values()];
  return {
    names: textArray(kinds.map(({ name }) => name)),
    objects: textArray(kinds.map(({ object }) => object)),
    // An array of arrays would have to be rectangular.
    patterns: textArray(kinds.map(({ patterns }) => patterns.join(' '))),
    appSubscriptions,
  };
}

interface PassRow {
  day: string | null;
  events: string | null;
  /** Of each lane that got something. */
  lanes: string | null;
  firsts: string | null;
  /** Of each lane: positions of its events. */
  positions: string | null;
}

/**
 * One pass, in one statement: it is a transaction by itself, and nobody waits for this process while it has rows
 * locked. Who is to send is marked after it, by `markDue`.
 * @param db a connection that holds the fan-out's lock
 * @param asked the day (UTC) whose events are taken: one that is known beforehand spares the look into every day's
 */
export async function fanOut(db: Database, kinds: KindArrays, asked: string): Promise<FanOutPass> {
  const { rows } = await sql<PassRow>`
    with recursive given as (
      -- Row by row, as far as the pass goes: a row may hold a thousand events, and those after them would be read in
      -- vain.
      (select id, day, positions, lanes, 1 as rows, cardinality(positions) as events from outbox order by id limit 1)
      union all
      select next.id, next.day, next.positions, next.lanes, given.rows + 1, given.events + cardinality(next.positions)
      from given
      cross join lateral (
        select id, day, positions, lanes from outbox where id > given.id order by id limit 1
      ) as next
      where given.rows < ${passRowsMax}::int and given.day = ${asked}::date and next.day = ${asked}::date
        and given.events + cardinality(next.positions) <= ${passEventsMax}::int
    ),
    event as materialized (
      select e.position, given.lanes, e.account_id, e.kind, e.created_at
      from given
      cross join lateral (
        select position, account_id, kind, created_at from events
        where day = ${asked}::date and position = any(given.positions) offset 0
      ) as e
      where given.day = ${asked}::date
    ),
    catalogue as materialized (
      select name, case when object is not null then array['read:' || object] end as scopes,
        string_to_array(patterns, ' ') as patterns
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    -- Clients with subscriptions of their own are few, and mostly there is none: nothing is looked up for them then.
    subscriber as materialized (
      select c.id
      from (select distinct client_id from subscriptions where owner = 'client' and state <> 'ended') as s
      join clients c on c.id = s.client_id
      where ${mayHaveOwn(kinds.appSubscriptions)}
    ),
    pair as materialized (
      select account_id, kind, array_agg(position) as positions, array_agg(created_at) as times
      from event where lanes is null and account_id is not null
      group by account_id, kind
    ),
    matched as materialized (
      select lane, position
      from (
        select found.lane, found.created_at as since, unnest(pair.positions) as position, unnest(pair.times) as time
        from pair
        join catalogue on catalogue.name = pair.kind
        cross join lateral (
          select s.lane, s.created_at
          from subscriptions s
          where s.account_id = pair.account_id and s.state <> 'ended' and s.kinds && catalogue.patterns
            and (s.owner = 'user' or exists (
              select from grants g
              where g.id = s.grant_id and g.withdrawn_at is null
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes) offset 0))
            -- With an account or a client that is deleted its subscriptions end.
            and not exists (
              select from clients c where c.id = s.client_id and c.is_stopped offset 0)
          union all
          select s.lane, s.created_at
          from subscriptions s
          where exists (select from subscriber)
            and s.owner = 'client' and s.state <> 'ended' and s.kinds && catalogue.patterns
            and s.client_id in (
              select g.client_id from grants g
              where g.account_id = pair.account_id and g.withdrawn_at is null
                and g.client_id in (select id from subscriber)
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes))
          offset 0
        ) as found
        where not exists (
          select from accounts a where a.id = pair.account_id and a.disabled_at is not null offset 0)
      ) as each
      -- Who subscribed after the event does not get it; the second is for transactions that overlapped.
      where since <= time + interval '1 second'
      union all
      select s.lane, event.position
      from event
      cross join lateral unnest(event.lanes) as target (lane)
      cross join lateral (
        select lane from subscriptions where lane = target.lane and state <> 'ended' offset 0
      ) as s
      where event.lanes is not null
    ),
    bound as materialized (
      -- The last event of the pass; at least the first, however many get it.
      select case when (select count(*) from matched) <= ${passDeliveriesMax}::int then (select max(position) from event)
        else (
          select greatest(max(position) filter (where total <= ${passDeliveriesMax}::int), min(position)) from (
            select position, sum(count(*)) over (order by position) as total from matched group by position
          ) as counted
        ) end as position
    ),
    grouped as materialized (
      select lane, count(*) as count, array_agg(position order by position) as positions
      from matched where position <= (select position from bound)
      group by lane
    ),
    head as (
      update lanes set next_sequence = lanes.next_sequence + grouped.count
      from grouped where lanes.id = grouped.lane
      returning lanes.id as lane, lanes.next_sequence - grouped.count as first, grouped.positions, grouped.count
    ),
    added as (
      insert into deliveries (day, lane, sequence, event)
      select ${asked}::date, lane, generate_series(first, first + count - 1), unnest(positions)
      from head
    ),
    taken as (
      delete from outbox using given
      where outbox.id = given.id and given.day = ${asked}::date
        -- All of it; also where its events are no more.
        and coalesce(given.positions[cardinality(given.positions)] <= (select position from bound), true)
    ),
    shortened as (
      update outbox set positions = array(
        select each.position from unnest(outbox.positions) as each (position)
        where each.position > (select position from bound)
      )
      from given
      where outbox.id = given.id
        and given.positions[1] <= (select position from bound)
        and given.positions[cardinality(given.positions)] > (select position from bound)
    )
    select (select day::text from given limit 1) as day,
      (select array_to_string(array_agg(position), ',') from event where position <= (select position from bound)) as events,
      array_to_string(array_agg(lane), ',') as lanes, array_to_string(array_agg(first), ',') as firsts,
      string_agg(array_to_string(positions, ','), ';') as positions
    from head`.execute(db);
  const { day, events, lanes, firsts, positions } = rows[0] as PassRow;
  if (day === null) return { additions: [], events: [], day };
  const first = firsts?.split(',');
  const added = positions?.split(';');
  const additions = (lanes?.split(',') ?? []).map(
    (lane, index): LaneAddition => ({
      lane: Number(lane),
      owner: null,
      first: Number(first?.[index]),
      day,
      events: added?.[index]?.split(',').map(Number) ?? [],
    }),
  );
  return { additions, events: events?.split(',').map(Number) ?? [], day };
}

/**
 * Marks who is to send, in a statement of its own: what was added is committed by now, so no node can let go of a
 * lane for want of work (see `releaseLanes`) without this statement seeing it. Writes the owners into the additions.
 * @param node takes the lanes that nobody holds; null to leave them to others
 */
export async function markDue(db: Database, additions: LaneAddition[], node: string | null): Promise<void> {
  if (additions.length === 0) return;
  const lanes = bigintArray(additions.map(({ lane }) => lane));
  // Told are only those that are not the node's after this: of most lanes there is nothing to tell.
  const { rows } = await sql<{ lane: string; owner: string | null }>`
    with known as materialized (
      select given.lane, progress.owner from unnest(${lanes}::bigint[]) as given (lane)
      cross join lateral (select owner from lane_progress where lane = given.lane offset 0) as progress
    ),
    free as (
      update lane_progress set
        owner = case when paused_until > now() then null else ${node}::bigint end,
        due_at = case when paused_until > now() then paused_until
          when ${node}::bigint is null then least(due_at, now()) end
      from known
      where known.owner is null and lane_progress.lane = known.lane and lane_progress.owner is null
      returning lane_progress.lane, lane_progress.owner
    )
    select lane, owner from known where owner <> ${node}::bigint or (${node}::bigint is null and owner is not null)
    union all
    select lane, owner from free where owner is null
    union all
    -- Somebody took it between the two looks.
    select lane, null from known where owner is null and lane not in (select lane from free)`.execute(db);
  const owners = new Map(rows.map(({ lane, owner }) => [Number(lane), owner]));
  for (const addition of additions) {
    const owner = owners.get(addition.lane);
    addition.owner = owner === undefined ? node : owner;
  }
}
