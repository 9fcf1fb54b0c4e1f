/**
 * Reads one answer of HTTP/1.1 (RFC 9112) from the bytes of a connection, by no more than is kept of it. A message whose
 * end could be understood in two ways is refused, and what comes after the end is told: it belongs to nobody.
 *
 *   head (interim ones are skipped) → body: none | counted | chunked | until the connection ends → done
 *   wrong at any point;   enough, where the body is longer than what is kept
 */

import { fieldLine, type HeadCache, parseHead, type ResponseHead } from './response_head.ts';

/** Bytes of an answer's body that are kept, and of its head, interim answers included, that are taken. */
export const responseBodyBytesMax = 16_384;
export const responseHeadBytesMax = 16_384;
/** Bytes of one line between chunks, and of all that is not content in a chunked body, at most. */
const chunkLineBytesMax = 1_024;
const chunkingBytesMax = 131_072;
/** Pieces of a body that are kept as they came: of many small ones each costs a hundred times its bytes. */
export const responseChunksMax = 32;

/** `wrong` is not HTTP; `enough` an answer that goes on beyond what is kept. */
export type Reading = 'more' | 'done' | 'enough' | 'wrong';

type Expected = 'head' | 'content' | 'chunk-size' | 'chunk' | 'chunk-end' | 'trailer' | 'end' | 'nothing';

const headEnd = Buffer.from('\r\n\r\n');
const lineEnd = Buffer.from('\r\n');
const firstBytes = Buffer.from('HTTP/1.');

export class ResponseReader {
  readonly #memory: HeadCache;
  head: ResponseHead | null = null;
  /** Whether any byte has come. */
  hasBegun = false;
  #expected: Expected = 'head';
  /** The beginning of a head or a line whose end has not come. */
  #held: Buffer | null = null;
  #headBytes = 0;
  #chunkingBytes = 0;
  /** Bytes to come of what is counted. */
  #left = 0;
  #chunks: Buffer[] = [];
  #bodyBytes = 0;
  /** Whether a chunked body was said in a way that others understand differently. */
  #isOdd = false;

  constructor(memory: HeadCache) {
    this.#memory = memory;
  }

  /** Ready for the next answer. */
  reset(): void {
    this.head = null;
    this.hasBegun = false;
    this.#expected = 'head';
    this.#held = null;
    this.#headBytes = 0;
    this.#chunkingBytes = 0;
    this.#left = 0;
    if (this.#bodyBytes > 0) this.#chunks = [];
    this.#bodyBytes = 0;
    this.#isOdd = false;
  }

  /** What of the body has come, up to what is kept; null for nothing. */
  get body(): Buffer | null {
    if (this.#bodyBytes === 0) return null;
    return this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
  }

  /**
   * Whether the connection can carry another exchange, after `done`: the end was certain, nothing came after it, and
   * the other side did not say otherwise.
   */
  get isReusable(): boolean {
    return (
      this.#held === null &&
      !this.#isOdd &&
      this.head !== null &&
      this.head.body !== 'until-end' &&
      this.head.keepAliveMs !== 0
    );
  }

  /** Takes the next bytes. They are kept where an answer is short, so whoever gives them must not change them. */
  take(chunk: Buffer): Reading {
    this.hasBegun = true;
    const data = this.#held === null ? chunk : Buffer.concat([this.#held, chunk]);
    // What was searched before without an end.
    let from = this.#held === null ? 0 : Math.max(this.#held.length - 3, 0);
    this.#held = null;
    let at = 0;
    for (;;) {
      if (this.#expected === 'head') {
        const end = data.indexOf(headEnd, Math.max(at, from));
        if (end < 0) return this.#buffer(data, at, responseHeadBytesMax - this.#headBytes, isHttp(data, at));
        this.#headBytes += end + 4 - at;
        if (this.#headBytes > responseHeadBytesMax || !this.#takeHead(data, at, end)) return 'wrong';
        at = end + 4;
      } else if (this.#expected === 'content' || this.#expected === 'chunk') {
        const count = Math.min(this.#left, data.length - at);
        if (count > 0 && !this.#keep(data, at, at + count)) return 'enough';
        at += count;
        this.#left -= count;
        if (this.#left > 0) return 'more';
        this.#expected = this.#expected === 'content' ? 'nothing' : 'chunk-end';
      } else if (this.#expected === 'end') {
        if (at < data.length && !this.#keep(data, at, data.length)) return 'enough';
        return 'more';
      } else if (this.#expected === 'nothing') {
        if (at < data.length) this.#held = data.subarray(at);
        return 'done';
      } else {
        const end = data.indexOf(lineEnd, at);
        if (end < 0) return this.#buffer(data, at, chunkLineBytesMax, true);
        this.#chunkingBytes += end + 2 - at;
        if (end - at > chunkLineBytesMax || this.#chunkingBytes > chunkingBytesMax) return 'wrong';
        if (!this.#takeLine(data.toString('latin1', at, end))) return 'wrong';
        at = end + 2;
      }
      from = 0;
    }
  }

  /** The other side has ended the connection. @returns whether that was the end of the answer */
  end(): 'done' | 'short' | 'wrong' {
    if (this.#expected === 'end') return 'done';
    const isOdd = this.#expected === 'head' && this.#held !== null && !isHttp(this.#held, 0, true);
    return isOdd ? 'wrong' : 'short';
  }

  #buffer(data: Buffer, at: number, bytesMax: number, isRight: boolean): Reading {
    if (!isRight || data.length - at > bytesMax) return 'wrong';
    // A copy: the rest of a large piece would live as long as all of it.
    if (at < data.length) this.#held = at === 0 ? data : Buffer.from(data.subarray(at));
    return 'more';
  }

  /** @returns false where there is more than is kept */
  #keep(data: Buffer, from: number, to: number): boolean {
    const room = responseBodyBytesMax - this.#bodyBytes;
    const part = data.subarray(from, Math.min(to, from + room));
    if (this.#chunks.length === responseChunksMax) this.#chunks = [Buffer.concat(this.#chunks)];
    // A view of large memory would live as long as it.
    if (part.length > 0) this.#chunks.push(part.buffer.byteLength > 2_048 ? Buffer.from(part) : part);
    this.#bodyBytes += part.length;
    return to - from <= room;
  }

  #takeHead(data: Buffer, from: number, to: number): boolean {
    const memory = this.#memory;
    let { bytes, head } = memory;
    if (head === null || bytes === null || data.compare(bytes, 0, bytes.length, from, to) !== 0) {
      head = parseHead(data.toString('latin1', from, to));
      // Nobody asked for another protocol.
      if (head === null || head.status === 101) return false;
      if (head.status < 200) return true;
      bytes = Buffer.from(data.subarray(from, to));
      memory.bytes = bytes;
      memory.head = head;
    }
    this.head = head;
    if (head.body === 'chunked') this.#expected = 'chunk-size';
    else if (head.body === 'until-end') this.#expected = 'end';
    else {
      this.#left = head.body;
      this.#expected = 'content';
    }
    return true;
  }

  /** RFC 9112 section 7.1: what stands between chunks, and after the last. */
  #takeLine(line: string): boolean {
    if (this.#expected === 'chunk-end') {
      this.#expected = 'chunk-size';
      return line === '';
    }
    if (this.#expected === 'trailer') {
      if (line === '') {
        this.#expected = 'nothing';
        return true;
      }
      const name = fieldLine.exec(line)?.[1];
      if (name === undefined) return false;
      if (/^(?:content-length|transfer-encoding)$/i.test(name)) this.#isOdd = true;
      return true;
    }
    const [, size, extension] = chunkLine.exec(line) ?? [];
    if (size === undefined) return false;
    if (extension !== '' && !plainExtension.test(extension ?? '')) this.#isOdd = true;
    this.#left = Number.parseInt(size, 16);
    this.#expected = this.#left === 0 ? 'trailer' : 'chunk';
    return true;
  }
}

/** Whether bytes can be the beginning of an answer. @param isAll whether nothing comes after them */
function isHttp(data: Buffer, at: number, isAll = false): boolean {
  const count = Math.min(data.length - at, firstBytes.length);
  if (isAll && count < firstBytes.length) return false;
  return data.compare(firstBytes, 0, count, at, at + count) === 0;
}

const chunkLine = /^([\dA-Fa-f]{1,8})([\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?)$/;
const plainExtension = /^(?:;[!#$%&'*+\-.^_`|~\dA-Za-z]+(?:=[!#$%&'*+\-.^_`|~\dA-Za-z]+)?)+$/;
