/**
 * Events: what happened, written in the same transaction as the change that it tells of. Owns the table `events`
 * together with the other files of this folder.
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Transaction } from '../database/database.ts';

export interface NewEvent {
  /** The account that the event belongs to: the owner of the resource. */
  accountId: string;
  /** A declared kind's name, like `article.published`. */
  kind: string;
  /** The kind's own body; sent as it is serialised here. */
  body: unknown;
}

/**
 * Adds an event to the outbox. No event without its fact, no fact without its event: the transaction is the
 * caller's.
 * @returns the event's id
 */
export async function appendEvent(tx: Transaction, event: NewEvent): Promise<string> {
  const id = newId();
  await sql`
    insert into events (id, account_id, kind, body)
    values (${id}, ${event.accountId}, ${event.kind}, ${JSON.stringify(event.body)})`.execute(tx);
  return id;
}
