/**
 * HMAC-SHA256 (RFC 2104) for a key that signs many messages. The padded key blocks are computed once per key.
 * `node:crypto` allocates an object for each signature, which costs more than the two digests.
 */

import { createHmac, hash } from 'node:crypto';

const blockBytes = 64;
const digestBytes = 32;
/** Longest message that is assembled in memory behind the key block. */
const messageBytesMax = 65_536;

/** Scratch memory for the inner key block and the message. Every signature overwrites it. */
const inner = Buffer.allocUnsafeSlow(blockBytes + messageBytesMax);

export class HmacKey {
  readonly #key: Buffer;
  readonly #inner: Buffer;
  /** The outer key block, followed by room for the inner digest. */
  readonly #outer: Buffer;

  constructor(key: string | Buffer) {
    this.#key = Buffer.from(key as string);
    const block = Buffer.alloc(blockBytes);
    // RFC 2104 section 2: a key longer than a block is replaced by its digest.
    const short = this.#key.length > blockBytes ? hash('sha256', this.#key, 'buffer') : this.#key;
    short.copy(block);
    this.#inner = Buffer.from(block.map((byte) => byte ^ 0x36));
    this.#outer = Buffer.concat([block.map((byte) => byte ^ 0x5c), Buffer.alloc(digestBytes)]);
  }

  /** @param start signed before the body; ASCII only */
  sign(start: string, body: Buffer, encoding: 'hex' | 'base64'): string {
    const bytes = start.length + body.length;
    if (bytes > messageBytesMax) {
      return createHmac('sha256', this.#key).update(start).update(body).digest(encoding);
    }
    this.#inner.copy(inner);
    inner.write(start, blockBytes, start.length, 'latin1');
    body.copy(inner, blockBytes + start.length);
    const digest = hash('sha256', inner.subarray(0, blockBytes + bytes), 'latin1');
    this.#outer.write(digest, blockBytes, digestBytes, 'latin1');
    return hash('sha256', this.#outer, encoding);
  }
}
