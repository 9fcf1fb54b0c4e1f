/**
 * Deliveries of a lane are numbered without gaps. There are two ways to know the next number:
 *
 *   counted      `lanes.next_sequence`, which each pass changes. `lanes.day` is null.
 *   by the newest   a pass leaves the lane's row as it is. The number follows from the newest delivery of `lanes.day`, the only day
 *                   whose deliveries may have numbers from `next_sequence` on.
 *
 * Counting is faster, until a snapshot stays open, such as that of a dump: PostgreSQL then keeps every version of the lanes' rows, and each
 * look-up passes over all of them. So fan-out counts while there are few dead versions. `newest_sequence(lane)` (migration 0027)
 * is right in both cases. Everybody else who adds deliveries (a test, a replay, what was set aside) changes `next_sequence`; a
 * trigger makes them begin after the newest delivery.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';

/** Fan-out counts in `lanes` up to this many dead versions of rows, and up to so many for each row. PostgreSQL usually removes them sooner. */
const deadVersionsMax = { all: 2_000, ofEach: 4 };
/** Nodes of this generation and later find the newest delivery (lanes/node.ts). */
const numberingGeneration = 2;
/** Maximum lanes of one statement. */
const settledMax = 1_000;

/**
 * Common table expressions that number what a pass adds to lanes.
 *
 * - `numbered`: what of `grouped` (lane, count, positions) can be added, with its `first` number. It locks the lanes' rows. The values
 *   of a row are those of its newest version, so numbers that others committed after the statement began are known.
 * - `counted`: changes the rows, if the pass counts.
 * @param isFree a condition on `grouped`, for lanes that may be added to. Lanes that another session has locked are left out; without
 *   the condition the pass waits for them.
 */
export function numberDeliveries(day: string, isFree: RawBuilder<unknown> | null): RawBuilder<unknown> {
  return sql`
    numbered as materialized (
      select grouped.lane, grouped.count, grouped.positions, (locked.tail).day,
        case when (locked.tail).day is null then (locked.tail).next_sequence else newest_sequence(locked.tail) + 1 end as first
      from grouped
      cross join lateral (
        select lanes as tail from lanes where id = grouped.lane for no key update ${isFree === null ? sql`` : sql`skip locked`}
      ) as locked
      ${isFree === null ? sql`` : sql`where ${isFree}`}
    ),
    -- The day in which numbers follow from the newest delivery; null to count.
    numbering as materialized (
      select case
        when pg_stat_get_dead_tuples('lanes'::regclass)
          > ${sql.lit(deadVersionsMax.all)} + ${sql.lit(deadVersionsMax.ofEach)} * pg_stat_get_live_tuples('lanes'::regclass)
        -- Such nodes know only next_sequence.
        and not exists (select from nodes where generation < ${sql.lit(numberingGeneration)})
        then ${day}::date end as day
    ),
    counted as (
      update lanes set next_sequence = numbered.first + numbered.count, day = numbering.day
      from numbered cross join numbering
      where lanes.id = numbered.lane and (numbering.day is null or numbered.day is distinct from numbering.day)
    )`;
}

/**
 * Sets `next_sequence` of all lanes that end with deliveries of an earlier day. It passes over locked lanes.
 * @param today such as `2026-01-31`
 */
export async function settleLanes(db: Database, today: string): Promise<void> {
  let after: string | null = '0';
  while (after !== null) {
    const { rows } = await sql<{ last: string | null; count: number }>`
      with slice as materialized (
        select id from lanes where id > ${after}::bigint and day < ${today}::date
        order by id limit ${settledMax}::int for no key update skip locked
      ),
      settled as (
        -- Now: a pass may have added to the lane since this statement began, and leaves no other mark in its row.
        update lanes set next_sequence = newest_sequence_now(lanes.id) + 1, day = null from slice where lanes.id = slice.id
      )
      select max(id) as last, count(*)::int as count from slice`.execute(db);
    const { last, count } = rows[0] as (typeof rows)[number];
    after = count < settledMax ? null : last;
  }
}

/** Whether the numbers of all lanes are known without the deliveries of a day. Otherwise they would be given again after its end. */
export async function isSettled(db: Database, day: string): Promise<boolean> {
  const { rows } = await sql<{ is_settled: boolean }>`
    select not exists (select from lanes where day = ${day}::date) as is_settled`.execute(db);
  return rows[0]?.is_settled === true;
}
