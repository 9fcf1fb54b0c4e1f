/** Questions to name servers and what is read of their answers (RFC 1035 section 4; RFC 3596 for IPv6). */

/** Maximum addresses that are read of an answer. It may have thousands. */
export const addressesMax = 16;
/** Maximum bytes of a label, and of a name as it is written. */
const labelBytesMax = 63;
const nameBytesMax = 253;
const headBytes = 12;
/** Type, class, time to live and length of the data of a record. */
const recordHeadBytes = 10;
const internet = 1;
/** Codes of answers: of those that say something about the name. */
const noError = 0;
const noSuchName = 3;

/** Flags of answers. */
const authoritative = 0x400;
const recursionAvailable = 0x80;
const truncated = 0x200;

/** The types of records with addresses, and the bytes of an address. */
const types = { 4: { type: 1, bytes: 4 }, 6: { type: 28, bytes: 16 } } as const;
export type Family = keyof typeof types;

export interface Question {
  family: Family;
  /** What an answer repeats: the name, the type and the class. */
  section: Buffer;
}

/** What an answer says. */
export interface Answer {
  /** At most `addressesMax`; none if the name or its addresses do not exist. */
  addresses: string[];
  /** Whether the answer was too long for UDP, so that addresses may be missing. */
  isTruncated: boolean;
  /** Whether the server did not find out. */
  isFailure: boolean;
}

/**
 * @param name without brackets; the last character may be a dot
 * @throws Error if it cannot be a name
 */
export function writeQuestion(name: string, family: Family): Question {
  const text = name.replace(/\.$/, '');
  const labels = text.split('.');
  const isName =
    text.length <= nameBytesMax &&
    labels.every((label) => label !== '' && label.length <= labelBytesMax && /^[\x21-\x7e]+$/.test(label));
  if (!isName) throw new Error('the name is not valid');
  const parts = labels.flatMap((label) => [Buffer.from([label.length]), Buffer.from(label.toLowerCase())]);
  const { type } = types[family];
  return { family, section: Buffer.concat([...parts, Buffer.from([0, 0, type, 0, internet])]) };
}

/** Asks for the name servers of the root. Every name server that works answers something at once. */
export const rootQuestion: Question = { family: 4, section: Buffer.from([0, 0, 2, 0, internet]) };

/** @param id by which the answer is recognized, of 16 bits */
export function writeQuery(id: number, { section }: Question): Buffer {
  // Recursion is desired.
  const head = Buffer.from([id >> 8, id & 0xff, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
  return Buffer.concat([head, section]);
}

/** The id of a message; undefined if it is too short. */
export function idOf(message: Buffer): number | undefined {
  return message.length < headBytes ? undefined : message.readUInt16BE(0);
}

/**
 * Reads an answer up to the last address that is used. Names in it are skipped and not read. They could be made so that they take long.
 * @param message may be cut off
 * @returns null if it is no answer to the question
 */
export function readAnswer(message: Buffer, question: Question): Answer | null {
  const { section } = question;
  const end = headBytes + section.length;
  if (message.length < headBytes) return null;
  const flags = message.readUInt16BE(2);
  const code = flags & 0xf;
  const isResponse = (flags & 0x8000) !== 0;
  const isFailure = code !== noError && code !== noSuchName;
  // Servers that cannot read a question may not repeat it.
  if (isResponse && isFailure && message.length === headBytes)
    return { addresses: [], isTruncated: false, isFailure };
  if (message.length < end || message.readUInt16BE(4) !== 1) return null;
  // Servers may write the name in other case.
  const repeated = message.toString('latin1', headBytes, end).toLowerCase();
  if (!isResponse || repeated !== section.toString('latin1')) return null;
  // It refers to other servers, and does not ask them.
  const isReferral = code === noError && (flags & (authoritative | recursionAvailable | truncated)) === 0;
  const addresses = code === noError ? readAddresses(message, end, question.family) : [];
  return {
    addresses,
    isTruncated: (flags & truncated) !== 0,
    isFailure: isFailure || (isReferral && addresses.length === 0),
  };
}

/** @param from where the records begin */
function readAddresses(message: Buffer, from: number, family: Family): string[] {
  const { type, bytes } = types[family];
  const addresses: string[] = [];
  let left = message.readUInt16BE(6);
  let at = skipName(message, from);
  while (left > 0 && addresses.length < addressesMax && at + recordHeadBytes <= message.length) {
    const dataAt = at + recordHeadBytes;
    const length = message.readUInt16BE(at + 8);
    const isAddress = message.readUInt16BE(at) === type && message.readUInt16BE(at + 2) === internet;
    if (dataAt + length > message.length) break;
    if (isAddress && length === bytes)
      addresses.push(writeAddress(message.subarray(dataAt, dataAt + length)));
    left -= 1;
    at = skipName(message, dataAt + length);
  }
  return addresses;
}

/** @returns where the name ends: behind its last label, or behind a pointer to the rest of it */
function skipName(message: Buffer, from: number): number {
  let at = from;
  while (at < message.length) {
    const length = message[at] as number;
    if (length === 0) return at + 1;
    if (length > labelBytesMax) return at + 2;
    at += 1 + length;
  }
  return at;
}

function writeAddress(bytes: Buffer): string {
  if (bytes.length === types[4].bytes) return bytes.join('.');
  return Array.from({ length: 8 }, (_, index) => bytes.readUInt16BE(2 * index).toString(16)).join(':');
}

/** A name server. */
export interface NameServer {
  address: string;
  port: number;
}
