/**
 * HMAC-SHA256 (RFC 2104) with a key that signs many messages: what depends on the key alone is made once, and nothing is
 * made for a signature but its text. `node:crypto` has an object for each signature, which costs more than the two
 * digests.
 */

import { createHmac, hash } from 'node:crypto';

const blockBytes = 64;
const digestBytes = 32;
/** Bytes of a message up to which it is put behind the key in memory. */
const messageBytesMax = 65_536;

/** The key's inner block and the message, put together anew for each signature. */
const inner = Buffer.allocUnsafeSlow(blockBytes + messageBytesMax);

export class HmacKey {
  readonly #key: Buffer;
  readonly #inner: Buffer;
  /** The key's outer block, and room for the inner digest. */
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

  /** @param start what is signed before the body, in ASCII */
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
