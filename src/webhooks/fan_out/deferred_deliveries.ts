/**
 * Deferred deliveries: fan-out sets the deliveries of a lane aside while another session has locked the lane's row, so that no
 * other lane waits for that session. Owns the table `deferred_deliveries`; fan_out.ts adds to it.
 *
 *   lane locked → set aside → (unlocked, a step) → deliveries, in the order of their events
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { isOfContent } from './pass_size.ts';

/** Maximum lanes of a step, and deliveries of one of them. */
const lanesMax = 200;
const deliveriesMax = 100;
/** After a failed step, the next one has a quarter of its lanes; after a successful one, twice as many. */
const cutFactor = 4;
/** Milliseconds between steps. */
export const deferredPauseMs = 100;

/** What the leader knows of lanes with deferred deliveries. */
export class DeferredLanes {
  /** Whether there may be any. */
  isAny = false;
  #after = 0;
  #max = lanesMax;
  #notBefore = Number.NEGATIVE_INFINITY;

  async begin(db: Database): Promise<void> {
    const { rows } = await sql<{ any: boolean }>`
      select exists (select from deferred_deliveries) as any`.execute(db);
    this.isAny = rows[0]?.any === true;
  }

  /** Milliseconds until the next step; infinity if nothing is set aside. */
  restMs(now: number): number {
    return this.isAny ? Math.max(0, this.#notBefore - now) : Number.POSITIVE_INFINITY;
  }

  /**
   * Takes a step. A lane that fails keeps its deliveries, and the others have their turn.
   * @returns lanes that got deliveries
   */
  async step(db: Database, held: RawBuilder<unknown>, onError: (error: Error) => void): Promise<number[]> {
    this.#notBefore = performance.now() + deferredPauseMs;
    try {
      const { lanes, last, hasMore } = await addDeferred(db, this.#after, this.#max, held);
      this.#after = last;
      this.#max = Math.min(this.#max * 2, lanesMax);
      this.isAny = hasMore;
      return lanes;
    } catch (error) {
      const runEmpty = () => addDeferred(db, Number.MAX_SAFE_INTEGER, 1, held);
      if (!(await isOfContent(error, runEmpty))) throw error;
      onError(new Error('deferred deliveries could not be added', { cause: error }));
      if (this.#max === 1) this.#after = await laneAfter(db, this.#after);
      this.#max = Math.ceil(this.#max / cutFactor);
      return [];
    }
  }
}

interface DeferredStep {
  /** Lanes that got deliveries. */
  lanes: number[];
  /** The last lane that the step looked at; 0 if it was the last one. */
  last: number;
  /** Whether deliveries may still be set aside. */
  hasMore: boolean;
}

/**
 * Adds deferred deliveries to their lanes, as far as these are unlocked. Their owners' rights are checked when they are read.
 * @param after the step looks at lanes after this one @param max maximum lanes
 * @param held selects a row while this node is the leader (database/lease.ts)
 */
async function addDeferred(
  db: Database,
  after: number,
  max: number,
  held: RawBuilder<unknown>,
): Promise<DeferredStep> {
  const { rows } = await sql<{ lanes: string | null; count: number; last: string | null }>`
    with recursive leadership as materialized (${held}),
    lane as (
      (select lane, 1 as number from deferred_deliveries where lane > ${after}::bigint order by lane limit 1)
      union all
      select next.lane, lane.number + 1
      from lane
      cross join lateral (
        select lane from deferred_deliveries d where d.lane > lane.lane order by d.lane limit 1
      ) as next
      where lane.number < ${max}::int
    ),
    free as materialized (
      select lane.lane from lane
      cross join lateral (select from lanes where id = lane.lane for no key update skip locked) as head
      where exists (select from leadership)
    ),
    part as materialized (
      select each.lane, each.position, each.day from free
      cross join lateral (
        select * from deferred_deliveries d where d.lane = free.lane order by position limit ${deliveriesMax}::int
      ) as each
    ),
    gone as (
      delete from deferred_deliveries d using part where d.lane = part.lane and d.position = part.position
    ),
    -- Those of ended subscriptions are dropped.
    grouped as materialized (
      select part.lane, count(*) as count, array_agg(part.position order by part.position) as positions,
        array_agg(part.day order by part.position) as days
      from part join subscriptions s on s.lane = part.lane and s.state <> 'ended'
      group by part.lane
    ),
    head as (
      update lanes set next_sequence = lanes.next_sequence + grouped.count
      from grouped where lanes.id = grouped.lane
      returning lanes.id as lane, lanes.next_sequence - grouped.count as first, grouped.count, grouped.positions, grouped.days
    ),
    added as (
      insert into deliveries (day, lane, sequence, event)
      select unnest(days), lane, generate_series(first, first + count - 1), unnest(positions) from head
    )
    select (select string_agg(lane::text, ',') from grouped) as lanes, (select count(*)::int from lane) as count,
      (select max(lane) from lane) as last`.execute(db);
  const { lanes, count, last } = rows[0] as (typeof rows)[number];
  return {
    lanes: lanes?.split(',').map(Number) ?? [],
    last: count < max ? 0 : Number(last),
    hasMore: count > 0 || after > 0,
  };
}

/** @returns the next lane with deferred deliveries; 0 if there is none */
async function laneAfter(db: Database, after: number): Promise<number> {
  const { rows } = await sql<{ lane: string }>`
    select lane from deferred_deliveries where lane > ${after}::bigint order by lane limit 1`.execute(db);
  return Number(rows[0]?.lane ?? 0);
}
