/** What to call the accounts and apps of an administrator's list. Read once for each page. */

import { sql } from 'kysely';
import Type from 'typebox';
import { textArray, uuidArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { Nullable } from '../../http/schema.ts';

/** Shows what to call an account. */
export const AccountLabel = () =>
  Nullable(Type.String({ description: 'The email address, or else the name or the external id.' }));

export interface Names {
  /** The email address, or else the name or the external id; null for a deleted account. */
  account: (id: string | null) => string | null;
  /** Null for a deleted app. */
  client: (id: string | null) => string | null;
}

export async function readNames(
  db: Database,
  accountIds: readonly (string | null)[],
  clientIds: readonly (string | null)[],
): Promise<Names> {
  const [accounts, clients] = await Promise.all([
    read(
      db,
      sql`select id, coalesce(email, nullif(name, ''), external_id) as name from accounts
      where id = any(${uuidArray(distinct(accountIds))}::uuid[])`,
    ),
    read(db, sql`select id, name from clients where id = any(${textArray(distinct(clientIds))}::text[])`),
  ]);
  return {
    account: (id) => accounts.get(id ?? '') ?? null,
    client: (id) => clients.get(id ?? '') ?? null,
  };
}

function distinct(ids: readonly (string | null)[]): string[] {
  return [...new Set(ids)].filter((id) => id !== null);
}

async function read(db: Database, query: ReturnType<typeof sql>): Promise<ReadonlyMap<string, string>> {
  const { rows } = await (query as ReturnType<typeof sql<{ id: string; name: string | null }>>).execute(db);
  return new Map(rows.flatMap(({ id, name }) => (name === null ? [] : [[id, name] as const])));
}
