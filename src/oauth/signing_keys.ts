/**
 * Signing keys for access tokens and id_tokens (RFC 7517, RFC 7518): one active ES256 key and one active RS256 key. The
 * operator and the clients choose the algorithm. Created at first start and encrypted at rest. Owns the table
 * `signing_keys`.
 *
 *   published → (signs_from) active → replaced by a newer key → (expires_at) deleted
 */

import { calculateJwkThumbprint, exportJWK, generateKeyPair, type JWK } from 'jose';
import { sql } from 'kysely';
import { createSealer, DifferentSecretError } from '../crypto/sealing.ts';
import type { Database, Transaction } from '../database/database.ts';

export const signingAlgorithms = ['ES256', 'RS256'] as const;
export type SigningAlgorithm = (typeof signingAlgorithms)[number];

/** JWKs with `kid`, `alg` and `use`. The active key of each algorithm comes before its other keys. */
export interface SigningKeys {
  privateKeys: readonly JWK[];
  publicKeys: readonly JWK[];
}

/**
 * Creates missing keys, once for all nodes.
 * @param secret the deployment's key material
 */
export async function ensureSigningKeys(db: Database, secret: Buffer): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await sql`select take_lock('signing keys')`.execute(tx);
    const { rows } = await sql<{ algorithm: SigningAlgorithm }>`
      select distinct algorithm from signing_keys`.execute(tx);
    const present = new Set(rows.map((row) => row.algorithm));
    for (const algorithm of signingAlgorithms) {
      if (!present.has(algorithm)) await addSigningKey(tx, secret, algorithm, 0);
    }
  });
}

/**
 * @param delaySeconds seconds until the key becomes active; it is published immediately
 * @returns the `kid`
 */
async function addSigningKey(
  db: Database | Transaction,
  secret: Buffer,
  algorithm: SigningAlgorithm,
  delaySeconds: number,
): Promise<string> {
  const { privateKey } = await generateKeyPair(algorithm, { extractable: true, modulusLength: 2048 });
  const jwk = await exportJWK(privateKey);
  const kid = await calculateJwkThumbprint(jwk);
  const sealed = createSealer(secret, 'signing-key').seal(JSON.stringify(jwk), kid);
  await sql`
    insert into signing_keys (id, algorithm, sealed, signs_from)
    values (${kid}, ${algorithm}, ${sealed}, now() + ${delaySeconds} * interval '1 second')`.execute(db);
  return kid;
}

/**
 * Loads all published keys.
 * @throws DifferentSecretError
 */
export async function loadSigningKeys(db: Database | Transaction, secret: Buffer): Promise<SigningKeys> {
  // Active keys first, newest first; then keys that are not active yet.
  const { rows } = await sql<{ id: string; algorithm: SigningAlgorithm; sealed: Buffer }>`
    select id, algorithm, sealed
    from signing_keys
    where expires_at is null or expires_at > now()
    order by signs_from > now(), signs_from desc, id`.execute(db);
  const sealer = createSealer(secret, 'signing-key');
  const privateKeys = rows.map((row): JWK => {
    let opened: Buffer;
    try {
      opened = sealer.open(row.sealed, row.id);
    } catch (cause) {
      throw new DifferentSecretError('the signing keys', cause);
    }
    return { ...(JSON.parse(opened.toString()) as JWK), kid: row.id, alg: row.algorithm, use: 'sig' };
  });
  return { privateKeys, publicKeys: privateKeys.map(toPublic) };
}

function toPublic({ kty, kid, alg, use, crv, x, y, n, e }: JWK): JWK {
  const members = { kty, kid, alg, use, crv, x, y, n, e };
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as JWK;
}

/** Seconds that a new key is published before it becomes active, as long as others may cache the key set. */
export const publishedAheadSeconds = 600;
/** Seconds that a replaced key stays published: the longest lifetime of a token that it signed. */
const publishedAfterSeconds = 3_600 + 900;

/**
 * Rotates the signing keys. The new keys are published immediately and become active after a delay. The old keys stay
 * published until every token that they signed has expired.
 * @returns the ids of the new keys
 * @throws Error if the existing keys were sealed with another secret: no node could open the new ones
 */
export async function rotateSigningKeys(
  db: Database,
  secret: Buffer,
  delaySeconds = publishedAheadSeconds,
): Promise<string[]> {
  return db.transaction().execute(async (tx) => {
    await sql`select take_lock('signing keys')`.execute(tx);
    await loadSigningKeys(tx, secret);
    await sql`
      update signing_keys set expires_at =
        now() + (${delaySeconds}::float8 + ${publishedAfterSeconds}) * interval '1 second'
      where expires_at is null`.execute(tx);
    const ids: string[] = [];
    for (const algorithm of signingAlgorithms)
      ids.push(await addSigningKey(tx, secret, algorithm, delaySeconds));
    return ids;
  });
}
