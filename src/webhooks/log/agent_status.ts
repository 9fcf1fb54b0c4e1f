/** How the deliveries of an agent's subscription are doing, and from where an agent could continue without it. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import type { AttemptError } from '../sending/attempt_error.ts';

export interface AgentStatus {
  /** Whether deliveries are sent: it is neither held nor disabled. */
  isActive: boolean;
  lastDeliveryAt: Date | null;
  /** Of the last attempt. Null if it was accepted, or there was none. */
  lastFailure: { error: AttemptError; status: number | null } | null;
  failingSince: Date | null;
  /** Milliseconds that the subscriber asked to wait; 0 for none. */
  retryAfterMs: number;
}

/** Maximum attempts that are looked at, newest deliveries first. */
const attemptsMax = 1_000;

/** @returns undefined if the subscription has ended */
export async function readAgentStatus(db: Database, lane: number): Promise<AgentStatus | undefined> {
  const { rows } = await sql<{
    is_active: boolean;
    last_delivery_at: Date | null;
    last_error: AttemptError | null;
    last_status: number | null;
    failing_since: Date | null;
    pause_ms: number | null;
  }>`
    with recent as materialized (
      select started_at, status, error from attempts
      where lane = ${lane} and day >= (now() at time zone 'utc')::date - 1 and error is distinct from 'conversion_error'
      order by sequence desc limit ${attemptsMax}::int
    ),
    last as (select * from recent order by started_at desc limit 1)
    select s.state = 'active' and a.held_at is null as is_active,
      (select max(started_at) from recent where error is null) as last_delivery_at,
      (select error from last) as last_error, (select status from last) as last_status, p.failing_since,
      (extract(epoch from p.paused_until - now()) * 1000)::float8 as pause_ms
    from agent_subscriptions a join subscriptions s on s.id = a.id join lane_progress p on p.lane = a.lane
    where a.lane = ${lane} and a.ended_at is null`.execute(db);
  const [row] = rows;
  if (row === undefined) return undefined;
  const { last_error: error, last_status: status } = row;
  // Only these two ask for a pause. The other pauses are the circuit breaker's.
  const isThrottled = status === 429 || status === 503;
  return {
    isActive: row.is_active,
    lastDeliveryAt: row.last_delivery_at,
    lastFailure: error === null ? null : { error, status },
    failingSince: row.failing_since,
    retryAfterMs: isThrottled ? Math.max(Math.ceil(row.pause_ms ?? 0), 0) : 0,
  };
}

/**
 * Finds up to where all deliveries of a lane were accepted or abandoned. Lanes of agents are not ordered, so later ones may have been
 * accepted, too.
 * @returns that sequence, and a time before which no event after it was created
 */
export async function readAckedPlace(
  db: Database | Transaction,
  lane: number,
): Promise<{ sequence: number; at: Date }> {
  const { rows } = await sql<{ sequence: string; at: Date }>`
    with place as materialized (
      select least(newest_sequence(l), p.cursor,
        -- The index has the order of sequences for each state alone.
        (select min(sequence) - 1 from retries where lane = l.id and state = 'pending'),
        (select min(sequence) - 1 from retries where lane = l.id and state = 'held')) as sequence
      from lanes l join lane_progress p on p.lane = l.id where l.id = ${lane}
    )
    select place.sequence, coalesce(
      (select created_at from deliveries where lane = ${lane} and sequence > place.sequence order by sequence limit 1),
      now()) as at
    from place`.execute(db);
  const { sequence, at } = rows[0] as (typeof rows)[number];
  return { sequence: Number(sequence), at };
}
