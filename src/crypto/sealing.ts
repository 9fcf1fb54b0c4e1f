/**
 * Sealing: secrets that must be read back (signing keys, webhook secrets) are encrypted at rest with
 * AES-256-GCM. Each purpose has a key of its own, derived from the deployment's secret by HKDF-SHA-256, and
 * each sealed value is bound to a context (whose it is), so that a row copied onto another does not open.
 *
 * Form: 1 byte version, 12 bytes nonce, 16 bytes tag, ciphertext.
 */

import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const version = 1;
const nonceBytes = 12;
const tagBytes = 16;

export interface Sealer {
  /** @param context whose value this is, like a row's id; needed again to open it */
  seal(plaintext: string | Buffer, context: string): Buffer;
  /** @throws Error when the value was sealed with another secret, for another context, or was changed */
  open(sealed: Buffer, context: string): Buffer;
}

/**
 * @param secret the deployment's key material, 32 bytes or more
 * @param purpose a name for what is sealed, like `subscription-secret`
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
        throw new Error('sealed value has an unknown form');
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
 * A 256-bit key for one purpose (RFC 5869).
 * @param label tells the purposes apart
 */
export function deriveKey(secret: Buffer, label: string): Buffer {
  return Buffer.from(hkdfSync('sha256', secret, Buffer.alloc(0), `nuncio:${label}`, 32));
}
