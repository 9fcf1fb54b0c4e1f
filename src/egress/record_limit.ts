/**
 * A limit on small TLS records. OpenSSL reads each record by itself, and some, such as those of new keys (RFC 8446 section 4.6.3), never
 * reach this program: a host can keep the thread busy with bytes that cost it little. So a host may send one record for each thousand bytes,
 * and a thousand more for each request that it gets.
 */

const recordsMax = 1_000;
const recordBytesMin = 1_000;
/** A record of TLS's own messages is not larger. A request is. */
const ownRecordBytesMax = 32;

const headBytes = 5;

export class RecordLimit {
  #records = 0;
  #bytes = 0;
  /** Bytes of the current record's head that were read, its length, and bytes of it that are to come. */
  #headRead = 0;
  #length = 0;
  #left = 0;

  /** Counts the records that begin in bytes from the host. @returns false if there are too many */
  take(chunk: Buffer): boolean {
    this.#bytes += chunk.length;
    let at = 0;
    while (at < chunk.length) {
      if (this.#left > 0) {
        const count = Math.min(this.#left, chunk.length - at);
        this.#left -= count;
        at += count;
        continue;
      }
      this.#length = ((this.#length << 8) | (chunk[at] as number)) & 0xffff;
      at += 1;
      this.#headRead += 1;
      if (this.#headRead < headBytes) continue;
      this.#headRead = 0;
      this.#left = this.#length;
      this.#records += 1;
    }
    return this.#records <= recordsMax + this.#bytes / recordBytesMin;
  }

  /** Takes bytes to the host, which begin with a record. The host cannot cause a large one without a request. */
  sent(chunk: Buffer): void {
    if (chunk.length < headBytes || chunk.readUInt16BE(3) <= ownRecordBytesMax) return;
    this.#records = 0;
    this.#bytes = 0;
  }
}
