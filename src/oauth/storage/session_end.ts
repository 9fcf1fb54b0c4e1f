/** The end of all login sessions of an account: for commands, which need nothing of the engine. */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';

/** Signs an account out everywhere. What it lets apps do goes on. */
export async function endSessionsOf(db: Database | Transaction, accountId: string): Promise<void> {
  await sql`delete from login_sessions where account_id = ${accountId}`.execute(db);
}
