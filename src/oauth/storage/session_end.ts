/** The end of all login sessions of accounts: for commands, which need nothing of the engine. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';

/**
 * Signs accounts out everywhere, also where somebody has just signed in and has not yet been sent on: that would be
 * a session begun with the password of before. What they let apps do goes on.
 */
export async function endSessionsOf(
  db: Database | Transaction,
  accounts: string | readonly string[],
): Promise<void> {
  const ids = [accounts].flat();
  if (ids.length === 0) return;
  await sql`delete from login_sessions where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from account_links where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from login_requests where account_id = any(${ids}::uuid[])`.execute(db);
  await sql`delete from interactions where payload #>> '{result,login,accountId}' = any(${ids}::text[])`.execute(
    db,
  );
}
