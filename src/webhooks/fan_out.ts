/**
 * Fan-out: events become deliveries. One set-based statement finds, for up to some hundred events, every subscription
 * whose owner may read them at this moment, numbers the deliveries in each lane without a gap, and writes them; a
 * second one makes the lanes due that no node holds. One node at a time fans out, so that a lane's sequence follows
 * the order of the events. The statement joins what it made itself by arrays, never by keys: the planner takes all of
 * that for a handful of rows, and would compare every one with every other. Writes `deliveries`, `lanes.next_sequence`, and takes from `outbox`.
 *
 *   events committed → in the outbox → (this transaction) → deliveries, lanes due → handed to the worker or read by it
 */

import { sql } from 'kysely';
import { bigintArray, textArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Catalogue } from '../events/catalogue.ts';

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
  /** Whether there was nothing (more) in the outbox. */
  isEmpty: boolean;
}

interface OutboxRow {
  id: string;
  day: string;
  positions: string;
  lanes: string | null;
}

/** The catalogue in the form that the statements take. */
export interface KindArrays {
  names: Buffer;
  objects: Buffer;
  patterns: Buffer;
}

export function kindArrays(catalogue: Catalogue): KindArrays {
  const kinds = [...catalogue.kinds.values()];
  return {
    names: textArray(kinds.map(({ name }) => name)),
    objects: textArray(kinds.map(({ object }) => object)),
    // An array of arrays would have to be rectangular.
    patterns: textArray(kinds.map(({ patterns }) => patterns.join(' '))),
  };
}

/**
 * One pass.
 * @param db a connection that holds the fan-out's lock
 * @param node takes the lanes that nobody holds; null to leave them to others
 */
export async function fanOut(db: Database, kinds: KindArrays, node: string | null): Promise<FanOutPass> {
  return db.transaction().execute(async (tx) => {
    const batch = await readOutbox(tx);
    if (batch.rows.length === 0) return { additions: [], events: [], isEmpty: true };
    const { additions, taken } = await addDeliveries(tx, batch, kinds);
    await takeFromOutbox(tx, batch, taken);
    await makeDue(tx, additions, node);
    return { additions, events: batch.positions.slice(0, taken), isEmpty: false };
  });
}

interface Batch {
  rows: { id: string; length: number }[];
  day: string;
  positions: number[];
  /** For each position the lanes that alone may get it, joined by a blank, or null. */
  targets: (string | null)[];
}

async function readOutbox(tx: Transaction): Promise<Batch> {
  // Row by row, as far as the pass goes: a row may hold a thousand events, and those after them would be read in vain.
  const { rows } = await sql<OutboxRow>`
    with recursive first as (
      (select id, day, positions, lanes, 1 as rows, cardinality(positions) as events from outbox order by id limit 1)
      union all
      select next.id, next.day, next.positions, next.lanes, first.rows + 1, first.events + cardinality(next.positions)
      from first
      cross join lateral (
        select id, day, positions, lanes from outbox where id > first.id order by id limit 1
      ) as next
      where first.rows < ${passRowsMax}::int and first.events < ${passEventsMax}::int
    )
    select id, day::text, array_to_string(positions, ',') as positions, array_to_string(lanes, ' ') as lanes
    from first order by id`.execute(tx);
  const batch: Batch = { rows: [], day: rows[0]?.day ?? '', positions: [], targets: [] };
  for (const row of rows) {
    // A pass is of one day: its deliveries are of one partition.
    if (row.day !== batch.day) break;
    const positions = row.positions.split(',').map(Number);
    if (batch.positions.length > 0 && batch.positions.length + positions.length > passEventsMax) break;
    batch.rows.push({ id: row.id, length: positions.length });
    for (const position of positions) {
      batch.positions.push(position);
      batch.targets.push(row.lanes);
    }
  }
  return batch;
}

interface AdditionRow {
  lane: string | null;
  first: string;
  events: string;
  taken: string;
}

/** @returns also how many of the batch's events were dealt with: those that fit into the pass */
async function addDeliveries(
  tx: Transaction,
  batch: Batch,
  kinds: KindArrays,
): Promise<{ additions: LaneAddition[]; taken: number }> {
  const { rows } = await sql<AdditionRow>`
    with event as materialized (
      select given.ordinal, given.position, given.lanes, e.account_id, e.kind, e.created_at
      from unnest(${bigintArray(batch.positions)}::bigint[], ${textArray(batch.targets)}::text[])
        with ordinality as given (position, lanes, ordinal)
      cross join lateral (
        select account_id, kind, created_at from events
        where day = ${batch.day}::date and position = given.position offset 0
      ) as e
    ),
    catalogue as materialized (
      select name, case when object is not null then array['read:' || object] end as scopes,
        string_to_array(patterns, ' ') as patterns
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    pair as materialized (
      select account_id, kind, array_agg(ordinal) as ordinals, array_agg(position) as positions,
        array_agg(created_at) as times
      from event where lanes is null and account_id is not null
      group by account_id, kind
    ),
    matched as materialized (
      select each.ordinal, each.position, found.lane
      from pair
      join catalogue on catalogue.name = pair.kind
      cross join lateral (
        select lane, created_at from (
          select s.lane, s.created_at
          from subscriptions s
          where s.account_id = pair.account_id and s.state <> 'ended' and s.kinds && catalogue.patterns
            and (s.owner = 'user' or exists (
              select from grants g
              where g.id = s.grant_id and g.withdrawn_at is null
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes)))
            and (s.client_id is null
              or exists (select from clients c where c.id = s.client_id and c.disabled_at is null))
          union all
          select s.lane, s.created_at
          from subscriptions s
          where s.owner = 'client' and s.state <> 'ended' and s.kinds && catalogue.patterns
            and s.client_id in (
              select g.client_id from grants g join clients c on c.id = g.client_id
              where g.account_id = pair.account_id and g.withdrawn_at is null
                and (catalogue.scopes is null or g.scopes @> catalogue.scopes)
                and c.may_subscribe and c.disabled_at is null)
        ) as s
        where exists (select from accounts a where a.id = pair.account_id and a.disabled_at is null)
        offset 0
      ) as found
      cross join lateral unnest(pair.ordinals, pair.positions, pair.times) as each (ordinal, position, created_at)
      -- Who subscribed after the event does not get it; the second is for transactions that overlapped.
      where found.created_at <= each.created_at + interval '1 second'
      union all
      select event.ordinal, event.position, s.lane
      from event
      cross join lateral unnest(string_to_array(event.lanes, ' ')::bigint[]) as target (lane)
      cross join lateral (
        select lane from subscriptions where lane = target.lane and state <> 'ended' offset 0
      ) as s
      where event.lanes is not null
    ),
    counted as (
      select ordinal, sum(count(*)) over (order by ordinal) as total from matched group by ordinal
    ),
    bound as materialized (
      select coalesce(
        (select case when min(ordinal) is not null then greatest(min(ordinal) - 1, 1) end
          from counted where total > ${passDeliveriesMax}::int),
        ${batch.positions.length}::int) as ordinal
    ),
    grouped as materialized (
      select lane, count(*) as count, array_agg(position order by ordinal) as positions
      from matched where ordinal <= (select ordinal from bound)
      group by lane
    ),
    head as (
      update lanes set next_sequence = lanes.next_sequence + grouped.count
      from grouped where lanes.id = grouped.lane
      returning lanes.id as lane, lanes.next_sequence - grouped.count as first, grouped.positions
    ),
    added as (
      insert into deliveries (day, lane, sequence, event)
      select ${batch.day}::date, head.lane, head.first + each.number - 1, each.position
      from head cross join lateral unnest(head.positions) with ordinality as each (position, number)
    )
    select head.lane, head.first, array_to_string(head.positions, ',') as events, bound.ordinal as taken
    from bound left join head on true`.execute(tx);
  const additions = rows.flatMap((row): LaneAddition[] => {
    if (row.lane === null) return [];
    const events = row.events.split(',').map(Number);
    return [{ lane: Number(row.lane), owner: null, first: Number(row.first), day: batch.day, events }];
  });
  return { additions, taken: Number(rows[0]?.taken ?? 0) };
}

async function takeFromOutbox(tx: Transaction, batch: Batch, taken: number): Promise<void> {
  const done: string[] = [];
  let left = taken;
  for (const { id, length } of batch.rows) {
    if (left >= length) {
      done.push(id);
      left -= length;
      continue;
    }
    if (left > 0)
      await sql`update outbox set positions = positions[${left + 1}::int:] where id = ${id}`.execute(tx);
    break;
  }
  await sql`delete from outbox where id = any(${done}::bigint[])`.execute(tx);
}

/**
 * Marks who is to send, in a statement of its own: the lanes' heads are locked by now, so no node can let go of a
 * lane for want of work (see `releaseLanes`) without this statement seeing it.
 */
async function makeDue(tx: Transaction, additions: LaneAddition[], node: string | null): Promise<void> {
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
    select lane, null from known where owner is null and lane not in (select lane from free)`.execute(tx);
  const owners = new Map(rows.map(({ lane, owner }) => [Number(lane), owner]));
  for (const addition of additions) {
    const owner = owners.get(addition.lane);
    addition.owner = owner === undefined ? node : owner;
  }
}
