/**
 * Events: what happened, written in the same transaction as the change that it tells of. Owns the tables `events`
 * and `outbox` together with the other files of this folder.
 *
 *   written with its fact → (commit) → in the outbox → fanned out into deliveries → dropped with its day
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Transaction } from '../database/database.ts';
import { activeTraceparent } from '../http/tracing.ts';

export interface NewEvent {
  /** The account that the event belongs to: the owner of the resource. Null for what tells of none, like a ping. */
  accountId: string | null;
  /** A declared kind's name, like `article.published`. */
  kind: string;
  /** The kind's own body; sent as it is serialised here. */
  body: unknown;
}

/**
 * Adds an event to the outbox. No event without its fact, no fact without its event: the transaction is the
 * caller's. Call `Outbox.wake` once it has committed.
 * @param lanes those who alone may get it, by lane; everyone who may read it where left out
 * @returns the event's id
 */
export async function appendEvent(tx: Transaction, event: NewEvent, lanes?: string[]): Promise<string> {
  const id = newId();
  await sql`
    with event as (
      insert into events (id, account_id, kind, body, traceparent)
      values (${id}, ${event.accountId}, ${event.kind}, ${JSON.stringify(event.body)}, ${activeTraceparent()})
      returning day, position
    )
    insert into outbox (day, turn, positions, lanes)
    select day, ${turnOf(event, lanes)}::uuid, array[position], ${lanes ?? null}::bigint[] from event`.execute(
    tx,
  );
  return id;
}

/**
 * In whose turn the fan-out takes an event: its account's. An event that belongs to no account and is for certain lanes
 * takes the turn of the first of them.
 */
function turnOf({ accountId }: NewEvent, lanes: readonly string[] = []): string {
  return (
    accountId ??
    BigInt(lanes[0] ?? 1)
      .toString(16)
      .padStart(32, '0')
  );
}

/** An event whose deliveries the caller makes itself, in the same transaction: it does not enter the outbox. */
export async function recordEvent(
  tx: Transaction,
  event: NewEvent,
): Promise<{ id: string; day: string; position: string }> {
  const id = newId();
  const { rows } = await sql<{ day: string; position: string }>`
    insert into events (id, account_id, kind, body, traceparent)
    values (${id}, ${event.accountId}, ${event.kind}, ${JSON.stringify(event.body)}, ${activeTraceparent()})
    returning day::text, position`.execute(tx);
  return { id, ...(rows[0] as { day: string; position: string }) };
}
