/**
 * Reads the signature of a delivery. Its headers say which format it has:
 *
 *   timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
 *   sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
 *   standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
 *   ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
 */

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
  /** The values of the signature, at least one. Each is of another secret or key. */
  values: string[];
}

/** The most values that are read. The server writes one for each live secret or key. */
const valuesMax = 16;

/** Visible ASCII without a comma, which would join two values. */
const identifier = /^[!-+\--~]{1,255}$/;

/** @throws VerificationError if the header is missing or malformed */
export function readIdentifier(find: FindHeader, name: string): string {
  return checked(name, need(find, name), identifier);
}

/** @throws VerificationError if the header is missing or malformed */
export function readNumber(find: FindHeader, name: string): number {
  return Number(checked(name, need(find, name), /^\d{1,15}$/));
}

/**
 * @param wanted the only format to accept; any if undefined
 * @param hasKeys whether the subscriber has public keys, and so expects `ed25519` where a delivery has both forms of a value
 * @throws VerificationError if a header is missing or malformed
 */
export function readSignature(
  find: FindHeader,
  names: HeaderNames,
  wanted: SignatureFormat | undefined,
  hasKeys: boolean,
): Signature {
  const isStandard =
    wanted === undefined
      ? find('webhook-signature') !== undefined
      : wanted === 'standard' || wanted === 'ed25519';
  const signature = isStandard ? readStandard(find, wanted, hasKeys) : readOwn(find, names);
  if (wanted !== undefined && signature.format !== wanted) {
    throw malformed(isStandard ? 'webhook-signature' : names.signature);
  }
  return signature;
}

function readStandard(find: FindHeader, wanted: SignatureFormat | undefined, hasKeys: boolean): Signature {
  const id = readIdentifier(find, 'webhook-id');
  const timestamp = checked('webhook-timestamp', need(find, 'webhook-timestamp'), /^\d{1,12}$/);
  const given = need(find, 'webhook-signature').split(' ');
  const valuesOf = (version: string) =>
    given.filter((value) => value.startsWith(version)).map((value) => value.slice(version.length));
  const [hashed, signed] = [valuesOf('v1,'), valuesOf('v1a,')];
  const isSigned = wanted === 'ed25519' || (signed.length > 0 && (hasKeys || hashed.length === 0));
  return {
    format: isSigned && wanted !== 'standard' ? 'ed25519' : 'standard',
    id,
    timestamp: Number(timestamp),
    start: `${id}.${timestamp}.`,
    values: limited('webhook-signature', isSigned && wanted !== 'standard' ? signed : hashed),
  };
}

function readOwn(find: FindHeader, names: HeaderNames): Signature {
  const given = need(find, names.signature);
  const id = readIdentifier(find, names.delivery);
  const [, hex] = /^sha256=([0-9a-f]{64})$/.exec(given) ?? [];
  if (hex !== undefined) return { format: 'sha256', id, timestamp: null, start: '', values: [hex] };
  const parts = given.split(',').map((part) => part.trim());
  const valuesOf = (start: string) =>
    parts.filter((part) => part.startsWith(start)).map((part) => part.slice(start.length));
  const [timestamp = '', ...others] = valuesOf('t=');
  if (others.length > 0) throw malformed(names.signature);
  checked(names.signature, timestamp, /^\d{1,12}$/);
  return {
    format: 'timestamp',
    id,
    timestamp: Number(timestamp),
    start: `${timestamp}.`,
    values: limited(names.signature, valuesOf('v1=')),
  };
}

function need(find: FindHeader, name: string): string {
  const value = find(name);
  if (value !== undefined) return value;
  throw new VerificationError(
    'missing-header',
    `The request has no header ${name}. It is not a delivery, a proxy has removed the header, or the operator has named it ` +
      'differently (option headerNames).',
  );
}

function checked(name: string, value: string, form: RegExp): string {
  if (!form.test(value)) throw malformed(name);
  return value;
}

function limited(name: string, values: string[]): string[] {
  if (values.length === 0 || values.length > valuesMax) throw malformed(name);
  return values;
}

function malformed(name: string): VerificationError {
  return new VerificationError(
    'malformed-header',
    `The header ${name} does not have the form of a delivery's.`,
  );
}
