/**
 * Checks the certificates of the other side of a TLS connection before OpenSSL sees them. Node verifies whatever chain a host sends, or a client of
 * which the server asks for one, in the thread of the connection, and also one that nobody trusts: 90 certificates with slow keys take 170 ms. This
 * check has limits on what they contain (certificate_limits.ts). It trusts nothing: OpenSSL verifies what passes.
 *
 * It reads the records of the handshake (RFC 8446 section 5, RFC 5246 section 6.2) as far as the message `Certificate`. TLS 1.3
 * encrypts that message with keys that Node reports for key logs (RFC 9850). What it cannot read is refused.
 *
 *   records in the clear → Certificate (TLS 1.2) → checked
 *   records in the clear → ServerHello, or ClientHello → waiting for the keys → encrypted records → Certificate (TLS 1.3) → checked
 */

import { createDecipheriv, createHmac } from 'node:crypto';
import { GrowingBytes } from '../shared/growing_bytes.ts';
import { checkCertificates } from './certificate_limits.ts';
import { EgressError } from './error.ts';

/** Maximum bytes and records that the other side may send up to its certificates. Each record takes time, also one with a single byte. */
const handshakeBytesMax = 65_536;
const recordsMax = 256;
/** Maximum bytes of an encrypted record of TLS 1.2 (RFC 5246 section 6.2.3); those of TLS 1.3 are shorter. */
const recordBytesMax = 18_432;

/** Types of records and of handshake messages. */
const handshakeRecord = 22;
const encryptedRecord = 23;
/** The first of the types of records, which are consecutive. */
const firstRecord = 20;
const clientHelloMessage = 1;
const serverHelloMessage = 2;
const certificateMessage = 11;

/** Who sends the certificates. */
type Sender = 'server' | 'client';

interface SenderFacts {
  /** Messages that OpenSSL accepts before the certificates, in the clear and encrypted: also EncryptedExtensions, CertificateRequest. */
  clear: ReadonlySet<number>;
  encrypted: ReadonlySet<number>;
  /** The line of the key log. */
  keys: RegExp;
}

const factsOf: Readonly<Record<Sender, SenderFacts>> = {
  server: {
    clear: new Set([serverHelloMessage]),
    encrypted: new Set([8, 13]),
    keys: /^SERVER_HANDSHAKE_TRAFFIC_SECRET [\da-f]+ ([\da-f]+)\s*$/i,
  },
  client: {
    clear: new Set([clientHelloMessage]),
    encrypted: new Set(),
    keys: /^CLIENT_HANDSHAKE_TRAFFIC_SECRET [\da-f]+ ([\da-f]+)\s*$/i,
  },
};
const recordHeadBytes = 5;
const messageHeadBytes = 4;

/** Names of a cipher suite in TLS 1.3, and of its algorithms. */
interface Suite {
  name: string;
  cipher: 'aes-128-gcm' | 'aes-256-gcm' | 'chacha20-poly1305';
  keyBytes: number;
  hash: 'sha256' | 'sha384';
}

const suites = new Map<number, Suite>([
  [0x1301, { name: 'TLS_AES_128_GCM_SHA256', cipher: 'aes-128-gcm', keyBytes: 16, hash: 'sha256' }],
  [0x1302, { name: 'TLS_AES_256_GCM_SHA384', cipher: 'aes-256-gcm', keyBytes: 32, hash: 'sha384' }],
  [
    0x1303,
    { name: 'TLS_CHACHA20_POLY1305_SHA256', cipher: 'chacha20-poly1305', keyBytes: 32, hash: 'sha256' },
  ],
]);

interface Keys {
  suite: Suite;
  key: Buffer;
  iv: Buffer;
}

/** The bytes that the other side sends at the start of a connection. */
export class CertificateCheck {
  readonly #facts: SenderFacts;
  /** What has arrived since the last time that all of it was passed on, how much of it was passed on, and how much the next step needs. */
  #arrived: GrowingBytes | null = null;
  #passed = 0;
  #needed = recordHeadBytes;
  /** What was read of handshake messages, without those that are complete, and how much the next step needs. */
  #messages: GrowingBytes | null = null;
  #messagesNeeded = messageHeadBytes;
  #received = 0;
  #suite: Suite | undefined;
  #keys: Keys | undefined;
  #records = 0;
  #recordsDecrypted = 0;
  #hasHello = false;
  #isDone = false;

  constructor(sender: Sender) {
    this.#facts = factsOf[sender];
  }

  /** Whether the certificates were checked. */
  get isDone(): boolean {
    return this.#isDone;
  }

  /** Known when the certificates were checked. */
  get isTls13(): boolean {
    return this.#suite !== undefined;
  }

  /** What has arrived after the last record that `next` returned. */
  get rest(): Buffer {
    return this.#arrived?.bytes.subarray(this.#passed) ?? Buffer.alloc(0);
  }

  /** Takes bytes of the other side. `next` returns them, in records. @throws EgressError `tls_error` */
  take(chunk: Buffer): void {
    this.#received += chunk.length;
    if (this.#received > handshakeBytesMax) refuse('the host sent more than 64 KiB before its certificates');
    if (this.#arrived === null) this.#arrived = new GrowingBytes(chunk);
    else this.#arrived.append(chunk);
  }

  /**
   * Call it until the certificates are checked, each time after OpenSSL has the bytes that it returned: their keys decrypt the next ones.
   * @returns the next record, to pass on; null if more must arrive first, or the keys
   * @throws EgressError `tls_error`
   */
  next(): Buffer | null {
    // A host may send single bytes.
    if (this.#arrived === null || this.#arrived.length - this.#passed < this.#needed) return null;
    const pending = this.rest;
    const type = pending.readUInt8(0);
    const bytes = pending.readUInt16BE(3);
    if (type < firstRecord || type > encryptedRecord || bytes > recordBytesMax)
      refuse('the host does not speak TLS');
    this.#needed = recordHeadBytes + bytes;
    if (pending.length < this.#needed) return null;
    const record = pending.subarray(0, this.#needed);
    if (type === encryptedRecord && this.#keys === undefined) {
      if (!this.#hasHello || (this.#facts === factsOf.server && this.#suite === undefined))
        refuse('the host sent an unexpected message');
      return null;
    }
    this.#records += 1;
    if (this.#records > recordsMax)
      refuse(`the host sent more than ${recordsMax} records before its certificates`);
    this.#passed += record.length;
    this.#needed = recordHeadBytes;
    if (this.#passed === this.#arrived.length) {
      this.#arrived = null;
      this.#passed = 0;
    }
    if (type === encryptedRecord) this.#readEncrypted(record, this.#keys as Keys);
    else if (type === handshakeRecord) {
      if (this.#keys !== undefined) refuse('the host sent an unexpected message');
      this.#readMessages(record.subarray(recordHeadBytes));
    }
    return record;
  }

  /** Takes a line of the key log. @param suite the name of the cipher suite; a server's own ServerHello says it */
  takeKeys(line: string, suite?: string): void {
    const secret = this.#facts.keys.exec(line)?.[1];
    if (secret === undefined) return;
    this.#suite ??= suites.values().find(({ name }) => name === suite);
    if (this.#suite === undefined) return;
    const { hash, keyBytes } = this.#suite;
    const bytes = Buffer.from(secret, 'hex');
    this.#keys = {
      suite: this.#suite,
      key: expandLabel(hash, bytes, 'key', keyBytes),
      iv: expandLabel(hash, bytes, 'iv', 12),
    };
    // A key belongs to what follows the ServerHello.
    if (this.#messages !== null) refuse('the host sent an unexpected message');
  }

  /** RFC 8446 sections 5.2 and 5.3. */
  #readEncrypted(record: Buffer, { suite, key, iv }: Keys): void {
    const nonce = Buffer.from(iv);
    nonce.writeUInt32BE((nonce.readUInt32BE(8) ^ this.#recordsDecrypted) >>> 0, 8);
    this.#recordsDecrypted += 1;
    const tagAt = record.length - 16;
    if (tagAt < recordHeadBytes) refuse('the host sent a record that is too short');
    let plain: Buffer;
    try {
      // Node has a type of its own for each cipher.
      const decipher = createDecipheriv(suite.cipher as 'chacha20-poly1305', key, nonce, {
        authTagLength: 16,
      });
      decipher.setAAD(record.subarray(0, recordHeadBytes), { plaintextLength: tagAt - recordHeadBytes });
      decipher.setAuthTag(record.subarray(tagAt));
      plain = Buffer.concat([decipher.update(record.subarray(recordHeadBytes, tagAt)), decipher.final()]);
    } catch {
      refuse('the host sent a record that cannot be decrypted');
    }
    // The type stands at the end, before any number of zeros.
    let typeAt = plain.length - 1;
    while (typeAt >= 0 && plain[typeAt] === 0) typeAt -= 1;
    if (plain[typeAt] === handshakeRecord) this.#readMessages(plain.subarray(0, typeAt));
  }

  /** Reads messages of the handshake up to the certificates. A message may have several records, and a record several messages. */
  #readMessages(bytes: Buffer): void {
    if (bytes.length === 0) return;
    if (this.#messages === null) this.#messages = new GrowingBytes(bytes);
    else this.#messages.append(bytes);
    // A host may send single bytes.
    if (this.#messages.length < this.#messagesNeeded) return;
    const arrived = this.#messages.bytes;
    let messages = arrived;
    this.#messagesNeeded = messageHeadBytes;
    while (messages.length >= messageHeadBytes) {
      const end = messageHeadBytes + messages.readUIntBE(1, 3);
      const type = messages.readUInt8(0);
      const isExpected = (this.#keys === undefined ? this.#facts.clear : this.#facts.encrypted).has(type);
      // Others may contain certificates too, such as compressed ones (RFC 8879).
      if (!isExpected && type !== certificateMessage) refuse('the host sent an unexpected message');
      if (messages.length < end) {
        this.#messagesNeeded = end;
        break;
      }
      const body = messages.subarray(messageHeadBytes, end);
      if (type === serverHelloMessage) this.#suite = suiteOf(body);
      if (type === serverHelloMessage || type === clientHelloMessage) this.#hasHello = true;
      if (type === certificateMessage) {
        const { isTls13 } = this;
        // OpenSSL ends such a handshake too.
        if (!this.#hasHello || isTls13 !== (this.#keys !== undefined))
          refuse('the host sent an unexpected message');
        checkCertificates(readCertificates(body, isTls13));
        this.#isDone = true;
        return;
      }
      messages = messages.subarray(end);
    }
    if (messages.length === 0) this.#messages = null;
    else if (messages.length < arrived.length) this.#messages = new GrowingBytes(messages);
  }
}

/** The cipher suite of a ServerHello, if it is one of TLS 1.3: version, 32 random bytes, the session id with its length, and the suite. */
function suiteOf(body: Buffer): Suite | undefined {
  const at = 35 + (body[34] ?? 0);
  return at + 2 > body.length ? undefined : suites.get(body.readUInt16BE(at));
}

/** HKDF-Expand-Label of RFC 8446 section 7.1 without a context, for one block of the hash. */
function expandLabel(hash: Suite['hash'], secret: Buffer, label: string, bytes: number): Buffer {
  const name = `tls13 ${label}`;
  const info = Buffer.concat([Buffer.from([0, bytes, name.length]), Buffer.from(name), Buffer.from([0, 1])]);
  return createHmac(hash, secret).update(info).digest().subarray(0, bytes);
}

/** The certificates of a message `Certificate` (RFC 8446 section 4.4.2, RFC 5246 section 7.4.2). */
function readCertificates(body: Buffer, isTls13: boolean): Buffer[] {
  const certificates: Buffer[] = [];
  try {
    let at = isTls13 ? 1 + body.readUInt8(0) : 0;
    const end = at + 3 + body.readUIntBE(at, 3);
    at += 3;
    while (at < end) {
      const length = body.readUIntBE(at, 3);
      certificates.push(body.subarray(at + 3, at + 3 + length));
      at += 3 + length;
      if (isTls13) at += 2 + body.readUInt16BE(at);
    }
    if (at <= body.length) return certificates;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return refuse('the host sent a message that cannot be read');
}

function refuse(reason: string): never {
  throw new EgressError('tls_error', { reason });
}
