/**
 * Random secrets and their SHA-256 digests, for secrets that only need to be compared. An unsalted digest is sufficient
 * because each secret has 256 random bits.
 */

import { hash, randomBytes, timingSafeEqual } from 'node:crypto';

/** Generates a secret of 256 random bits, base64url without padding (43 characters). */
export function newSecret(): string {
  return randomBytes(32).toString('base64url');
}

/** SHA-256 of a secret (32 bytes), the form in which it is stored. */
export function digest(secret: string): Buffer {
  return hash('sha256', secret, 'buffer');
}

/** Compares in constant time. All digests have the same length, so the length check leaks nothing. */
export function digestEquals(a: Buffer, b: Buffer): boolean {
  return a.length === b.length && timingSafeEqual(a, b);
}
