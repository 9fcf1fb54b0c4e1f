/**
 * Reads one HTTP/1.1 response (RFC 9112) incrementally, and keeps only the start of its body. It rejects any
 * message whose end is ambiguous, and detects bytes after the end, which belong to no response.
 *
 *   head (interim responses are skipped) → body: none | counted | chunked | until close → done
 *   any state → invalid;   body longer than what is kept, or in too many chunks → full
 */

import { fieldLine, type HeadCache, parseHead, type ResponseHead } from './response_head.ts';

/**
 * Bytes of a response body that are kept by default; bytes of a response head that are accepted, including interim responses.
 */
export const responseBodyBytesMax = 16_384;
const responseHeadBytesMax = 16_384;
/** Maximum bytes of one line between chunks, and of everything in a chunked body that is not content. */
const chunkLineBytesMax = 1_024;
const chunkingBytesMax = 131_072;
/**
 * Lines of a chunked body that are read, two for each chunk. A host that sends its bytes one by one would keep the thread of all deliveries
 * busy for 10 ms with each response.
 */
const chunkLinesMax = 512;
/**
 * Number of separate body buffers before they are merged: each small buffer costs a hundred times its bytes.
 */
const responseChunksMax = 32;

/** `invalid`: not HTTP. `full`: the body is longer than what is kept, or has too many chunks: the rest is not read. */
export type Reading = 'more' | 'done' | 'full' | 'invalid';

type Expected = 'head' | 'content' | 'chunk-size' | 'chunk' | 'chunk-end' | 'trailer' | 'end' | 'nothing';

const headEnd = Buffer.from('\r\n\r\n');
const lineEnd = Buffer.from('\r\n');
const carriageReturn = 13;
const lineFeed = 10;
const firstBytes = Buffer.from('HTTP/1.');

export class ResponseReader {
  readonly #headCache: HeadCache;
  head: ResponseHead | null = null;
  /** Whether any byte has arrived. */
  hasBegun = false;
  #expected: Expected = 'head';
  /** The start of a head or line whose end has not arrived. */
  #pending: Buffer | null = null;
  #headBytes = 0;
  #chunkingBytes = 0;
  #chunkLines = 0;
  /** Remaining bytes of the counted content. */
  #left = 0;
  #chunks: Buffer[] = [];
  #bodyBytes = 0;
  #bodyBytesMax = responseBodyBytesMax;
  /** Whether the chunked framing could be read differently by another recipient. */
  #isAmbiguous = false;

  constructor(headCache: HeadCache) {
    this.#headCache = headCache;
  }

  /** Prepares for the next response. @param bodyBytesMax bytes of its body that are kept */
  reset(bodyBytesMax = responseBodyBytesMax): void {
    this.#bodyBytesMax = bodyBytesMax;
    this.head = null;
    this.hasBegun = false;
    this.#expected = 'head';
    this.#pending = null;
    this.#headBytes = 0;
    this.#chunkingBytes = 0;
    this.#chunkLines = 0;
    this.#left = 0;
    if (this.#bodyBytes > 0) this.#chunks = [];
    this.#bodyBytes = 0;
    this.#isAmbiguous = false;
  }

  /** The body so far, up to what is kept; null if empty. */
  get body(): Buffer | null {
    if (this.#bodyBytes === 0) return null;
    return this.#chunks.length === 1 ? (this.#chunks[0] as Buffer) : Buffer.concat(this.#chunks);
  }

  /**
   * Whether the connection can carry another exchange after `done`: the end was unambiguous, no bytes followed, and
   * the peer did not ask to close.
   */
  get isReusable(): boolean {
    return (
      this.#pending === null &&
      !this.#isAmbiguous &&
      this.head !== null &&
      this.head.body !== 'until-end' &&
      this.head.keepAliveMs !== 0
    );
  }

  /** Takes the next bytes. Short bodies keep a reference to the chunk, so the caller must not modify it. */
  take(chunk: Buffer): Reading {
    this.hasBegun = true;
    const data = this.#pending === null ? chunk : Buffer.concat([this.#pending, chunk]);
    // Bytes that were searched before without finding the end.
    let from = this.#pending === null ? 0 : Math.max(this.#pending.length - 3, 0);
    this.#pending = null;
    let at = 0;
    for (;;) {
      if (this.#expected === 'head') {
        const end = data.indexOf(headEnd, Math.max(at, from));
        if (end < 0) {
          const isValid = isHttp(data, at) && !hasBareLineFeed(data, Math.max(at, from));
          return this.#buffer(data, at, responseHeadBytesMax - this.#headBytes, isValid);
        }
        this.#headBytes += end + 4 - at;
        if (this.#headBytes > responseHeadBytesMax || !this.#takeHead(data, at, end)) return 'invalid';
        at = end + 4;
      } else if (this.#expected === 'content' || this.#expected === 'chunk') {
        const count = Math.min(this.#left, data.length - at);
        if (count > 0 && !this.#keep(data, at, at + count)) return 'full';
        at += count;
        this.#left -= count;
        if (this.#left > 0) return 'more';
        this.#expected = this.#expected === 'content' ? 'nothing' : 'chunk-end';
      } else if (this.#expected === 'end') {
        if (at < data.length && !this.#keep(data, at, data.length)) return 'full';
        return 'more';
      } else if (this.#expected === 'nothing') {
        if (at < data.length) this.#pending = data.subarray(at);
        return 'done';
      } else {
        const end = data.indexOf(lineEnd, at);
        if (end < 0) return this.#buffer(data, at, chunkLineBytesMax, this.#mayBeLine(data, at));
        this.#chunkingBytes += end + 2 - at;
        if (end - at > chunkLineBytesMax || this.#chunkingBytes > chunkingBytesMax) return 'invalid';
        this.#chunkLines += 1;
        if (this.#chunkLines > chunkLinesMax) return 'full';
        if (!this.#takeLine(data.toString('latin1', at, end))) return 'invalid';
        at = end + 2;
      }
      from = 0;
    }
  }

  /** The peer closed the connection. @returns whether this ended the response */
  end(): 'done' | 'incomplete' | 'invalid' {
    if (this.#expected === 'end') return 'done';
    const isNotHttp = this.#expected === 'head' && this.#pending !== null && !isHttp(this.#pending, 0, true);
    return isNotHttp ? 'invalid' : 'incomplete';
  }

  /** Whether more bytes can complete a line, so that a wrong one does not wait for them. */
  #mayBeLine(data: Buffer, at: number): boolean {
    if (this.#expected === 'chunk-end')
      return data.length - at <= 1 && (data[at] ?? carriageReturn) === carriageReturn;
    return !hasBareLineFeed(data, at);
  }

  #buffer(data: Buffer, at: number, bytesMax: number, isValid: boolean): Reading {
    if (!isValid || data.length - at > bytesMax) return 'invalid';
    // A copy, because a view would keep the whole chunk alive.
    if (at < data.length) this.#pending = at === 0 ? data : Buffer.from(data.subarray(at));
    return 'more';
  }

  /** @returns false if there is more than what is kept */
  #keep(data: Buffer, from: number, to: number): boolean {
    const room = this.#bodyBytesMax - this.#bodyBytes;
    const part = data.subarray(from, Math.min(to, from + room));
    if (this.#chunks.length === responseChunksMax) this.#chunks = [Buffer.concat(this.#chunks)];
    // A view would keep the large underlying buffer alive.
    if (part.length > 0) this.#chunks.push(part.buffer.byteLength > 2_048 ? Buffer.from(part) : part);
    this.#bodyBytes += part.length;
    return to - from <= room;
  }

  #takeHead(data: Buffer, from: number, to: number): boolean {
    const cache = this.#headCache;
    let { bytes, head } = cache;
    if (head === null || bytes === null || data.compare(bytes, 0, bytes.length, from, to) !== 0) {
      head = parseHead(data.toString('latin1', from, to));
      // No request asked for another protocol.
      if (head === null || head.status === 101) return false;
      if (head.status < 200) return true;
      bytes = Buffer.from(data.subarray(from, to));
      cache.bytes = bytes;
      cache.head = head;
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

  /** RFC 9112 section 7.1: the lines between chunks, and the trailers. */
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
      if (/^(?:content-length|transfer-encoding)$/i.test(name)) this.#isAmbiguous = true;
      return true;
    }
    const [, size, extension] = chunkLine.exec(line) ?? [];
    if (size === undefined) return false;
    if (extension !== '' && !plainExtension.test(extension ?? '')) this.#isAmbiguous = true;
    this.#left = Number.parseInt(size, 16);
    this.#expected = this.#left === 0 ? 'trailer' : 'chunk';
    return true;
  }
}

/** A line feed without a carriage return ends no line: the end of a head that has one might never come. */
function hasBareLineFeed(data: Buffer, from: number): boolean {
  for (let at = data.indexOf(lineFeed, from); at >= 0; at = data.indexOf(lineFeed, at + 1)) {
    if (data[at - 1] !== carriageReturn) return true;
  }
  return false;
}

/** Whether bytes can be the start of a response. @param isAll whether no more bytes follow */
function isHttp(data: Buffer, at: number, isAll = false): boolean {
  const count = Math.min(data.length - at, firstBytes.length);
  if (isAll && count < firstBytes.length) return false;
  return data.compare(firstBytes, 0, count, at, at + count) === 0;
}

const chunkLine = /^([\dA-Fa-f]{1,8})([\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?)$/;
const plainExtension = /^(?:;[!#$%&'*+\-.^_`|~\dA-Za-z]+(?:=[!#$%&'*+\-.^_`|~\dA-Za-z]+)?)+$/;
