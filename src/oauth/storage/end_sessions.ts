/** Ends the login sessions of accounts. Commands use it without loading oidc-provider. */

import { sql } from 'kysely';
import { endSignIns } from '../../accounts/account.ts';
import { ownClientIds } from '../../clients/own_clients.ts';
import type { Transaction } from '../../database/database.ts';

/**
 * Signs accounts out everywhere, also in the console and the reference, whose grants end. This includes sign-ins that are in
 * progress, which would otherwise create a session with the previous password. Grants of other apps are not affected. Call
 * it inside a delivery hold.
 */
export async function endSessions(tx: Transaction, accounts: string | readonly string[]): Promise<void> {
  const ids = [accounts].flat();
  if (ids.length === 0) return;
  await endSignIns(tx, ids);
  await sql`delete from login_sessions where account_id = any(${ids}::uuid[])`.execute(tx);
  await sql`delete from account_links where account_id = any(${ids}::uuid[])`.execute(tx);
  await sql`delete from login_requests where account_id = any(${ids}::uuid[])`.execute(tx);
  await sql`delete from upstream_logins where account_id = any(${ids}::uuid[])`.execute(tx);
  await sql`delete from interactions where payload #>> '{result,login,accountId}' = any(${ids}::text[])`.execute(
    tx,
  );
  // Also grants that belong to no session.
  await sql`
    update grants set withdrawn_at = now(), withdrawn_reason = 'session_ended', updated_at = now()
    where account_id = any(${ids}::uuid[]) and client_id = any(${ownClientIds}::text[])
      and withdrawn_at is null`.execute(tx);
}
