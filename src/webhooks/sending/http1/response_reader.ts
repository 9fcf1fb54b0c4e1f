/**
 * Reads one answer of HTTP/1.1 (RFC 9112) from the bytes of a connection, by no more than is kept of it. A message whose
 * end could be understood in two ways is refused, and what comes after the end is told: it belongs to nobody.
 *
 *   head (interim ones are skipped) → body: none | counted | chunked | until the connection ends → done
 *   wrong at any point;   enough, where the body is longer than what is kept
 */

/** Bytes of an answer's body that are kept, and of its head, interim answers included, that are taken. */
export const responseBodyBytesMax = 16_384;
export const responseHeadBytesMax = 16_384;
/** Bytes of one line between chunks, and of all that is not content in a chunked body, at most. */
const chunkLineBytesMax = 1_024;
const chunkingBytesMax = 131_072;
/** Pieces of a body that are kept as they came: of many small ones each costs a hundred times its bytes. */
export const responseChunksMax = 32;

export type ResponseHeaders = Record<string, string | string[]>;

/** What the head of an answer says. */
export interface ResponseHead {
  status: number;
  /** By their names in lower case. */
  headers: ResponseHeaders;
  /** The same as JSON. */
  headersText: string;
  /** Bytes, or how the end is found. */
  body: number | 'chunked' | 'until-end';
  /** Milliseconds that the connection may be kept idle; 0 for not at all, null where nothing is said. */
  keepAliveMs: number | null;
}

/** The head read last: those of one origin are often the same, byte for byte, for a second or longer. */
export interface HeadCache {
  bytes: Buffer | null;
  head: ResponseHead | null;
}

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

// What may stand in a value; names are tokens (RFC 9110 section 5.6.2). Nothing here is matched in two ways.
const statusLine = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;
const fieldLine = /^([!#$%&'*+\-.^_`|~\dA-Za-z]+):([\t\x20-\x7e\x80-\xff]*)$/;

const chunkLine = /^([\dA-Fa-f]{1,8})([\t ]*(?:;[\t\x20-\x7e\x80-\xff]*)?)$/;
const plainExtension = /^(?:;[!#$%&'*+\-.^_`|~\dA-Za-z]+(?:=[!#$%&'*+\-.^_`|~\dA-Za-z]+)?)+$/;

/** @returns null for what is no head of an answer */
function parseHead(text: string): ResponseHead | null {
  const [first = '', ...lines] = text.split('\r\n');
  const [, minor, statusText] = statusLine.exec(first) ?? [];
  if (minor === undefined) return null;
  const fields: string[] = [];
  for (const line of lines) {
    if (!isBlank(line, 0)) fields.push(line);
    // RFC 9112 section 5.2: a folded line is part of the one before.
    else if (fields.length > 0) fields[fields.length - 1] += ` ${trim(line)}`;
    else return null;
  }
  const headers: ResponseHeaders = { __proto__: null } as never;
  for (const line of fields) {
    const [, name, value = ''] = fieldLine.exec(line) ?? [];
    if (name === undefined) return null;
    addField(headers, name.toLowerCase(), trim(value));
  }
  const status = Number(statusText);
  const body = bodyOf(status, minor === '1', headers);
  if (body === null) return null;
  return {
    status,
    headers,
    headersText: JSON.stringify(headers),
    body,
    // Folded lines are obsolete, and refused by many: who sends them is not trusted with another exchange.
    keepAliveMs: fields.length < lines.length ? 0 : keepAliveOf(minor === '1', headers, body),
  };
}

function addField(headers: ResponseHeaders, name: string, value: string): void {
  const before = headers[name];
  if (before === undefined) headers[name] = value;
  else if (Array.isArray(before)) before.push(value);
  else headers[name] = [before, value];
}

/** Not by an expression: one that looks for blanks at the end can be kept busy. */
function trim(value: string): string {
  let [from, to] = [0, value.length];
  while (from < to && isBlank(value, from)) from += 1;
  while (to > from && isBlank(value, to - 1)) to -= 1;
  return value.slice(from, to);
}

function isBlank(value: string, at: number): boolean {
  return value[at] === ' ' || value[at] === '\t';
}

/** RFC 9112 section 6.3: how long the body is. @returns null where it is said in two ways, or not to be understood */
function bodyOf(status: number, isNew: boolean, headers: ResponseHeaders): ResponseHead['body'] | null {
  const { 'transfer-encoding': coding, 'content-length': length } = headers;
  if (coding !== undefined && (length !== undefined || !isNew)) return null;
  if (length !== undefined && (typeof length !== 'string' || !/^\d{1,15}$/.test(length))) return null;
  if (status < 200 || status === 204 || status === 304) return 0;
  if (coding !== undefined) {
    const last = String(coding).split(',').at(-1) ?? '';
    return trim(last).toLowerCase() === 'chunked' ? 'chunked' : 'until-end';
  }
  return length === undefined ? 'until-end' : Number(length);
}

/** Milliseconds by which we let go of a connection before the other side would. */
const keepMarginMs = 2_000;

/** RFC 9112 section 9.3, and the `Keep-Alive` that many servers send: how many seconds they keep an idle connection. */
function keepAliveOf(isNew: boolean, headers: ResponseHeaders, body: ResponseHead['body']): number | null {
  const options = String(headers.connection ?? '')
    .toLowerCase()
    .split(',')
    .map(trim);
  if (body === 'until-end' || options.includes('close')) return 0;
  if (!isNew && !options.includes('keep-alive')) return 0;
  // What it announces where there can be no body would be taken for the next answer.
  const { 'content-length': length = '0', 'transfer-encoding': coding } = headers;
  if (body === 0 && (length !== '0' || coding !== undefined)) return 0;
  const seconds = /(?:^|[\t ,])timeout=(\d{1,6})(?:[\t ,]|$)/i.exec(String(headers['keep-alive'] ?? ''))?.[1];
  return seconds === undefined ? null : Math.max(Number(seconds) * 1_000 - keepMarginMs, 0);
}
