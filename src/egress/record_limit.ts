/**
 * Limits on what a host sends after its certificates, which OpenSSL reads without this program. Each record takes time by itself, so a host may
 * send one for each thousand bytes, and a thousand more for each request that it gets. A record can also be full of tiny messages of the
 * handshake, which take much longer:
 *
 * - TLS 1.2: requests to repeat the handshake, 70 µs for four bytes. After `Finished` no message of the handshake is accepted.
 * - TLS 1.3: tickets for later connections, 8 µs for 18 bytes (RFC 8446 section 4.6.1). They are encrypted, so Node counts them, a hundred for
 *   each request; one record has 900 at most.
 * - Requests to repeat a handshake that is not over: it has a limit of bytes.
 */

const recordsMax = 1_000;
const recordBytesMin = 1_000;
const ticketsMax = 100;
/** A record of TLS's own messages is not larger. A request is. */
const ownRecordBytesMax = 32;
/** Maximum bytes from the certificates to the end of the handshake. */
const handshakeBytesMax = 65_536;
/** A record with `Finished` of TLS 1.2 has 40 to 96 bytes. */
const finishedBytesMax = 128;

/** Types of records. */
const changeCipherRecord = 20;
const handshakeRecord = 22;

const headBytes = 5;

export class RecordLimit {
  readonly #isTls13: boolean;
  #isHandshake = true;
  #handshakeBytes = 0;
  /** TLS 1.2: whether what follows is encrypted, and the number of encrypted messages of the handshake. */
  #isEncrypted = false;
  #encryptedMessages = 0;
  #tickets = 0;
  #records = 0;
  #bytes = 0;
  /** Bytes of the current record's head that were read, its type and length, and bytes of it that are to come. */
  #headRead = 0;
  #type = 0;
  #length = 0;
  #left = 0;

  constructor(isTls13: boolean) {
    this.#isTls13 = isTls13;
  }

  /** Counts the records that begin in bytes from the host. @returns what there is too much of; null if nothing */
  take(chunk: Buffer): string | null {
    this.#bytes += chunk.length;
    let at = 0;
    while (at < chunk.length) {
      if (this.#left > 0) {
        const count = Math.min(this.#left, chunk.length - at);
        this.#left -= count;
        at += count;
        continue;
      }
      if (this.#headRead === 0) this.#type = chunk[at] as number;
      this.#length = ((this.#length << 8) | (chunk[at] as number)) & 0xffff;
      at += 1;
      this.#headRead += 1;
      if (this.#headRead < headBytes) continue;
      this.#headRead = 0;
      this.#left = this.#length;
      this.#records += 1;
      if (!this.#isTls13 && !this.#mayBegin()) return 'the host sent an unexpected message';
    }
    if (this.#records > recordsMax + this.#bytes / recordBytesMin)
      return 'the host sent too many small records';
    if (this.#isHandshake) this.#handshakeBytes += chunk.length;
    return this.#handshakeBytes > handshakeBytesMax ? 'the host sent too much in its handshake' : null;
  }

  /** Counts a ticket. @returns what there is too much of; null if nothing */
  takeTicket(): string | null {
    this.#tickets += 1;
    return this.#tickets > ticketsMax ? 'the host sent too many session tickets' : null;
  }

  endHandshake(): void {
    this.#isHandshake = false;
  }

  /** Takes bytes to the host, which begin with a record. The host cannot cause a large one without a request. */
  sent(chunk: Buffer): void {
    if (chunk.length < headBytes || chunk.readUInt16BE(3) <= ownRecordBytesMax) return;
    this.#records = 0;
    this.#bytes = 0;
    this.#tickets = 0;
  }

  /** TLS 1.2: whether a record of this type and length may be next. */
  #mayBegin(): boolean {
    if (this.#type === changeCipherRecord) this.#isEncrypted = true;
    if (this.#type !== handshakeRecord || !this.#isEncrypted) return true;
    this.#encryptedMessages += 1;
    return this.#encryptedMessages === 1 && this.#length <= finishedBytesMax;
  }
}
