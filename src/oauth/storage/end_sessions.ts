/** Ends the login sessions of accounts. Commands use it without loading oidc-provider. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';

/**
 * Signs accounts out everywhere. This includes sign-ins that are in progress, which would otherwise create a session with
 * the previous password. Grants are not affected.
 */
export async function endSessions(
  db: Database | Transaction,
  accounts: string | readonly string[],
): Promise<void> {
  const ids = [accounts].flat();
  if (ids.length === 0) return;
  await sql`delete from login_sessions where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from account_links where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from login_requests where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from upstream_logins where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from interactions where payload #>> '{result,login,accountId}' = any(${ids}::text[])`.execute(
    db,
  );
}
