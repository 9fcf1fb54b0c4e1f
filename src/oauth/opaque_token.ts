/**
 * The form of opaque access tokens: a prefix, 256 random bits, and the CRC-32 of both, as GitHub's tokens have. An API can reject
 * the tokens of other servers without a request, and secret scanners find leaked tokens. The checksum is no proof, because anyone
 * can compute it.
 */

import { crc32 } from 'node:zlib';
import { newSecret } from '../crypto/digest.ts';

/** Published in the metadata document (discovery.ts), where `nuncio/protect` learns it. */
export const opaqueTokenPrefix = 'nat_';

/** 43 characters of randomness and 6 of checksum, both base64url. */
const form = new RegExp(`^${opaqueTokenPrefix}[A-Za-z0-9_-]{43}[A-Za-z0-9_-]{6}$`);
const checksumLength = 6;

export function newOpaqueToken(): string {
  const unsigned = opaqueTokenPrefix + newSecret();
  return unsigned + checksumOf(unsigned);
}

/** Whether a token has the form of this server's opaque access tokens. */
export function isOpaqueToken(token: string): boolean {
  return form.test(token) && checksumOf(token.slice(0, -checksumLength)) === token.slice(-checksumLength);
}

function checksumOf(text: string): string {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(crc32(text));
  return bytes.toString('base64url');
}
