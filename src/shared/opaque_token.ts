/**
 * The form of opaque access tokens: a prefix, 43 random characters, and the CRC-32 of both in 6 characters of base64url, as
 * GitHub's tokens have. An API can reject the tokens of other servers without a request, and secret scanners find leaked tokens.
 * The checksum is no proof, because anyone can compute it.
 */

import { crc32 } from 'node:zlib';

const randomForm = /^[A-Za-z0-9_-]{43}$/;
const checksumLength = 6;

/** Appends the checksum to a prefix and 43 random characters. */
export function withChecksum(unsigned: string): string {
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(crc32(unsigned));
  return unsigned + checksum.toString('base64url');
}

/** Whether a token has the form of the opaque access tokens with a prefix. */
export function isOpaqueToken(token: string, prefix: string): boolean {
  const unsigned = token.slice(0, -checksumLength);
  return (
    token.startsWith(prefix) &&
    randomForm.test(unsigned.slice(prefix.length)) &&
    token === withChecksum(unsigned)
  );
}
