/**
 * Events. An event is written in the same transaction as the change that it describes. This folder owns the tables
 * `events` and `outbox`.
 *
 *   written with its change → (commit) → in the outbox → fanned out into deliveries → dropped with its day
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Transaction } from '../database/database.ts';
import { activeTraceparent } from '../http/tracing.ts';

export interface NewEvent {
  /** The account that owns the resource. Null for an event that belongs to no account, such as a ping. */
  accountId: string | null;
  /** A declared kind's name, like `article.published`. */
  kind: string;
  /** The version of the body; null if the kind has none. */
  version?: string | null;
  /** The body. Subscribers receive it as serialized here. */
  body: unknown;
}

/**
 * Adds an event to the outbox in the caller's transaction, so that the change and its event commit together. Call
 * `FanOutWaker.wake` after the commit.
 * @param lanes the only lanes that may receive it; by default every lane whose owner may read it
 * @returns the event's id
 */
export async function appendEvent(tx: Transaction, event: NewEvent, lanes?: string[]): Promise<string> {
  const id = newId();
  await sql`
    with event as (
      insert into events (id, account_id, kind, version, body, traceparent)
      values (${id}, ${event.accountId}, ${event.kind}, ${event.version ?? null}, ${JSON.stringify(event.body)}, ${activeTraceparent()})
      returning day, position
    )
    insert into outbox (day, turn, positions, lanes)
    select day, ${turnOf(event, lanes)}::uuid, array[position], ${lanes ?? null}::bigint[] from event`.execute(
    tx,
  );
  return id;
}

/**
 * The turn in which fan-out processes an event: that of its account or, for an event without an account, of its first lane.
 */
function turnOf({ accountId }: NewEvent, lanes: readonly string[] = []): string {
  return (
    accountId ??
    BigInt(lanes[0] ?? 1)
      .toString(16)
      .padStart(32, '0')
  );
}

/** Writes an event without the outbox. The caller creates its deliveries in the same transaction. */
export async function recordEvent(
  tx: Transaction,
  event: NewEvent,
): Promise<{ id: string; day: string; position: string }> {
  const id = newId();
  const { rows } = await sql<{ day: string; position: string }>`
    insert into events (id, account_id, kind, version, body, traceparent)
    values (${id}, ${event.accountId}, ${event.kind}, ${event.version ?? null}, ${JSON.stringify(event.body)}, ${activeTraceparent()})
    returning day::text, position`.execute(tx);
  return { id, ...(rows[0] as { day: string; position: string }) };
}
