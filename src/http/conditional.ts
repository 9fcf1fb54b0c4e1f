/**
 * Conditional requests (RFC 9110 section 13): compares a resource's entity tag and modification time with the request's.
 */

import { Problem } from './problem.ts';

/** The validators of a representation. */
export interface Validators {
  /** A strong entity tag, including its quotes. */
  etag: string;
  /** Null if no single time covers everything that is shown. Then only the tag counts. */
  modifiedAt: Date | null;
}

export interface ConditionHeaders {
  'if-match'?: string | undefined;
  'if-none-match'?: string | undefined;
  'if-modified-since'?: string | undefined;
  'if-unmodified-since'?: string | undefined;
}

/** Formats `Last-Modified`: whole seconds, in GMT. */
export function httpDate(date: Date): string {
  return date.toUTCString();
}

/** Whether a GET or HEAD gets 304 (sections 13.1.2 and 13.1.3). */
export function isNotModified(headers: ConditionHeaders, { etag, modifiedAt }: Validators): boolean {
  const known = headers['if-none-match'];
  if (known !== undefined) {
    // Weak comparison ignores the prefix `W/`.
    return known.trim() === '*' || parseTags(known).some((tag) => tag.replace(/^W\//, '') === etag);
  }
  const since = parseDate(headers['if-modified-since']);
  return since !== undefined && modifiedAt !== null && seconds(modifiedAt) <= seconds(since);
}

/**
 * Checks the conditions of a request that changes the resource (sections 13.1.1, 13.1.2 and 13.1.4).
 * @param isCurrent whether a strong tag matches the current resource
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
    // Strong comparison: a weak tag never matches.
    if (wanted.trim() !== '*' && !parseTags(wanted).some(isCurrent)) throw failed();
  } else if (since !== undefined && seconds(modifiedAt) > seconds(since)) throw failed();
  if (unwanted !== undefined && (unwanted.trim() === '*' || parseTags(unwanted).some(isCurrent)))
    throw failed();
}

function failed(): Problem {
  return new Problem(412, 'The resource does not meet the conditions of the request. Read it again.', {
    code: 'precondition-failed',
  });
}

/** Returns the entity tags of a list, ignoring malformed ones. */
function parseTags(header: string): string[] {
  return header.match(/(?:W\/)?"[\x21\x23-\x7e\x80-\xff]*"/g) ?? [];
}

/** Section 5.6.7: reads only the preferred format, and ignores an invalid date. */
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
