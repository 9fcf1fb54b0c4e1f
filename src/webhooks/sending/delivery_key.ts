/**
 * Delivery keys: the deployment's Ed25519 key pairs (RFC 8032, RFC 8037), which sign deliveries of subscriptions with
 * `signature: "ed25519"`. The first key is created at the first start. Keys are sealed at rest. Owns the table `delivery_keys`.
 *
 *   published → signing (from signs_from) → replaced: signs beside its successor (until signs_until)
 *   → published only (until expires_at) → deleted
 */

import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import type { JWK } from 'jose';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { sql } from 'kysely';
import { createSealer, DifferentSecretError } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';

export interface DeliveryKey {
  /** JWK thumbprint. */
  kid: string;
  privateKey: KeyObject;
  /** With `kid`, `use` and `alg`. */
  publicJwk: JWK;
  /** Milliseconds since 1970, by the database's clock. */
  signsFrom: number;
  /** On the same clock; null until the key is replaced. */
  signsUntil: number | null;
}

const purpose = 'delivery-key';

/**
 * Seconds that a new key is published before it signs, which is longer than any document that names it may be cached.
 * Seconds that the old key signs beside it, for subscribers that store the key. Seconds that the old key stays
 * published after its last signature.
 */
const publishedAheadSeconds = 600;
export const overlapSeconds = 7 * 86_400;
const publishedAfterSeconds = 86_400;

/** Creates the first key, once for all nodes. @param secret the deployment's key material */
export async function ensureDeliveryKey(db: Database, secret: Buffer): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await sql`select take_lock('delivery keys')`.execute(tx);
    const { rows } = await sql`select id from delivery_keys where signs_until is null`.execute(tx);
    if (rows.length === 0) await addKey(tx, secret, 0);
  });
}

/**
 * Replaces the key. The new key is published at once and signs later; the old key signs beside it for a week.
 * @returns the new key's id
 * @throws Error if the current keys were sealed with another secret, because no node could open the new one
 */
export async function rotateDeliveryKey(
  db: Database | Transaction,
  secret: Buffer,
  delaySeconds = publishedAheadSeconds,
): Promise<string> {
  return inTransaction(db, async (tx) => {
    await sql`select take_lock('delivery keys')`.execute(tx);
    await loadDeliveryKeys(tx, secret);
    await sql`
      update delivery_keys set
        signs_until = now() + (${delaySeconds}::float8 + ${overlapSeconds}) * interval '1 second',
        expires_at = now() + (${delaySeconds}::float8 + ${overlapSeconds + publishedAfterSeconds}) * interval '1 second'
      where signs_until is null`.execute(tx);
    return addKey(tx, secret, delaySeconds);
  });
}

async function addKey(tx: Transaction, secret: Buffer, delaySeconds: number): Promise<string> {
  const { privateKey } = generateKeyPairSync('ed25519');
  const jwk = privateKey.export({ format: 'jwk' }) as JWK;
  const kid = await calculateJwkThumbprint(jwk);
  const sealed = createSealer(secret, purpose).seal(JSON.stringify(jwk), kid);
  await sql`
    insert into delivery_keys (id, sealed, signs_from)
    values (${kid}, ${sealed}, now() + ${delaySeconds}::float8 * interval '1 second')`.execute(tx);
  return kid;
}

/** Loads all published keys, newest first. @throws DifferentSecretError */
export async function loadDeliveryKeys(db: Database | Transaction, secret: Buffer): Promise<DeliveryKey[]> {
  const { rows } = await sql<{ id: string; sealed: Buffer; signs_from: Date; signs_until: Date | null }>`
    select id, sealed, signs_from, signs_until from delivery_keys
    where expires_at is null or expires_at > now()
    order by signs_from desc, id`.execute(db);
  const sealer = createSealer(secret, purpose);
  return rows.map(({ id, sealed, signs_from, signs_until }) => {
    let opened: Buffer;
    try {
      opened = sealer.open(sealed, id);
    } catch (cause) {
      throw new DifferentSecretError('the delivery keys', cause);
    }
    const privateKey = createPrivateKey({ key: JSON.parse(opened.toString()), format: 'jwk' });
    const { kty, crv, x } = createPublicKey(privateKey).export({ format: 'jwk' }) as JWK;
    return {
      kid: id,
      privateKey,
      publicJwk: { kty, crv, x, kid: id, use: 'sig', alg: 'EdDSA' } as JWK,
      signsFrom: signs_from.getTime(),
      signsUntil: signs_until?.getTime() ?? null,
    };
  });
}

/** A public key in the format of Standard Webhooks: `whpk_` followed by the base64 of its 32 bytes. */
export function standardPublicKey({ publicJwk }: Pick<DeliveryKey, 'publicJwk'>): string {
  return `whpk_${Buffer.from(publicJwk.x as string, 'base64url').toString('base64')}`;
}
