/**
 * Parked events: those that the fan-out could not make deliveries of, not even alone. They are set aside with the reason,
 * so that everybody else's go on, and kept until an operator retries them or their day is dropped. A retried event comes
 * after those that its account has waiting. Owns the table `parked_events`.
 *
 *   in the outbox → parked → (retried) → in the outbox
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import type { PassRange } from './outbox_selection.ts';

/** Characters of a reason that are kept. */
const reasonCharactersMax = 500;

/** The event that a pass of a single event takes. */
export interface NextEvent {
  turn: string;
  /** Of the row of the outbox. */
  id: string;
  position: string;
}

export interface ParkedEvent {
  position: string;
  /** The event's own id; null where the event is no more. */
  id: string | null;
  accountId: string | null;
  kind: string | null;
  reason: string;
  parkedAt: Date;
}

/** @returns undefined where the account that is next has nothing of that day first */
export async function findNextEvent(
  db: Database,
  { day, after }: Pick<PassRange, 'day' | 'after'>,
): Promise<NextEvent | undefined> {
  const { rows } = await sql<NextEvent>`
    select turn, id, position from (
      select turn, id, day, positions[1] as position from outbox where turn > ${after}::uuid order by turn, id limit 1
    ) as next
    where day = ${day}::date`.execute(db);
  return rows[0];
}

/** @returns whether the event was still there */
export async function parkEvent(
  db: Database,
  { id, turn, position }: NextEvent,
  reason: string,
): Promise<boolean> {
  const { rows } = await sql`
    with waiting as materialized (
      select ctid as place, day, turn, lanes, positions[1] as position, size from outbox
      where turn = ${turn}::uuid and id = ${id}::bigint and positions[1] = ${position}::bigint
    ),
    taken as (
      delete from outbox where ctid = any(array(select place from waiting where size = 1))
    ),
    shortened as (
      update outbox set positions = positions[2:] where ctid = any(array(select place from waiting where size > 1))
    )
    insert into parked_events (position, day, turn, lanes, reason)
    select position, day, turn, lanes, ${reason.slice(0, reasonCharactersMax)} from waiting
    on conflict (position) do update set reason = excluded.reason, parked_at = now()
    returning position`.execute(db);
  return rows.length > 0;
}

/** The oldest first. */
export async function listParkedEvents(db: Database, limit: number): Promise<ParkedEvent[]> {
  const { rows } = await sql<{
    position: string;
    id: string | null;
    account_id: string | null;
    kind: string | null;
    reason: string;
    parked_at: Date;
  }>`
    select p.position, e.id, e.account_id, e.kind, p.reason, p.parked_at
    from (select * from parked_events order by position limit ${limit}) as p
    left join events e on e.day = p.day and e.position = p.position
    order by p.position`.execute(db);
  return rows.map((row) => ({
    position: row.position,
    id: row.id,
    accountId: row.account_id,
    kind: row.kind,
    reason: row.reason,
    parkedAt: row.parked_at,
  }));
}

/**
 * Puts parked events back into the outbox.
 * @param position of one of them; null for all
 * @returns how many
 */
export async function retryParkedEvents(db: Database, position: string | null): Promise<number> {
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
