/**
 * Client secrets: 256 random bits, stored as a digest. While a secret is being replaced, two are live. Owns the table
 * `client_secrets`.
 *
 *   live → replaced (expires_at is set) → expired
 */

import { sql } from 'kysely';
import { digest, digestEquals, newSecret } from '../crypto/digest.ts';
import { textArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';

export interface ClientSecret {
  digest: Buffer;
  expiresAt: Date | null;
}

/** Maximum number of live secrets per client. */
export const clientSecretsMax = 2;

/**
 * @param secret 256 random bits
 * @returns the secret, which cannot be read again
 */
export async function addClientSecret(
  db: Database | Transaction,
  clientId: string,
  secret: string = newSecret(),
): Promise<string> {
  await sql`
    insert into client_secrets (client_id, digest)
    values (${clientId}, ${digest(secret)})`.execute(db);
  return secret;
}

/**
 * Rotates a client's secret without downtime. The latest secret stays valid for the overlap; older ones expire now.
 * @returns the new secret, which cannot be read again
 */
export async function rotateClientSecret(
  db: Database,
  clientId: string,
  overlapSeconds: number,
): Promise<string> {
  const secret = newSecret();
  await sql`
    with latest as (
      select digest from client_secrets
      where client_id = ${clientId} and (expires_at is null or expires_at > now())
      order by created_at desc limit 1),
    replaced as (
      update client_secrets set expires_at = least(
        coalesce(expires_at, 'infinity'),
        case when digest in (select digest from latest)
          then now() + ${overlapSeconds} * interval '1 second' else now() end)
      where client_id = ${clientId})
    insert into client_secrets (client_id, digest) values (${clientId}, ${digest(secret)})`.execute(db);
  return secret;
}

/** The live secrets of clients. */
export async function findClientSecrets(
  db: Database,
  clientIds: readonly string[],
): Promise<(ClientSecret & { clientId: string })[]> {
  const { rows } = await sql<ClientSecret & { clientId: string }>`
    select client_id as "clientId", digest, expires_at as "expiresAt"
    from client_secrets
    where client_id = any(${textArray(clientIds)}::text[]) and (expires_at is null or expires_at > now())`.execute(
    db,
  );
  return rows;
}

/** Compares with every live secret, each in constant time. */
export function matchesClientSecret(secrets: readonly ClientSecret[], presented: string): boolean {
  const presentedDigest = digest(presented);
  const now = Date.now();
  let matches = false;
  for (const secret of secrets) {
    const isAlive = secret.expiresAt === null || secret.expiresAt.getTime() > now;
    if (digestEquals(secret.digest, presentedDigest) && isAlive) matches = true;
  }
  return matches;
}
