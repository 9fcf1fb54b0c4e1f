/**
 * Sealing: encrypts secrets that must be read back (signing keys, webhook secrets) with AES-256-GCM. Each purpose has a key
 * of its own, derived from the deployment's secret by HKDF-SHA-256. Each value is bound to a context, for example its row,
 * so that a value copied to another row cannot be opened.
 *
 * Format: version (1 byte), nonce (12 bytes), tag (16 bytes), ciphertext.
 */

import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const version = 1;
const nonceBytes = 12;
const tagBytes = 16;

/** Stored keys cannot be opened, because they were sealed with another `NUNCIO_SECRET` than the current one. */
export class DifferentSecretError extends Error {
  override readonly name = 'DifferentSecretError';

  /** @param what the stored values, in the plural */
  constructor(what: string, cause: unknown) {
    super(`${what} were sealed with a different NUNCIO_SECRET`, { cause });
  }
}

export interface Sealer {
  /** @param context identifies the owner of the value, for example a row id; required again to open it */
  seal(plaintext: string | Buffer, context: string): Buffer;
  /** @throws Error if the value was sealed with another secret or for another context, or was modified */
  open(sealed: Buffer, context: string): Buffer;
}

/**
 * @param secret the deployment's key material, 32 bytes or more
 * @param purpose name of the kind of values, for example `subscription-secret`
 */
export function createSealer(secret: Buffer, purpose: string): Sealer {
  const key = deriveKey(secret, `seal:${purpose}`);
  return {
    seal(plaintext, context) {
      const nonce = randomBytes(nonceBytes);
      const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(context));
      const ciphertext = Buffer.concat([cipher.update(plaintext), cipher.final()]);
      return Buffer.concat([Buffer.of(version), nonce, cipher.getAuthTag(), ciphertext]);
    },
    open(sealed, context) {
      if (sealed[0] !== version || sealed.length < 1 + nonceBytes + tagBytes) {
        throw new Error('the sealed value has an unknown format');
      }
      const nonce = sealed.subarray(1, 1 + nonceBytes);
      const tag = sealed.subarray(1 + nonceBytes, 1 + nonceBytes + tagBytes);
      const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: tagBytes })
        .setAAD(Buffer.from(context))
        .setAuthTag(tag);
      return Buffer.concat([decipher.update(sealed.subarray(1 + nonceBytes + tagBytes)), decipher.final()]);
    },
  };
}

/**
 * Derives a 256-bit key for one purpose (RFC 5869).
 * @param label unique name of the purpose
 */
export function deriveKey(secret: Buffer, label: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, Buffer.alloc(0), `nuncio:${label}`, 32));
}
