/** Who a request of the management API speaks for, and how the audit log is told of it. */

import { sql } from 'kysely';
import { isAdmin } from '../accounts/account.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { adminScope } from '../grants/scopes.ts';
import { Problem } from '../http/problem.ts';

export interface Actor {
  /** Null for a machine client of the operator. */
  accountId: string | null;
  clientId: string;
  /** May do everything: the token says so, and its account or client still may. */
  isAdmin: boolean;
}

export async function actorOf(db: Database, principal: Principal): Promise<Actor> {
  const { accountId, clientId, scopes } = principal;
  const claimsAdmin = scopes.has(adminScope);
  return { accountId, clientId, isAdmin: claimsAdmin && (await mayAdminister(db, principal)) };
}

/** @throws Problem 403 */
export async function requireAdmin(db: Database, principal: Principal): Promise<Actor> {
  const actor = await actorOf(db, principal);
  if (actor.isAdmin) return actor;
  throw new Problem(403, 'The account is not an administrator (any more).', { code: 'not-an-admin' });
}

/** Looked up for each request: a token may be older than what it says. */
async function mayAdminister(db: Database, { accountId, clientId }: Principal): Promise<boolean> {
  const { rows } = await sql`
    select from clients
    where id = ${clientId} and origin = 'operator' and scopes @> array[${adminScope}]::text[] and not is_stopped`.execute(
    db,
  );
  return rows.length > 0 && (accountId === null || (await isAdmin(db, accountId)));
}

/** The account that a request must come from. @throws Problem 403 for a machine client */
export function requireAccount({ accountId }: Actor): string {
  if (accountId !== null) return accountId;
  throw new Problem(403, 'This is for accounts: the token is a client’s own.', { code: 'account-required' });
}

/** How entries of the audit log and idempotency keys name an actor. */
export function nameOf({ accountId, clientId }: Actor): string {
  return accountId ?? `client:${clientId}`;
}

/** Entries that the transaction writes to the audit log, by whatever trigger, name the actor. */
export async function actAs(tx: Transaction, actor: Actor): Promise<void> {
  await sql`select set_config('nuncio.actor', ${nameOf(actor)}, true)`.execute(tx);
}
