/**
 * Grants: the record that a user lets a client use some scopes. The authorization server, the API and the webhooks all depend
 * on it. Each authorization that a user completes creates its own grant. Owns the table `grants`.
 *
 *   active → withdrawn (final; a trigger adds it to the withdrawal list, see withdrawals.ts)
 */

import { sql } from 'kysely';
import { deleteClient } from '../clients/client.ts';
import { newId } from '../crypto/ids.ts';
import { expectLocks } from '../database/connection_user.ts';
import type { Database, Transaction } from '../database/database.ts';
import { withDeliveryHold } from './delivery_hold.ts';

/** Why a grant ended, for the audit log and the list of connected apps. */
export type WithdrawalReason =
  | 'user'
  | 'operator'
  | 'refresh_token_revoked'
  | 'refresh_token_replayed'
  | 'code_replayed'
  | 'client_deleted'
  | 'account_disabled'
  | 'session_ended'
  | 'grant_limit';

export interface NewGrant {
  id?: string;
  accountId: string;
  clientId: string;
  scopes: readonly string[];
  /** The authorization server's representation of the grant. */
  details?: Readonly<Record<string, unknown>>;
  /** The `updatedAt` of the client that the user saw; absent if the user saw no description of it. */
  clientVersion?: Date;
}

/** @returns the grant's id */
export async function createGrant(db: Database | Transaction, grant: NewGrant): Promise<string> {
  const id = grant.id ?? newId();
  await sql`
    insert into grants (id, account_id, client_id, scopes, details, client_version)
    values (${id}, ${grant.accountId}, ${grant.clientId}, ${[...grant.scopes].sort()},
      ${JSON.stringify(grant.details ?? {})}, ${grant.clientVersion ?? null})
    on conflict (id) do nothing`.execute(db);
  return id;
}

/**
 * Ends a grant. Its refresh tokens stop working at once, its access tokens within a second on every node. Its
 * subscriptions end, and no delivery of theirs starts after the commit.
 * @param actor who the audit log names
 * @returns whether this call ended the grant
 */
export async function withdrawGrant(
  db: Database,
  id: string,
  reason: WithdrawalReason,
  actor: string | null = null,
): Promise<boolean> {
  const { rows: found } = await sql<GrantSubject>`
    select g.client_id, g.account_id, ${mayDeliver} as may_deliver from grants g
    where g.id = ${id} and g.withdrawn_at is null`.execute(db);
  const subject = found[0];
  if (subject === undefined) return false;
  return withGrantHold(db, subject, async (tx) => {
    if (actor !== null) await sql`select set_config('nuncio.actor', ${actor}, true)`.execute(tx);
    const { rows } = await sql`
      update grants set withdrawn_at = now(), withdrawn_reason = ${reason}, updated_at = now()
      where id = ${id} and withdrawn_at is null
      returning id`.execute(tx);
    return rows.length > 0;
  });
}

/** Ends all grants of a user for a client. @returns the number of grants that ended */
export async function withdrawGrantsOfClient(
  db: Database,
  accountId: string,
  clientId: string,
): Promise<number> {
  const { rows: found } = await sql<{ may_deliver: boolean }>`
    select coalesce(bool_or(${mayDeliver}), false) as may_deliver from grants g
    where g.account_id = ${accountId} and g.client_id = ${clientId} and g.withdrawn_at is null`.execute(db);
  const subject = { client_id: clientId, account_id: accountId, may_deliver: found[0]?.may_deliver ?? false };
  return withGrantHold(db, subject, async (tx) => {
    const { rows } = await sql`
      update grants set withdrawn_at = now(), withdrawn_reason = 'user', updated_at = now()
      where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null
      returning id`.execute(tx);
    return rows.length;
  });
}

/**
 * Changes what a user lets a client do. No node starts a delivery that the change forbids after its commit.
 * @param work runs in one transaction
 */
export async function changeGrantsOfClient<T>(
  db: Database,
  accountId: string,
  clientId: string,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  const { rows } = await sql<{ may_deliver: boolean }>`
    select coalesce(bool_or(${mayDeliver}), false) as may_deliver from grants g
    where g.account_id = ${accountId} and g.client_id = ${clientId} and g.withdrawn_at is null`.execute(db);
  const subject = { client_id: clientId, account_id: accountId, may_deliver: rows[0]?.may_deliver ?? false };
  return withGrantHold(db, subject, work);
}

interface GrantSubject {
  client_id: string;
  account_id: string;
  may_deliver: boolean;
}

/**
 * Whether grant `g` can have deliveries: it has a subscription, or could get one before the next statement, or its client has
 * subscriptions of its own.
 */
const mayDeliver = sql<boolean>`(
  'write:webhooks' = any(g.scopes)
  or exists (
    select from clients c where c.id = g.client_id and (
      c.may_subscribe
      or (c.grant_types @> array['client_credentials'] and c.scopes @> array['write:webhooks'])
      or exists (select from app_members m where m.client_id = c.id)))
  or exists (select from subscriptions s where s.grant_id = g.id and s.state <> 'ended')
  or exists (
    select from subscriptions s where s.client_id = g.client_id and s.owner = 'client' and s.state <> 'ended'))`;

/** Runs the work in one transaction, inside a delivery hold. Most grants have no deliveries and need none. */
function withGrantHold<T>(
  db: Database,
  subject: GrantSubject,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  expectLocks();
  // The transaction bounds how long it waits for locks.
  if (!subject.may_deliver) return db.transaction().execute(work);
  const { client_id: clientId, account_id: accountId } = subject;
  return withDeliveryHold(db, { clientId, accountId, lane: null }, work);
}

/**
 * Deletes a client. Database triggers withdraw its grants, revoke its tokens and end its subscriptions. No delivery
 * of theirs starts after the commit.
 * @returns whether the client existed
 */
export async function endClient(db: Database, id: string): Promise<boolean> {
  return withDeliveryHold(db, { clientId: id, accountId: null, lane: null }, (tx) => deleteClient(tx, id));
}
