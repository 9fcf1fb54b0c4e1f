/**
 * Reads the signature of a delivery. Its headers say which format it has:
 *
 *   timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
 *   sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
 *   standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
 *   ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
 */

import { type Bytes, concat, fromBase64, fromHex } from './bytes.ts';
import { VerificationError } from './error.ts';
import type { FindHeader, HeaderNames } from './headers.ts';

export type SignatureFormat = 'timestamp' | 'sha256' | 'standard' | 'ed25519';

export interface Signature {
  format: SignatureFormat;
  /** The delivery's id. */
  id: string;
  /** Unix time in seconds; null for `sha256`, which has none. */
  timestamp: number | null;
  /** What is signed before the body. */
  start: string;
  /** The values of the signature. Each is of another secret or key. */
  values: Bytes[];
}

/** The longest value of a header. The server's longest one has a few hundred characters. */
const valueLengthMax = 4_096;
/** The most values that are read. The server writes one for each live secret or key. */
const valuesMax = 16;

/** Visible ASCII without a comma, which would join two values. */
const identifier = /^[!-+\--~]{1,255}$/;
const seconds = /^\d{1,12}$/;
const anything = /^/;

/** @throws VerificationError if the header is missing or malformed */
export function readHeader(find: FindHeader, name: string, form: RegExp = identifier): string {
  const value = find(name);
  if (value === undefined) {
    throw new VerificationError(
      'missing-header',
      `The request has no header ${name}. It is no delivery, or the operator has renamed the header (option headerNames).`,
    );
  }
  if (value.length > valueLengthMax || !form.test(value)) throw malformed(name);
  return value;
}

/**
 * @param hasKeys whether the subscriber has public keys, and so expects `ed25519` where a delivery has values of both forms
 * @throws VerificationError if a header is missing or malformed
 */
export function readSignature(find: FindHeader, names: HeaderNames, hasKeys: boolean): Signature {
  return find('webhook-signature') === undefined ? readOwn(find, names) : readStandard(find, hasKeys);
}

function readStandard(find: FindHeader, hasKeys: boolean): Signature {
  const id = readHeader(find, 'webhook-id');
  const timestamp = readHeader(find, 'webhook-timestamp', seconds);
  const parts = readHeader(find, 'webhook-signature', anything).split(' ');
  const [hashed, signed] = [valuesOf(parts, 'v1,'), valuesOf(parts, 'v1a,')];
  const isSigned = signed.length > 0 && (hasKeys || hashed.length === 0);
  return {
    format: isSigned ? 'ed25519' : 'standard',
    id,
    timestamp: Number(timestamp),
    start: `${id}.${timestamp}.`,
    values: decode('webhook-signature', isSigned ? signed : hashed, fromBase64),
  };
}

function readOwn(find: FindHeader, names: HeaderNames): Signature {
  const parts = readHeader(find, names.signature, anything)
    .split(',')
    .map((part) => part.trim());
  const id = readHeader(find, names.delivery);
  const hashes = valuesOf(parts, 'sha256=');
  const [timestamp = '', ...others] = valuesOf(parts, 't=');
  const isTimed = hashes.length === 0;
  if (isTimed ? !seconds.test(timestamp) || others.length > 0 : parts.length > 1) {
    throw malformed(names.signature);
  }
  return {
    format: isTimed ? 'timestamp' : 'sha256',
    id,
    timestamp: isTimed ? Number(timestamp) : null,
    start: isTimed ? `${timestamp}.` : '',
    values: decode(names.signature, isTimed ? valuesOf(parts, 'v1=') : hashes, fromHex),
  };
}

function valuesOf(parts: string[], start: string): string[] {
  return parts.filter((part) => part.startsWith(start)).map((part) => part.slice(start.length));
}

/** Leaves out values of another form, because others may match. */
function decode(name: string, values: string[], decodeOne: (value: string) => Bytes | undefined): Bytes[] {
  if (values.length === 0 || values.length > valuesMax) throw malformed(name);
  return values.map(decodeOne).filter((value) => value !== undefined);
}

function malformed(name: string): VerificationError {
  return new VerificationError(
    'malformed-header',
    `The header ${name} does not have the form of a delivery's.`,
  );
}

/** Whether one of the keys has signed the body. Web Crypto compares in constant time. */
export async function isSigned(
  { start, values }: Signature,
  body: Bytes,
  algorithm: 'HMAC' | 'Ed25519',
  keys: readonly CryptoKey[],
): Promise<boolean> {
  const signed = concat(start, body);
  for (const key of keys) {
    for (const value of values) if (await crypto.subtle.verify(algorithm, key, value, signed)) return true;
  }
  return false;
}
