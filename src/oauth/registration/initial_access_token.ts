/**
 * Initial access tokens (RFC 7591 section 3): the operator gives them to developers if registration is not open. Owns
 * the table `initial_access_tokens`.
 *
 *   created → used (counted in the transaction that registers the app) … → used up | expired
 */

import { sql } from 'kysely';
import { digest, newSecret } from '../../crypto/digest.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { ModelStorage } from '../storage/storage.ts';

export interface NewInitialAccessToken {
  /** Operator's description, for example of the recipient. */
  note?: string;
  /** Number of registrations. Default: unlimited. */
  uses?: number;
  /** Lifetime. Default: unlimited. */
  seconds?: number;
}

/** @returns the token, which cannot be read again */
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
 * Uses the token for one registration.
 * @returns false if the token is used up or expired
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
