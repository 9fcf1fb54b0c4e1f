/** The actor of a request to the management API, and how the audit log names it. */

import { sql } from 'kysely';
import { isAdmin } from '../accounts/account.ts';
import type { Database, Transaction } from '../database/database.ts';
import { Problem } from '../http/problem.ts';
import type { Principal } from './principal.ts';
import { adminScope } from './scopes.ts';

export interface Actor {
  /** Null for a machine client of the operator. */
  accountId: string | null;
  clientId: string;
  /** Whether the token has the scope `admin`, and its account or client still has the right. */
  isAdmin: boolean;
}

export async function resolveActor(db: Database, principal: Principal): Promise<Actor> {
  const { accountId, clientId, scopes } = principal;
  const claimsAdmin = scopes.has(adminScope);
  return { accountId, clientId, isAdmin: claimsAdmin && (await mayAdminister(db, principal)) };
}

/** @throws Problem 403 if the actor is not an administrator */
export async function requireAdmin(db: Database, principal: Principal): Promise<Actor> {
  const actor = await resolveActor(db, principal);
  if (actor.isAdmin) return actor;
  throw new Problem(403, 'This request requires an administrator.', { code: 'not-an-admin' });
}

/** Queried for each request, because the right may have been removed since the token was issued. */
async function mayAdminister(db: Database, { accountId, clientId }: Principal): Promise<boolean> {
  const { rows } = await sql`
    select from clients
    where id = ${clientId} and origin = 'operator' and scopes @> array[${adminScope}]::text[] and not is_stopped`.execute(
    db,
  );
  return rows.length > 0 && (accountId === null || (await isAdmin(db, accountId)));
}

/** @returns the account of the actor. @throws Problem 403 for a machine client */
export function requireAccount({ accountId }: Actor): string {
  if (accountId !== null) return accountId;
  throw new Problem(403, 'This request requires the token of an account, not of a client.', {
    code: 'account-required',
  });
}

/** The name of an actor in the audit log and in idempotency keys. */
export function actorName({ accountId, clientId }: Actor): string {
  return accountId ?? `client:${clientId}`;
}

/** Sets the actor of the transaction for audit entries, including those that triggers write. */
export async function actAs(tx: Transaction, actor: Actor): Promise<void> {
  await sql`select set_config('nuncio.actor', ${actorName(actor)}, true)`.execute(tx);
}
