/** The address at which an account gets mail. */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { ownsAddress } from './account.ts';

/** @returns null if the account is deleted or disabled, or has no address that is known to be the user's */
export async function mailAddressOf(db: Database, accountId: string): Promise<string | null> {
  const { rows } = await sql<{ email: string | null }>`
    select email from accounts
    where id = ${accountId} and disabled_at is null and ${ownsAddress('accounts')}`.execute(db);
  return rows[0]?.email ?? null;
}
