/**
 * Signatures of deliveries (specification 5.4). Each shape defines the signed bytes and the format of the value. Secrets and
 * keys are passed newest first; a shape that has room for several values signs with each of them.
 *
 *   timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
 *   sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
 *   standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
 *   ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
 *
 * The HMAC key of `timestamp` and `sha256` is the secret as text, which the libraries of Stripe and GitHub expect. The key of
 * `standard` is the decoded secret, which the libraries of Standard Webhooks expect. `ed25519` is the asymmetric form of
 * Standard Webhooks: the deployment's own key signs (delivery_key.ts), and the subscriber needs no secret.
 */

import { createHmac, createSecretKey, type KeyObject, randomBytes, sign } from 'node:crypto';

export const signatureShapes = ['timestamp', 'sha256', 'standard', 'ed25519'] as const;
export type SignatureShape = (typeof signatureShapes)[number];

const prefix = 'whsec_';
/** Length of a new secret in bytes, and the minimum and maximum length of a secret that the owner chooses. */
const secretBytes = 32;
export const secretBytesMin = 24;
export const secretBytesMax = 64;

/** Returns a new secret: `whsec_` followed by the base64 of 32 random bytes. */
export function makeSecret(): string {
  return prefix + randomBytes(secretBytes).toString('base64');
}

/**
 * The form of a secret, as precisely as a pattern can express it: base64 in groups of four characters for three
 * bytes.
 */
export const secretPattern = (() => {
  const three = '(?:[A-Za-z0-9+/]{4})';
  const two = '[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]';
  const one = '[A-Za-z0-9+/][AQgw]';
  // 24 to 63 bytes, or 64 bytes.
  return `^${prefix}(?:${three}{8,20}(?:${two}|${one})?|${three}{21}(?:${one})?)={0,2}$`;
})();

/** Whether a text is a secret of the right form and length. */
export function isSecret(text: string): boolean {
  if (!text.startsWith(prefix)) return false;
  const encoded = text.slice(prefix.length);
  const bytes = Buffer.from(encoded, 'base64');
  // Decoding skips characters that are not base64. Encoding the result again reveals them.
  const isExact = bytes.toString('base64').replaceAll('=', '') === encoded.replace(/={0,2}$/, '');
  return isExact && bytes.length >= secretBytesMin && bytes.length <= secretBytesMax;
}

/** The key of `timestamp` and `sha256`. */
export function textKey(secret: string): KeyObject {
  return createSecretKey(secret, 'utf8');
}

/** The key of `standard`. */
export function standardKey(secret: string): KeyObject {
  return createSecretKey(secret.startsWith(prefix) ? secret.slice(prefix.length) : secret, 'base64');
}

/** @param keys from `textKey`, newest first @param timestamp Unix time in seconds */
export function signTimestamp(keys: readonly KeyObject[], timestamp: number, body: Buffer): string {
  let value = `t=${timestamp}`;
  for (const key of keys) value += `,v1=${hmac(key, `${timestamp}.`, body, 'hex')}`;
  return value;
}

/**
 * This shape has room for one value. The oldest valid secret signs until its overlap ends.
 * @param keys from `textKey`, newest first
 */
export function signSha256(keys: readonly KeyObject[], body: Buffer): string {
  const key = keys.at(-1) as KeyObject;
  return `sha256=${hmac(key, '', body, 'hex')}`;
}

/** @param keys from `standardKey`, newest first */
export function signStandard(
  keys: readonly KeyObject[],
  id: string,
  timestamp: number,
  body: Buffer,
): string {
  return keys.map((key) => `v1,${hmac(key, `${id}.${timestamp}.`, body, 'base64')}`).join(' ');
}

/** @param start signed before the body */
function hmac(key: KeyObject, start: string, body: Buffer, encoding: 'hex' | 'base64'): string {
  return createHmac('sha256', key).update(start).update(body).digest(encoding);
}

/** @param keys private Ed25519 keys, newest first; several during a key rotation */
export function signEd25519(keys: readonly KeyObject[], id: string, timestamp: number, body: Buffer): string {
  const content = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  return keys.map((key) => `v1a,${sign(null, content, key).toString('base64')}`).join(' ');
}
