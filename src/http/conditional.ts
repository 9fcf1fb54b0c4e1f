/**
 * Conditional requests (RFC 9110 section 13): a resource's entity tag and time against what the client has.
 */

import { Problem } from './problem.ts';

/** What a representation is recognised by. */
export interface Validators {
  /** A strong entity tag, quotes included. */
  etag: string;
  /** Null where nothing has the time of all that is shown: then the tag alone tells. */
  modifiedAt: Date | null;
}

export interface ConditionHeaders {
  'if-match'?: string | undefined;
  'if-none-match'?: string | undefined;
  'if-modified-since'?: string | undefined;
  'if-unmodified-since'?: string | undefined;
}

/** `Last-Modified` and its like: whole seconds, always in GMT. */
export function httpDate(date: Date): string {
  return date.toUTCString();
}

/** Whether a GET or HEAD may be answered with 304 (sections 13.1.2 and 13.1.3). */
export function isNotModified(headers: ConditionHeaders, { etag, modifiedAt }: Validators): boolean {
  const known = headers['if-none-match'];
  if (known !== undefined) {
    // Weak comparison: a tag's `W/` is of no account here.
    return known.trim() === '*' || parseTags(known).some((tag) => tag.replace(/^W\//, '') === etag);
  }
  const since = parseDate(headers['if-modified-since']);
  return since !== undefined && modifiedAt !== null && seconds(modifiedAt) <= seconds(since);
}

/**
 * For a method that changes something (sections 13.1.1, 13.1.2 and 13.1.4).
 * @param isCurrent whether a strong tag that the client has is of the resource as it is
 * @throws Problem 412
 */
export function checkPreconditions(
  headers: ConditionHeaders,
  modifiedAt: Date,
  isCurrent: (tag: string) => boolean,
): void {
  const wanted = headers['if-match'];
  const unwanted = headers['if-none-match'];
  const since = parseDate(headers['if-unmodified-since']);
  if (wanted !== undefined) {
    // Strong comparison: a weak tag never fits.
    if (wanted.trim() !== '*' && !parseTags(wanted).some(isCurrent)) throw failed();
  } else if (since !== undefined && seconds(modifiedAt) > seconds(since)) throw failed();
  if (unwanted !== undefined && (unwanted.trim() === '*' || parseTags(unwanted).some(isCurrent)))
    throw failed();
}

function failed(): Problem {
  return new Problem(412, 'The resource is not as the request expects it: get it again.', {
    code: 'precondition-failed',
  });
}

/** Entity tags of a list; what has not their form is passed over. */
function parseTags(header: string): string[] {
  return header.match(/(?:W\/)?"[\x21\x23-\x7e\x80-\xff]*"/g) ?? [];
}

/** Section 5.6.7: only the form that is sent today; a date that cannot be read is as none. */
function parseDate(header: string | undefined): Date | undefined {
  if (
    header === undefined ||
    !/^[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT$/.test(header)
  ) {
    return undefined;
  }
  const date = new Date(header);
  return Number.isNaN(date.getTime()) ? undefined : date;
}

function seconds(date: Date): number {
  return Math.floor(date.getTime() / 1_000);
}
