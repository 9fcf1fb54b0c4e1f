/** Bytes that arrive in pieces. What has arrived is not copied again for each piece, nor is a piece kept as a buffer of its own. */

export class GrowingBytes {
  /** The first piece, or a buffer with room for more. */
  #space: Buffer;
  length: number;
  #hasRoom = false;

  /** @param first kept as it is, so the caller must not modify it */
  constructor(first: Buffer) {
    this.#space = first;
    this.length = first.length;
  }

  /** All bytes. Later ones are appended behind them. */
  get bytes(): Buffer {
    return this.#hasRoom ? this.#space.subarray(0, this.length) : this.#space;
  }

  /** All bytes, in a buffer that is not larger. */
  get exactBytes(): Buffer {
    return this.#hasRoom ? Buffer.from(this.bytes) : this.#space;
  }

  append(source: Buffer, from = 0, to = source.length): void {
    const length = this.length + to - from;
    if (!this.#hasRoom || length > this.#space.length) {
      const space = Buffer.allocUnsafeSlow(Math.max(length, 2 * this.length));
      this.#space.copy(space, 0, 0, this.length);
      this.#space = space;
      this.#hasRoom = true;
    }
    source.copy(this.#space, this.length, from, to);
    this.length = length;
  }
}
