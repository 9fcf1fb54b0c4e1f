/**
 * Used client assertions and DPoP proofs: each `jti` is accepted once across all nodes (RFC 7523 section 3, RFC 9449
 * section 11.1). Owns the table `used_proofs`.
 */

import { sql } from 'kysely';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';

/**
 * @param issuer scope of the `jti`: a client or a key
 * @param expiresAt seconds since the epoch, after which the proof is rejected as too old
 * @returns whether this is the first use
 */
export async function useProof(
  db: Database,
  issuer: string,
  jti: string,
  expiresAt: number,
): Promise<boolean> {
  const { rows } = await sql`
    insert into used_proofs (digest, expires_at)
    values (${digest(`${issuer}\n${jti}`)}, to_timestamp(${expiresAt}))
    on conflict (digest) do nothing
    returning digest`.execute(db);
  return rows.length > 0;
}
