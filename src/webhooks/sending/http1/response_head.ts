/**
 * The head of a response: status line and fields (RFC 9112 sections 4 and 5), how the body ends (section 6.3), and how long
 * the connection may stay open (section 9.3).
 */

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

// What may stand in a value; names are tokens (RFC 9110 section 5.6.2). Nothing here is matched in two ways.
const statusLine = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: [\t\x20-\x7e\x80-\xff]*)?$/;
export const fieldLine = /^([!#$%&'*+\-.^_`|~\dA-Za-z]+):([\t\x20-\x7e\x80-\xff]*)$/;

/** @returns null for what is no head of an answer */
export function parseHead(text: string): ResponseHead | null {
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
