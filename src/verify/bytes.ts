/** Texts and bytes. */

import { VerificationError } from './error.ts';

export type Bytes = Uint8Array<ArrayBuffer>;

const howToGetTheBody =
  'Pass the bytes of the request. Express: use expressVerifier or express.raw({ type: "*/*" }) on this route, before ' +
  'express.json(). Fastify: use fastifyVerifier. Hono: use honoVerifier or c.req.arrayBuffer().';

/** Returns the bytes of a body. @throws VerificationError if a parser has read it before */
export function toBytes(body: unknown): Bytes {
  if (typeof body === 'string') return new TextEncoder().encode(body);
  if (ArrayBuffer.isView(body)) {
    return new Uint8Array(body.buffer as ArrayBuffer, body.byteOffset, body.byteLength);
  }
  // Not `instanceof`: the buffer may come from another realm.
  if ((body as ArrayBuffer)?.[Symbol.toStringTag] === 'ArrayBuffer')
    return new Uint8Array(body as ArrayBuffer);
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

/** Returns the bytes, or undefined if the text is not hexadecimal in lower case. */
export function fromHex(text: string): Bytes | undefined {
  if (!/^([0-9a-f]{2})+$/.test(text)) return undefined;
  return Uint8Array.from(text.match(/../g) as string[], (digits) => Number.parseInt(digits, 16));
}
