/**
 * Static headers of a subscription: sent with every attempt, sealed at rest, and never shown again. Names that HTTP,
 * signatures or the deployment's own headers use are refused. Owns the columns `headers` and `header_names` of
 * `subscriptions`.
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import type { Transaction } from '../../database/database.ts';
import { escapePointer } from '../../http/json.ts';
import { bodyProblem, type ValidationError } from '../../http/problem.ts';

export type StaticHeaders = Readonly<Record<string, string>>;
/** A null value removes a header; the mask keeps it. Null instead of the object removes all headers. */
export type HeaderPatch = Readonly<Record<string, string | null>> | null;

export const staticHeadersMax = 10;
export const headerValueBytesMax = 1_024;
export const headerNameBytesMax = 64;
/** Shown instead of a value. */
export const maskedValue = '***';

const nameForm = /^[A-Za-z][A-Za-z0-9-]*$/;
/** Visible ASCII with inner spaces: no line breaks, and nothing that a proxy could read differently. */
const valueForm = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;

/** Names with a meaning in HTTP, proxies, tracing or signatures. */
const refusedNames = new RegExp(
  `^(?:${[
    ...['host', 'content-.*', 'connection', 'transfer-encoding', 'te', 'trailer', 'upgrade', 'expect'],
    ...['keep-alive', 'proxy-.*', 'user-agent', 'accept.*', 'date', 'via', 'forwarded', 'x-forwarded-.*'],
    ...['x-real-ip', 'cookie.*', 'set-cookie.*', 'origin', 'referer', 'range', 'if-.*', 'sec-.*', 'http2-.*'],
    ...['max-forwards', 'cache-control', 'pragma', 'age', 'warning', 'priority', 'early-data', 'alt-.*'],
    ...['traceparent', 'tracestate', 'baggage', 'digest', 'signature.*', 'webhook-.*', 'nuncio-.*', 'dpop'],
    ...['x-http-method.*', 'x-method-override'],
  ].join('|')})$`,
  'i',
);

/**
 * @param value the unchecked property
 * @param taken the deployment's own header names
 * @param isPatch whether null and the mask are allowed as values
 */
export function readStaticHeaders(
  value: unknown,
  taken: readonly string[],
  isPatch: boolean,
  add: (pointer: string, message: string, code?: string) => void,
): HeaderPatch {
  if (value === undefined || value === null) return null;
  if (typeof value !== 'object' || Array.isArray(value)) {
    add('/headers', 'must be an object of names and values');
    return null;
  }
  const entries = Object.entries(value);
  if (entries.length > 2 * staticHeadersMax) add('/headers', `must have at most ${staticHeadersMax} members`);
  const seen = new Set<string>();
  const lower = new Set(taken.map((name) => name.toLowerCase()));
  for (const [name, given] of entries.slice(0, 2 * staticHeadersMax)) {
    const pointer = `/headers/${escapePointer(name)}`;
    const key = name.toLowerCase();
    if (!nameForm.test(name) || name.length > headerNameBytesMax) {
      add(pointer, `must have a name of at most ${headerNameBytesMax} letters, digits and dashes`);
    } else if (refusedNames.test(name) || lower.has(key)) {
      add(pointer, 'is a reserved header name', 'header_refused');
    } else if (seen.has(key)) add(pointer, 'is named twice', 'header_refused');
    seen.add(key);
    if (isPatch && (given === null || given === maskedValue)) continue;
    const isValue = typeof given === 'string' && given.length <= headerValueBytesMax && valueForm.test(given);
    if (!isValue || given === maskedValue) {
      add(pointer, `must be 1 to ${headerValueBytesMax} visible ASCII characters, with spaces inside`);
    }
  }
  if (!isPatch && entries.length > staticHeadersMax)
    add('/headers', `must have at most ${staticHeadersMax} members`);
  return value as HeaderPatch;
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
      if (!kept.has(key)) throw headerError(name, 'has no stored value to keep', 'header_value_required');
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
        code: 'header_value_required',
      })),
    );
  }
  if (kept.size > staticHeadersMax)
    throw headerError('', `must have at most ${staticHeadersMax} members`, 'too_many_headers');
  const headers = Object.fromEntries([...kept.values()].map(({ name, value }) => [name, value]));
  await sql`
    update subscriptions set headers = ${sealHeaders(headers, id, sealer)}, header_names = ${Object.keys(headers)}::text[]
    where id = ${id}`.execute(tx);
}

function headerError(name: string, message: string, code: string) {
  const pointer = name === '' ? '/headers' : `/headers/${escapePointer(name)}`;
  return bodyProblem([{ pointer, message, code } satisfies ValidationError]);
}
