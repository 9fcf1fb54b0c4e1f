/**
 * Secrets that only need comparing: random tokens and their SHA-256 digests.
 * A digest without salt is enough where the secret itself is 256 random bits.
 */

import { hash, randomBytes, timingSafeEqual } from 'node:crypto';

/** A new secret of 256 random bits, base64url without padding (43 characters). */
export function newSecret(): string {
  return randomBytes(32).toString('base64url');
}

/** SHA-256 of a secret, 32 bytes: what is stored of it. */
export function digest(secret: string): Buffer {
  return hash('sha256', secret, 'buffer');
}

/** Compares in constant time. Digests have one length, so nothing leaks by it. */
export function digestEquals(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
