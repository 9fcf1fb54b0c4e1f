/**
 * The form of opaque access tokens: the prefix that the issuer's metadata names, 43 random characters, and the CRC-32 of both
 * in 6 characters of base64url. Checking it needs no request. It is no proof: anyone can compute the checksum.
 */

import { crc32 } from 'node:zlib';

const randomForm = /^[A-Za-z0-9_-]{43}$/;
const checksumLength = 6;

export function isOpaqueToken(token: string, prefix: string): boolean {
  if (!token.startsWith(prefix)) return false;
  const unsigned = token.slice(0, -checksumLength);
  if (!randomForm.test(unsigned.slice(prefix.length))) return false;
  const checksum = Buffer.alloc(4);
  checksum.writeUInt32BE(crc32(unsigned));
  return token.endsWith(checksum.toString('base64url'));
}
