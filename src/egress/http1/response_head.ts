/**
 * Parses the head of a response: status line and fields (RFC 9112 sections 4 and 5), body framing (section 6.3), and
 * how long the connection may stay open (section 9.3).
 */

export type ResponseHeaders = Record<string, string | string[]>;

/** A parsed response head. */
export interface ResponseHead {
  status: number;
  /** Names in lower case. */
  headers: ResponseHeaders;
  /** The headers as JSON. */
  headersText: string;
  /** Lines of header fields, of which a folded field has several. */
  fieldLines: number;
  /** Body length in bytes, or how its end is found. */
  body: number | 'chunked' | 'until-end';
  /** Milliseconds that the connection may stay idle; 0 to close it, null if the response does not say. */
  keepAliveMs: number | null;
}

/**
 * The last head and its bytes. Heads from one origin are often identical for a second or longer, byte for byte.
 */
export interface HeadCache {
  bytes: Buffer | null;
  head: ResponseHead | null;
}

// Names are tokens (RFC 9110 section 5.6.2). Every pattern matches in exactly one way, so none can backtrack.
const statusLine = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;
export const fieldLine = /^([!#$%&'*+\-.^_`|~\dA-Za-z]+):([\t\x20-\x7e\x80-\xff]*)$/;

/**
 * @param linesMax lines of header fields that are accepted
 * @returns null if the text is not the head of a response, or has more lines
 */
export function parseHead(text: string, linesMax: number): ResponseHead | null {
  const [first = '', ...lines] = text.split('\r\n', linesMax + 2);
  if (lines.length > linesMax) return null;
  const [, minor, statusText] = statusLine.exec(first) ?? [];
  if (minor === undefined) return null;
  const fields: string[] = [];
  for (const line of lines) {
    if (!isBlank(line, 0)) fields.push(line);
    // RFC 9112 section 5.2: a folded line continues the line before it.
    else if (fields.length > 0) fields[fields.length - 1] += ` ${trim(line)}`;
    else return null;
  }
  // Without a prototype, no field name means anything else. The compiler takes `__proto__` for a member.
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
    fieldLines: lines.length,
    body,
    // Folded lines are obsolete, and many recipients refuse them. The connection is not reused.
    keepAliveMs: fields.length < lines.length ? 0 : keepAliveOf(minor === '1', headers, body),
  };
}

function addField(headers: ResponseHeaders, name: string, value: string): void {
  const before = headers[name];
  if (before === undefined) headers[name] = value;
  else if (Array.isArray(before)) before.push(value);
  else headers[name] = [before, value];
}

/** A loop instead of a pattern: a pattern for trailing blanks can be made to backtrack. */
function trim(value: string): string {
  let [from, to] = [0, value.length];
  while (from < to && isBlank(value, from)) from += 1;
  while (to > from && isBlank(value, to - 1)) to -= 1;
  return value.slice(from, to);
}

function isBlank(value: string, at: number): boolean {
  return value[at] === ' ' || value[at] === '\t';
}

/** RFC 9112 section 6.3: the length of the body. @returns null if the framing is ambiguous or not valid */
function bodyOf(status: number, isVersion11: boolean, headers: ResponseHeaders): ResponseHead['body'] | null {
  const { 'transfer-encoding': coding, 'content-length': length } = headers;
  if (coding !== undefined && (length !== undefined || !isVersion11)) return null;
  if (length !== undefined && (typeof length !== 'string' || !/^\d{1,15}$/.test(length))) return null;
  if (status < 200 || status === 204 || status === 304) return 0;
  if (coding !== undefined) {
    const last = String(coding).split(',').at(-1) ?? '';
    return trim(last).toLowerCase() === 'chunked' ? 'chunked' : 'until-end';
  }
  return length === undefined ? 'until-end' : Number(length);
}

/** Milliseconds by which this side closes an idle connection before the peer would. */
const keepMarginMs = 2_000;

/**
 * RFC 9112 section 9.3, and the common `Keep-Alive` header, in which a server says how many seconds it keeps idle
 * connections.
 */
function keepAliveOf(
  isVersion11: boolean,
  headers: ResponseHeaders,
  body: ResponseHead['body'],
): number | null {
  const options = String(headers.connection ?? '')
    .toLowerCase()
    .split(',')
    .map(trim);
  if (body === 'until-end' || options.includes('close')) return 0;
  if (!isVersion11 && !options.includes('keep-alive')) return 0;
  // A length for a response that has no body: a peer that sends one would desynchronize the next response.
  const { 'content-length': length = '0', 'transfer-encoding': coding } = headers;
  if (body === 0 && (length !== '0' || coding !== undefined)) return 0;
  const seconds = /(?:^|[\t ,])timeout=(\d{1,6})(?:[\t ,]|$)/i.exec(String(headers['keep-alive'] ?? ''))?.[1];
  return seconds === undefined ? null : Math.max(Number(seconds) * 1_000 - keepMarginMs, 0);
}
