/**
 * Deliveries as their owner sees them. The state of a delivery is not stored. It follows from the log:
 *
 *   pending     past the lane's cursor, or in `retries` with another attempt to come
 *   held        created or pending while its subscription was disabled
 *   succeeded   attempted, with nothing left to do
 *   failed      in `retries`, with no attempts left
 *   cancelled   not started when its owner lost the right to it, or its subscription the kind
 *
 * A subscriber that pulls has no attempts: a delivery is pending until it is acknowledged, and then succeeded.
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { deliveryId, deliveryIdPrefix, parseDeliveryId } from '../subscriptions/delivery_id.ts';
import { type Owner, visibleTo } from '../subscriptions/subscription.ts';

export const deliveryStates = ['pending', 'held', 'succeeded', 'failed', 'cancelled'] as const;
export type DeliveryState = (typeof deliveryStates)[number];

/** What a list can be filtered by: a state, or `failing`, which is pending after a failed attempt. */
export const deliveryStatuses = [...deliveryStates, 'failing'] as const;
export type DeliveryStatus = (typeof deliveryStatuses)[number];

/**
 * Attempts from which on a delivery is not resent. Its state follows from all of them, so without a limit whoever resends the same deliveries all
 * the time would make pages of the log and recoveries take seconds.
 */
export const attemptsMax = 1_000;

export interface Delivery {
  id: string;
  eventId: string;
  kind: string;
  subscriptionId: string;
  sequence: number;
  state: DeliveryState;
  attemptCount: number;
  /** Of the last attempt: the status of the response, and the error unless it was accepted. */
  lastStatus: number | null;
  lastError: string | null;
  createdAt: Date;
  nextAttemptAt: Date | null;
}

export interface DeliveryRow {
  lane: string;
  sequence: string;
  epoch_tag: number;
  created_at: Date;
  event_id: string;
  kind: string;
  state: DeliveryState;
  attempt_count: string;
  last_status: number | null;
  last_error: string | null;
  next_attempt_at: Date | null;
}

/** Selects deliveries of a subscription with their state. @param condition on `d`, a row of `deliveries` */
export function selectDeliveries(lane: number, condition: ReturnType<typeof sql>) {
  return selectDetails(
    lane,
    sql`select d.lane, d.sequence, d.day, d.event, d.created_at
      from deliveries d where d.lane = ${lane} and ${condition}`,
  );
}

/**
 * Adds to deliveries what follows from the rest of the log. Each row is looked up by its day, so a look-up reads one
 * partition. `offset 0` prevents the planner from joining whole tables.
 * @param rows rows of `deliveries`, all of one lane
 */
export function selectDetails(lane: number, rows: ReturnType<typeof sql>) {
  return sql`
    select d.lane, d.sequence, d.day, d.event, d.created_at, e.id as event_id, e.kind, attempt.count as attempt_count,
      attempt.last_status, attempt.last_error,
      ${epochTagOf(sql`d.lane`, sql`d.sequence`)} as epoch_tag,
      ${stateOf(sql`r.state`, sql`attempt.count > 0`)} as state,
      case
        when s.state <> 'active' or s.url is null then null
        -- Nothing is sent while the lane pauses, not even what was resent by hand.
        when r.due_at is not null then greatest(r.due_at, p.paused_until)
        when r.state is not null then null
        when attempt.count = 0 and d.sequence > p.cursor then greatest(p.paused_until, d.created_at)
      end as next_attempt_at
    from (${rows} offset 0) as d
    join subscriptions s on s.lane = ${lane}
    join lane_progress p on p.lane = ${lane}
    cross join lateral (
      select id, kind from events where day = d.day and position = d.event offset 0
    ) as e
    left join lateral (
      select state, due_at from retries where lane = d.lane and sequence = d.sequence offset 0
    ) as r on true
    cross join lateral (
      select count(*) as count,
        (array_agg(a.status order by a.started_at desc, a.number desc))[1] as last_status,
        (array_agg(a.error order by a.started_at desc, a.number desc))[1] as last_error
      from attempts a
      where a.lane = d.lane and a.sequence = d.sequence and a.day = d.day offset 0
    ) as attempt`;
}

/** The tag of the epoch in which a delivery was created (delivery_id.ts). */
export function epochTagOf(lane: ReturnType<typeof sql>, sequence: ReturnType<typeof sql>) {
  return sql`coalesce((
    select tag from lane_epochs where lane = ${lane} and first <= ${sequence} order by first desc limit 1), 0)`;
}

/** The state of delivery `d` of subscription `s`. */
export function stateOf(retry: ReturnType<typeof sql>, wasAttempted: ReturnType<typeof sql>) {
  return sql`
      case
        when s.url is null then case
          when d.sequence <= (select sequence from acknowledgements where lane = s.lane) then 'succeeded'
          else 'pending' end
        when ${retry} = 'pending' then case when s.state = 'active' then 'pending' else 'held' end
        when ${retry} is not null then ${retry}
        when ${wasAttempted} then 'succeeded'
        when s.state <> 'active' then 'held'
        -- Ranges do not overlap, so only the one that begins last can contain it. A lane may have very many.
        when (
          select h.last >= d.sequence from held_ranges h where h.lane = d.lane and h.first <= d.sequence
          order by h.first desc limit 1
        ) then 'held'
        else 'pending'
      end`;
}

/** Checks the whole id: lane and sequence alone do not prove that this server issued it. */
export function isIdOf(
  id: string,
  subscriptionId: string,
  { lane, sequence }: { lane: number; sequence: number },
  epochTag: number | undefined,
): boolean {
  return deliveryId(deliveryIdPrefix(lane, subscriptionId, epochTag), sequence) === id;
}

export interface Place {
  subscription: { id: string; lane: number; state: string; isPulled: boolean };
  sequence: number;
}

/** Finds the delivery that an id names, among subscriptions that the owner may see. */
export async function locateDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Place | undefined> {
  const place = parseDeliveryId(id);
  if (place === undefined) return undefined;
  const { rows } = await sql<{ id: string; state: string; is_pulled: boolean; epoch_tag: number }>`
    select id, state, url is null as is_pulled, ${epochTagOf(sql`lane`, sql`${place.sequence}::bigint`)} as epoch_tag
    from subscriptions where lane = ${place.lane} and ${visibleTo(owner)}`.execute(db);
  const row = rows[0];
  if (row === undefined || !isIdOf(id, row.id, place, row.epoch_tag)) return undefined;
  const { id: subscriptionId, state, is_pulled: isPulled } = row;
  return {
    subscription: { id: subscriptionId, state, isPulled, lane: place.lane },
    sequence: place.sequence,
  };
}

/** One delivery, without its body and attempts. */
export async function findDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Delivery | undefined> {
  const place = await locateDelivery(db, owner, id);
  if (place === undefined) return undefined;
  const { subscription, sequence } = place;
  const selected = selectDeliveries(subscription.lane, sql`d.sequence = ${sequence}`);
  const { rows } = await sql<DeliveryRow>`${selected}`.execute(db);
  return rows[0] && toDelivery(rows[0], subscription.id);
}

export function toDelivery(row: DeliveryRow, subscriptionId: string): Delivery {
  const sequence = Number(row.sequence);
  return {
    id: deliveryId(deliveryIdPrefix(Number(row.lane), subscriptionId, row.epoch_tag), sequence),
    eventId: row.event_id,
    kind: row.kind,
    subscriptionId,
    sequence,
    state: row.state,
    attemptCount: Number(row.attempt_count),
    lastStatus: row.last_status,
    lastError: row.last_error,
    createdAt: row.created_at,
    nextAttemptAt: row.next_attempt_at,
  };
}
