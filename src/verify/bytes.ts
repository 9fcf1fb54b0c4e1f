/** Texts and bytes, and comparison in constant time. */

import { VerificationError } from './error.ts';

export type Bytes = Uint8Array<ArrayBuffer>;

const howToGetTheBody =
  'The signature covers the body as it was sent. Express: use expressVerifier or express.raw({ type: "*/*" }) on this ' +
  'route, before express.json(). Fastify: use fastifyVerifier. Hono: use honoVerifier or c.req.arrayBuffer(). ' +
  'Elsewhere, pass the text or the bytes of the request.';

/** Returns the bytes of a body. @throws VerificationError if a parser has read it before */
export function toBytes(body: unknown): Bytes {
  if (typeof body === 'string') return new TextEncoder().encode(body);
  if (ArrayBuffer.isView(body)) {
    return new Uint8Array(body.buffer as ArrayBuffer, body.byteOffset, body.byteLength);
  }
  // Not `instanceof`: the buffer may come from another realm.
  if (Object.prototype.toString.call(body) === '[object ArrayBuffer]') {
    return new Uint8Array(body as ArrayBuffer);
  }
  if (body === undefined || body === null) {
    throw new VerificationError('no-body', `There is no body. ${howToGetTheBody}`);
  }
  throw new VerificationError('body-parsed', `The body was parsed before. ${howToGetTheBody}`);
}

/** Returns the bytes of a text followed by others. */
export function concat(start: string, end: Bytes): Bytes {
  const first = new TextEncoder().encode(start);
  const all = new Uint8Array(first.length + end.length);
  all.set(first);
  all.set(end, first.length);
  return all;
}

/** Returns the bytes, or undefined if the text is not base64. */
export function fromBase64(text: string): Bytes | undefined {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return undefined;
  }
}

export function toBase64(bytes: Bytes): string {
  return btoa(String.fromCharCode(...bytes));
}

export function toHex(bytes: Bytes): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Compares in a time that depends on the lengths only. */
export function isEqual(one: string, other: string): boolean {
  let difference = one.length ^ other.length;
  for (let index = 0; index < one.length; index += 1) {
    difference |= one.charCodeAt(index) ^ other.charCodeAt(index);
  }
  return difference === 0;
}
