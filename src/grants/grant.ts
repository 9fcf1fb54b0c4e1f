/**
 * Grants: what a user lets a client do, the hinge between the authorization server, the API and the webhooks.
 * Each authorization that a user completes has one of its own. Owns the table `grants`.
 *
 *   active → withdrawn (for good; the database lists it, see withdrawals.ts)
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Why a grant ended: what the audit log and the connected apps say. */
export type WithdrawalReason =
  | 'user'
  | 'operator'
  | 'refresh_token_revoked'
  | 'refresh_token_replayed'
  | 'code_replayed'
  | 'client_deleted'
  | 'account_disabled';

export interface NewGrant {
  id?: string;
  accountId: string;
  clientId: string;
  scopes: readonly string[];
  /** The authorization server's own form of it. */
  details?: Readonly<Record<string, unknown>>;
}

/** @returns the grant's id */
export async function createGrant(db: Database | Transaction, grant: NewGrant): Promise<string> {
  const id = grant.id ?? newId();
  await sql`
    insert into grants (id, account_id, client_id, scopes, details)
    values (${id}, ${grant.accountId}, ${grant.clientId}, ${[...grant.scopes].sort()},
      ${JSON.stringify(grant.details ?? {})})
    on conflict (id) do nothing`.execute(db);
  return id;
}

/**
 * Ends a grant: its refresh tokens, and within a second its access tokens on every node, stop working, and its
 * subscriptions end with it.
 * @returns whether this call ended it
 */
export async function withdrawGrant(
  db: Database | Transaction,
  id: string,
  reason: WithdrawalReason,
): Promise<boolean> {
  const { rows } = await sql`
    update grants set withdrawn_at = now(), withdrawn_reason = ${reason}, updated_at = now()
    where id = ${id} and withdrawn_at is null
    returning id`.execute(db);
  return rows.length > 0;
}

/**
 * Ends everything that a user let a client do.
 * @returns how many grants ended
 */
export async function withdrawGrantsOfClient(
  db: Database | Transaction,
  accountId: string,
  clientId: string,
): Promise<number> {
  const { rows } = await sql`
    update grants set withdrawn_at = now(), withdrawn_reason = 'user', updated_at = now()
    where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null
    returning id`.execute(db);
  return rows.length;
}
