/**
 * Reads one HTTP/1.1 response (RFC 9112) incrementally, and keeps only the start of its body. It rejects any
 * message whose end is ambiguous, and detects bytes after the end, which belong to no response.
 *
 *   head (interim responses are skipped) → body: none | counted | chunked | until close → done
 *   any state → invalid;   body longer than what is kept, or in too many chunks → full
 */

import { GrowingBytes } from '../../shared/growing_bytes.ts';
import { fieldLine, type HeadCache, parseHead, type ResponseHead } from './response_head.ts';

/**
 * Bytes of a response body that are kept by default; bytes of a response head that are accepted, including interim responses.
 */
export const responseBodyBytesMax = 16_384;
const responseHeadBytesMax = 16_384;
/**
 * Lines of header fields, including those of interim responses. Each takes 170 bytes of memory for as long as the body hangs; as many short ones as fit into a head took a millisecond.
 */
const headFieldsMax = 200;
/** Interim responses before the response. Servers send one, `100 Continue` or `103 Early Hints`; each one more takes time of the thread of all deliveries. */
const interimHeadsMax = 8;
/**
 * Maximum bytes of one line between chunks, and of everything in a chunked body that is not content: 256 lines of ten bytes, and trailers. No common
 * server sends extensions.
 */
const chunkLineBytesMax = 1_024;
const chunkingBytesMax = 8_192;
/**
 * Chunks and trailers that are read. A host that sends its bytes one by one would keep the thread of all deliveries busy for 10 ms with each
 * response.
 */
const chunkLinesMax = 256;

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
  #pending: GrowingBytes | null = null;
  #headBytes = 0;
  #interimHeads = 0;
  #fieldsLeft = headFieldsMax;
  #chunkingBytes = 0;
  #chunkLines = 0;
  /** Remaining bytes of the counted content. */
  #left = 0;
  #body: GrowingBytes | null = null;
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
    this.#interimHeads = 0;
    this.#fieldsLeft = headFieldsMax;
    this.#chunkingBytes = 0;
    this.#chunkLines = 0;
    this.#left = 0;
    this.#body = null;
    this.#isAmbiguous = false;
  }

  /** The body so far, up to what is kept; null if empty. */
  get body(): Buffer | null {
    return this.#body?.exactBytes ?? null;
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
    const pending = this.#pending;
    // Bytes that were searched before without finding the end.
    let from = pending === null ? 0 : Math.max(pending.length - 3, 0);
    pending?.append(chunk);
    const data = pending?.bytes ?? chunk;
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
        if (this.#left > 0) return this.#buffer(data, at, 0, true);
        this.#expected = this.#expected === 'content' ? 'nothing' : 'chunk-end';
      } else if (this.#expected === 'end') {
        if (at < data.length && !this.#keep(data, at, data.length)) return 'full';
        return this.#buffer(data, data.length, 0, true);
      } else if (this.#expected === 'nothing') {
        this.#pending = at < data.length ? new GrowingBytes(data.subarray(at)) : null;
        return 'done';
      } else if (this.#expected === 'chunk-end') {
        if (data.length - at < 2)
          return this.#buffer(data, at, 1, (data[at] ?? carriageReturn) === carriageReturn);
        if (data[at] !== carriageReturn || data[at + 1] !== lineFeed) return 'invalid';
        at += 2;
        this.#expected = 'chunk-size';
      } else {
        const end = data.indexOf(lineEnd, Math.max(at, from));
        if (end < 0) {
          const isValid = !hasBareLineFeed(data, Math.max(at, from));
          return this.#buffer(data, at, chunkLineBytesMax, isValid);
        }
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
    const isNotHttp =
      this.#expected === 'head' && this.#pending !== null && !isHttp(this.#pending.bytes, 0, true);
    return isNotHttp ? 'invalid' : 'incomplete';
  }

  /** Keeps what has arrived of a head or line. */
  #buffer(data: Buffer, at: number, bytesMax: number, isValid: boolean): Reading {
    if (!isValid || data.length - at > bytesMax) return 'invalid';
    if (at === data.length) this.#pending = null;
    // A copy, because a view would keep the whole chunk alive.
    else if (at > 0) this.#pending = new GrowingBytes(Buffer.from(data.subarray(at)));
    else this.#pending ??= new GrowingBytes(data);
    return 'more';
  }

  /** @returns false if there is more than what is kept */
  #keep(data: Buffer, from: number, to: number): boolean {
    const room = this.#bodyBytesMax - (this.#body?.length ?? 0);
    const end = Math.min(to, from + room);
    if (this.#body !== null) this.#body.append(data, from, end);
    else if (end > from) {
      const part = data.subarray(from, end);
      // A view would keep the large underlying buffer alive.
      this.#body = new GrowingBytes(part.buffer.byteLength > 2_048 ? Buffer.from(part) : part);
    }
    return to - from <= room;
  }

  #takeHead(data: Buffer, from: number, to: number): boolean {
    const cache = this.#headCache;
    let { bytes, head } = cache;
    if (head === null || bytes === null || data.compare(bytes, 0, bytes.length, from, to) !== 0) {
      head = parseHead(data.toString('latin1', from, to), this.#fieldsLeft);
      // No request asked for another protocol.
      if (head === null || head.status === 101) return false;
      if (head.status < 200) {
        this.#fieldsLeft -= head.fieldLines;
        this.#interimHeads += 1;
        return this.#interimHeads <= interimHeadsMax;
      }
      bytes = Buffer.from(data.subarray(from, to));
      cache.bytes = bytes;
      cache.head = head;
    } else if (head.fieldLines > this.#fieldsLeft) return false;
    this.head = head;
    if (head.body === 'chunked') this.#expected = 'chunk-size';
    else if (head.body === 'until-end') this.#expected = 'end';
    else {
      this.#left = head.body;
      this.#expected = 'content';
    }
    return true;
  }

  /** RFC 9112 section 7.1: the sizes of chunks, and the trailers. */
  #takeLine(line: string): boolean {
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
