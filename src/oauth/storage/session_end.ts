/** The end of all login sessions of an account: for commands, which need nothing of the engine. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';

/**
 * Signs an account out everywhere, also where somebody has just signed in and has not yet been sent on: that would be
 * a session begun with the password of before. What it lets apps do goes on.
 */
export async function endSessionsOf(db: Database | Transaction, accountId: string): Promise<void> {
  await sql`delete from login_sessions where account_id = ${accountId}`.execute(db);
  await sql`delete from interactions where payload #>> '{result,login,accountId}' = ${accountId}`.execute(db);
}
