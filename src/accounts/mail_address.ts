/** The address at which an account gets mail. */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { ownsAddress } from './account.ts';

/** The address, or null if the account is deleted or disabled, or has none that is known to be the user's. */
export function mailAddressSql(accountId: RawBuilder<unknown>): RawBuilder<string | null> {
  return sql<string | null>`(
    select email from accounts
    where accounts.id = ${accountId} and disabled_at is null and ${ownsAddress('accounts')})`;
}

/** @returns null as `mailAddressSql` */
export async function mailAddressOf(db: Database, accountId: string): Promise<string | null> {
  const { rows } = await sql<{ email: string | null }>`
    select ${mailAddressSql(sql`${accountId}::uuid`)} as email`.execute(db);
  return rows[0]?.email ?? null;
}
