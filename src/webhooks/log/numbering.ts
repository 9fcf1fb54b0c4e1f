/**
 * Deliveries of a lane are numbered without gaps. The newest delivery has the last number, so fan-out only adds deliveries:
 * it locks the lane's row in `lanes` and leaves it as it is. A row that changed with each event would leave a dead version each
 * time, and while a snapshot stays open, such as that of a dump, every look-up of the row passes over all of them.
 *
 *   number of a new delivery = newest_sequence(lane) + 1 = greatest(next_sequence, last of the lane's `day` + 1)
 *
 * Only deliveries of `lanes.day` may have numbers from `next_sequence` on. So the first event of another day, and everybody else
 * who adds deliveries (a test, a replay, what was set aside), changes `next_sequence`; a trigger makes them begin after the newest
 * delivery. When a day is over, `next_sequence` is set for the lanes that ended with it (`settleLanes`), so that the day can be dropped.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';

/** Nodes of this generation and later find the newest delivery (lanes/node.ts). */
const numberingGeneration = 2;
/** Maximum lanes of one statement. */
const settledMax = 1_000;

/**
 * A query that locks a lane's row and returns the number of its next delivery as `first`, with the lane's `day`. The row's values
 * are those of the newest version, so numbers that others committed after the statement began are known.
 * @param lane an SQL expression
 */
export function lockTail(lane: RawBuilder<unknown>, skipsLocked: boolean): RawBuilder<unknown> {
  return sql`
    select newest_sequence(lanes) + 1 as first, day from lanes
    where id = ${lane} for no key update ${skipsLocked ? sql`skip locked` : sql``}`;
}

/**
 * Common table expressions: `counted` sets `next_sequence` and `day` where `numbered` (lane, first, count, day) has deliveries of another
 * day than the lane's. While a node of an earlier version is a member, it sets all, because such nodes know only `next_sequence`.
 */
export function countDay(day: string): RawBuilder<unknown> {
  return sql`
    counting as materialized (
      select case when not exists (select from nodes where generation < ${sql.lit(numberingGeneration)}) then ${day}::date end as day
    ),
    counted as (
      update lanes set next_sequence = numbered.first + numbered.count, day = counting.day
      from numbered cross join counting
      where lanes.id = numbered.lane and (counting.day is null or numbered.day is distinct from counting.day)
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
        update lanes set next_sequence = newest_sequence(lanes) + 1, day = null from slice where lanes.id = slice.id
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
