/**
 * Parked events: events that fan-out cannot process, even alone. They are set aside with the reason, so that other events
 * continue. An operator can retry them until their day's partition is dropped. A retried event follows those that its account
 * has waiting. Owns the table `parked_events`.
 *
 *   outbox → parked → (retried) → outbox
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import type { Snapshot } from './outbox_changes.ts';
import type { Visit } from './outbox_selection.ts';

/** Maximum length of a stored reason in characters. */
const reasonCharactersMax = 500;

/** The event that a pass of a single event takes. */
export interface NextEvent {
  turn: string;
  /** Id of the outbox row. */
  id: string;
  day: string;
  position: string;
}

export interface ParkedEvent {
  position: string;
  /** The event's id; null if the event no longer exists. */
  id: string | null;
  accountId: string | null;
  kind: string | null;
  reason: string;
  parkedAt: Date;
}

/** Finds the oldest event of an account among those that a snapshot sees. @returns undefined if there is none */
export async function findNextEvent(
  db: Database,
  { account, after }: Visit,
  snapshot: Snapshot,
): Promise<NextEvent | undefined> {
  const { rows } = await sql<NextEvent>`
    select turn, id, day::text, positions[1] as position from outbox
    where turn = ${account}::uuid and id > ${after}::bigint
      and pg_visible_in_snapshot(added_by, ${snapshot.text}::pg_snapshot)
    order by id limit 1`.execute(db);
  return rows[0];
}

/**
 * @param held selects a row while this node is the leader (database/lease.ts)
 * @returns whether the event was still in the outbox, and this node is the leader
 */
export async function parkEvent(
  db: Database,
  { id, turn, position }: NextEvent,
  reason: string,
  held: RawBuilder<unknown>,
): Promise<boolean> {
  const { rows } = await sql`
    with leadership as materialized (${held}),
    waiting as materialized (
      select ctid as place, day, turn, lanes, positions[1] as position, size from outbox
      where turn = ${turn}::uuid and id = ${id}::bigint and positions[1] = ${position}::bigint
        and exists (select from leadership)
    ),
    taken as (
      delete from outbox where ctid = any(array(select place from waiting where size = 1))
    ),
    shortened as (
      update outbox set through_lane = 0, positions = positions[2:] where ctid = any(array(select place from waiting where size > 1))
    )
    insert into parked_events (position, day, turn, lanes, reason)
    select position, day, turn, lanes, ${reason.slice(0, reasonCharactersMax)} from waiting
    on conflict (position) do update set reason = excluded.reason, parked_at = now()
    returning position`.execute(db);
  return rows.length > 0;
}

/**
 * Oldest first.
 * @param after the position that the list continues after; null for the beginning
 */
export async function listParkedEvents(
  db: Database,
  limit: number,
  after: string | null = null,
): Promise<ParkedEvent[]> {
  const { rows } = await sql<ParkedEvent>`
    select p.position, e.id, e.account_id as "accountId", e.kind, p.reason, p.parked_at as "parkedAt"
    from (
      select * from parked_events where position > coalesce(${after}::bigint, 0) order by position limit ${limit}
    ) as p
    left join events e on e.day = p.day and e.position = p.position
    order by p.position`.execute(db);
  return rows;
}

/** Whether a text is a position: a bigint that PostgreSQL accepts. */
export function isPosition(text: string): boolean {
  return /^[1-9]\d{0,17}$/.test(text);
}

/**
 * Puts parked events back into the outbox.
 * @param position of one event; null for all
 * @returns the number of events
 */
export async function retryParkedEvents(
  db: Database | Transaction,
  position: string | null,
): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    with taken as (
      delete from parked_events where ${position}::bigint is null or position = ${position}::bigint
      returning position, day, turn, lanes
    ),
    added as (
      insert into outbox (day, turn, positions, lanes)
      select day, turn, array[position], lanes from taken order by position
      returning 1
    )
    select count(*)::int as count from added`.execute(db);
  return rows[0]?.count ?? 0;
}

/**
 * Parks every event that has no deliveries yet, also those that wait for single lanes. Only while no server runs.
 * @returns the number of events
 */
export async function parkAllEvents(tx: Transaction, reason: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    with waiting as (
      delete from outbox returning day, turn, positions, lanes, through_lane
    ),
    locked as (
      delete from deferred_deliveries returning day, position, lane
    ),
    apart as (
      select day, position, turn,
        -- The first event of a row may have deliveries in the lanes up to this one.
        case when place = 1 then array(select lane from unnest(lanes) as lane where lane > through_lane) else lanes end as some,
        lanes is null as is_for_all
      from waiting, unnest(positions) with ordinality as t (position, place)
      union all
      select l.day, l.position, coalesce(e.account_id, '00000000-0000-0000-0000-000000000001'),
        array_agg(distinct l.lane), false
      from locked l left join events e on e.day = l.day and e.position = l.position
      group by l.day, l.position, e.account_id
    ),
    added as (
      insert into parked_events (position, day, turn, lanes, reason)
      select position, day, (min(turn::text))::uuid,
        case when bool_or(is_for_all) then null else array(
          select distinct lane from apart a, unnest(a.some) as lane where a.position = apart.position) end,
        ${reason}
      from apart group by position, day
      on conflict (position) do nothing
      returning position
    )
    select count(*)::int as count from added`.execute(tx);
  return rows[0]?.count ?? 0;
}
