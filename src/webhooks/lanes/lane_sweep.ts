/** Sweeps of all lanes, which find what no notification and no response of the database told. Writes `lane_progress`. */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';

/** What a sweep of a slice of all lanes found. */
export interface Sweep {
  /** The last lane of the slice; null if it was the last slice. */
  last: number | null;
  /** Lanes that name this node. */
  held: number[];
  /** Lanes that were released or made due. */
  repaired: number;
}

/**
 * Sweeps the lanes of live subscriptions after `after`, in order of their ids. Releases lanes of nodes that no longer exist: a node can claim a lane
 * after its removal. Makes lanes due that have deliveries but neither a lease nor a due time. Passes over lanes that another session has locked.
 * @param limit maximum lanes
 */
export async function sweepLanes(db: Database, node: string, after: number, limit: number): Promise<Sweep> {
  const { rows } = await sql<{ last: string | null; count: number; held: string; repaired: number }>`
    with slice as materialized (
      select s.lane, s.state, p.owner, p.due_at, p.cursor, p.is_pulled
      from (
        select lane, state from subscriptions
        where lane > ${after}::bigint and state <> 'ended' order by lane limit ${limit}::int
      ) as s
      cross join lateral (select owner, due_at, cursor, is_pulled from lane_progress where lane = s.lane offset 0) as p
    ),
    orphan as (
      update lane_progress set owner = null, due_at = greatest(now(), coalesce(lane_progress.paused_until, now()))
      from (
        select free.lane
        from (
          select lane, owner from slice
          where owner is not null and not exists (select from nodes n where n.id = slice.owner offset 0) offset 0
        ) as dead
        cross join lateral (
          select lane from lane_progress where lane = dead.lane and owner = dead.owner for no key update skip locked
        ) as free
      ) as orphaned
      where lane_progress.lane = orphaned.lane
      returning 1 as repaired
    ),
    forgotten as materialized (
      select slice.lane from slice
      cross join lateral (select newest_sequence(lanes) as newest from lanes where id = slice.lane offset 0) as head
      where slice.owner is null and slice.due_at is null and slice.state = 'active' and not slice.is_pulled
        and (head.newest > slice.cursor
          or exists (select from retries r where r.lane = slice.lane and r.due_at is not null offset 0))
    ),
    woken as (
      update lane_progress set due_at = now()
      from (
        select free.lane from forgotten
        cross join lateral (
          select lane from lane_progress
          where lane = forgotten.lane and owner is null and due_at is null for no key update skip locked
        ) as free
      ) as waiting
      where lane_progress.lane = waiting.lane
      returning 1 as repaired
    )
    select (select max(lane) from slice) as last, (select count(*)::int from slice) as count,
      (select coalesce(string_agg(lane::text, ','), '') from slice where owner = ${node}::bigint) as held,
      (select count(*)::int from orphan) + (select count(*)::int from woken) as repaired`.execute(db);
  const { last, count, held, repaired } = rows[0] as (typeof rows)[number];
  return {
    last: count < limit ? null : Number(last),
    held: held === '' ? [] : held.split(',').map(Number),
    repaired,
  };
}
