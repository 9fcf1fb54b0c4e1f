/**
 * Static headers of a subscription: sent with every attempt, sealed at rest, and never shown again. Names that HTTP,
 * signatures or the deployment's own headers use are refused. Owns the columns `headers` and `header_names` of
 * `subscriptions`.
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Transaction } from '../../database/database.ts';
import { bodyProblem, type ErrorList, escapePointer, type ValidationError } from '../../http/problem.ts';
import type { ProblemCode } from '../../http/problem_codes.ts';
import { reservedForSubscribers } from './delivery_headers.ts';

export type StaticHeaders = Readonly<Record<string, string>>;
/** A null value removes a header; the mask keeps it. Null instead of the object removes all headers. */
export type HeaderPatch = Readonly<Record<string, string | null>> | null;

export const staticHeadersMax = 10;
export const headerValueBytesMax = 1_024;
export const headerNameBytesMax = 64;
/** Shown instead of a value. */
export const maskedValue = '***';

/**
 * Adds an error for each header whose name is taken or named twice, and for values that only a patch may have. The schema of
 * the body has checked the form of names and values.
 * @param taken the deployment's own header names
 * @param isPatch whether the mask is allowed as a value
 */
export function checkStaticHeaders(
  headers: NonNullable<HeaderPatch>,
  taken: readonly string[],
  isPatch: boolean,
  errors: ErrorList,
): void {
  const seen = new Set<string>();
  const lower = new Set(taken.map((name) => name.toLowerCase()));
  for (const [name, value] of Object.entries(headers)) {
    const key = name.toLowerCase();
    const place = ['headers', name];
    if (reservedForSubscribers.test(name) || lower.has(key))
      errors.add(place, 'is a reserved header name', 'header-refused');
    else if (seen.has(key)) errors.add(place, 'is named twice', 'header-refused');
    else if (!isPatch && value === maskedValue)
      errors.add(place, 'must be a value, not the mask', 'header-value-required');
    seen.add(key);
  }
}

/** Seals the headers of one subscription. The subscription's id is bound to the sealed value. */
export function sealHeaders(headers: StaticHeaders, id: string, sealer: Sealer): Buffer | null {
  const pairs = Object.entries(headers);
  return pairs.length === 0 ? null : sealer.seal(JSON.stringify(pairs), `${id} headers`);
}

/** @throws Error if the sealed value cannot be opened */
export function openHeaders(row: { id: string; headers: Buffer | null }, sealer: Sealer): StaticHeaders {
  if (row.headers === null) return {};
  const pairs = JSON.parse(sealer.open(row.headers, `${row.id} headers`).toString()) as [string, string][];
  return Object.fromEntries(pairs);
}

/** Lines of a request, each with its CRLF. */
export function headerLines(headers: StaticHeaders): string {
  return Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('');
}

/**
 * Changes the headers of a subscription that the caller has locked. The subscription's next revision records the
 * names. Stored values are write-only: they are not sent to a new origin unless the owner provides them again.
 * @param isMoved whether the subscription's URL moves to another origin
 * @throws Problem 422
 */
export async function patchHeaders(
  tx: Transaction,
  id: string,
  patch: HeaderPatch | undefined,
  isMoved: boolean,
  sealer: Sealer,
): Promise<void> {
  if (patch === undefined && !isMoved) return;
  const { rows } = await sql<{ id: string; headers: Buffer | null }>`
    select id, headers from subscriptions where id = ${id}`.execute(tx);
  if (rows[0] === undefined) return;
  const kept = new Map(
    Object.entries(openHeaders(rows[0], sealer)).map(([name, value]) => [
      name.toLowerCase(),
      { name, value },
    ]),
  );
  const stale = new Set(kept.keys());
  if (patch === null) {
    kept.clear();
    stale.clear();
  }
  for (const [name, value] of Object.entries(patch ?? {})) {
    const key = name.toLowerCase();
    if (value === maskedValue) {
      if (!kept.has(key)) throw headerError(name, 'has no stored value to keep', 'header-value-required');
      continue;
    }
    stale.delete(key);
    if (value === null) kept.delete(key);
    else kept.set(key, { name, value });
  }
  if (isMoved && stale.size > 0) {
    throw bodyProblem(
      [...stale].map((key) => ({
        pointer: `/headers/${escapePointer(kept.get(key)?.name ?? key)}`,
        message: 'must be provided again, or removed with null, because the URL moves to another origin',
        code: 'header-value-required',
      })),
    );
  }
  if (kept.size > staticHeadersMax)
    throw headerError('', `must have at most ${staticHeadersMax} members`, 'too-many-headers');
  const headers = Object.fromEntries([...kept.values()].map(({ name, value }) => [name, value]));
  await sql`
    update subscriptions set headers = ${sealHeaders(headers, id, sealer)}, header_names = ${Object.keys(headers)}::text[]
    where id = ${id}`.execute(tx);
}

function headerError(name: string, message: string, code: ProblemCode) {
  const pointer = name === '' ? '/headers' : `/headers/${escapePointer(name)}`;
  return bodyProblem([{ pointer, message, code } satisfies ValidationError]);
}
