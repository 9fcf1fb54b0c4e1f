/**
 * Signatures of deliveries (specification 5.4). Each shape says which bytes are signed and how the value is written;
 * nothing else is known here. The secrets are given newest first: a shape with room for several signs with each.
 *
 *   timestamp   Nuncio-Signature: t=<unix seconds>,v1=<hex>,v1=<hex>        HMAC-SHA256 of "<t>.<body>"
 *   sha256      Nuncio-Signature: sha256=<hex>                              HMAC-SHA256 of the body
 *   standard    webhook-signature: v1,<base64> v1,<base64>                  HMAC-SHA256 of "<id>.<t>.<body>"
 *   ed25519     webhook-signature: v1a,<base64>                             Ed25519 of "<id>.<t>.<body>"
 *
 * The key is the secret as text for `timestamp` and `sha256`, as Stripe's and GitHub's libraries take it, and the
 * decoded bytes for `standard`, as the libraries of Standard Webhooks take it. `ed25519` is signed with the deployment's
 * own key (see delivery_key.ts), the asymmetric form of Standard Webhooks: whoever checks it holds no secret.
 */

import { type KeyObject, randomBytes, sign } from 'node:crypto';
import { HmacKey } from './hmac.ts';

export const signatureShapes = ['timestamp', 'sha256', 'standard', 'ed25519'] as const;
export type SignatureShape = (typeof signatureShapes)[number];

const prefix = 'whsec_';
/** Bytes of a secret: those made here, and the least and the most of a given one. */
const secretBytes = 32;
export const secretBytesMin = 24;
export const secretBytesMax = 64;

/** A new secret: `whsec_` and the base64 of 32 random bytes. */
export function makeSecret(): string {
  return prefix + randomBytes(secretBytes).toString('base64');
}

/** The form of a secret, as far as a pattern can say it: base64 in groups of four characters for three bytes. */
export const secretPattern = (() => {
  const three = '(?:[A-Za-z0-9+/]{4})';
  const two = '[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]';
  const one = '[A-Za-z0-9+/][AQgw]';
  // 24 to 63 bytes, or 63 and one more.
  return `^${prefix}(?:${three}{8,20}(?:${two}|${one})?|${three}{21}(?:${one})?)={0,2}$`;
})();

/** Whether a text is a secret of the right form and length. */
export function isSecret(text: string): boolean {
  if (!text.startsWith(prefix)) return false;
  const encoded = text.slice(prefix.length);
  const bytes = Buffer.from(encoded, 'base64');
  // Decoding skips what is no base64; encoding again shows whether there was any.
  const isExact = bytes.toString('base64').replaceAll('=', '') === encoded.replace(/={0,2}$/, '');
  return isExact && bytes.length >= secretBytesMin && bytes.length <= secretBytesMax;
}

/** The key of `timestamp` and `sha256`: the secret as text. */
export function textKey(secret: string): HmacKey {
  return new HmacKey(secret);
}

/** The key of `standard`: the decoded bytes. */
export function standardKey(secret: string): HmacKey {
  return new HmacKey(Buffer.from(secret.startsWith(prefix) ? secret.slice(prefix.length) : secret, 'base64'));
}

/**
 * @param keys by `textKey`, newest first
 * @param timestamp unix seconds
 */
export function signTimestamp(keys: readonly HmacKey[], timestamp: number, body: Buffer): string {
  let value = `t=${timestamp}`;
  for (const key of keys) value += `,v1=${key.sign(`${timestamp}.`, body, 'hex')}`;
  return value;
}

/**
 * There is room for one value: the oldest secret that still lives signs, until its overlap has ended.
 * @param keys by `textKey`, newest first
 */
export function signSha256(keys: readonly HmacKey[], body: Buffer): string {
  const key = keys.at(-1) as HmacKey;
  return `sha256=${key.sign('', body, 'hex')}`;
}

/** @param keys by `standardKey`, newest first */
export function signStandard(keys: readonly HmacKey[], id: string, timestamp: number, body: Buffer): string {
  return keys.map((key) => `v1,${key.sign(`${id}.${timestamp}.`, body, 'base64')}`).join(' ');
}

/** @param keys private Ed25519 keys, newest first: more than one while a key is being replaced */
export function signEd25519(keys: readonly KeyObject[], id: string, timestamp: number, body: Buffer): string {
  const content = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  return keys.map((key) => `v1a,${sign(null, content, key).toString('base64')}`).join(' ');
}
