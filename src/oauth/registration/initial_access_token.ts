/**
 * Initial access tokens (RFC 7591 section 3): what the operator hands to those who may register apps, where not
 * everybody may. Owns the table `initial_access_tokens`.
 *
 *   made → used (counted, in the transaction that registers) … → used up | expired
 */

import { sql } from 'kysely';
import { digest, newSecret } from '../../crypto/digest.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { ModelStorage } from '../storage/storage.ts';

export interface NewInitialAccessToken {
  /** For whom, in the operator's words. */
  note?: string;
  /** Registrations that it is good for; not counted if left out. */
  uses?: number;
  /** From now on; for ever if left out. */
  seconds?: number;
}

/** @returns the token: it cannot be had again */
export async function createInitialAccessToken(
  db: Database | Transaction,
  { note = '', uses, seconds }: NewInitialAccessToken,
): Promise<string> {
  const token = newSecret();
  await sql`
    insert into initial_access_tokens (digest, note, uses_left, expires_at)
    values (${digest(token)}, ${note}, ${uses ?? null},
      now() + ${seconds ?? null}::double precision * interval '1 second')`.execute(db);
  return token;
}

/**
 * Uses it for one registration.
 * @returns false when it was used up or expired meanwhile
 */
export async function useInitialAccessToken(tx: Transaction, token: string): Promise<boolean> {
  const { rows } = await sql`
    update initial_access_tokens set uses_left = uses_left - 1
    where digest = ${digest(token)}
      and (uses_left is null or uses_left > 0)
      and (expires_at is null or expires_at > now())
    returning digest`.execute(tx);
  return rows.length > 0;
}

export function initialAccessTokenStorage(db: Database): ModelStorage {
  return {
    async find(token) {
      const { rows } = await sql<{ iat: number }>`
        select extract(epoch from created_at)::int as iat
        from initial_access_tokens
        where digest = ${digest(token)}
          and (uses_left is null or uses_left > 0)
          and (expires_at is null or expires_at > now())`.execute(db);
      return rows[0] && { kind: 'InitialAccessToken', jti: token, iat: rows[0].iat };
    },
  };
}
