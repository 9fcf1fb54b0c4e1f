/** What `POST /events` takes: one event or a list of them, read and checked. */

import { isUtf8 } from 'node:buffer';
import { mustNameAccount, readAccountName } from '../accounts/account_name.ts';
import { newId } from '../crypto/ids.ts';
import { jsonDepthMax } from '../http/json.ts';
import { type BodyFault, bodyProblem, Problem } from '../http/problem.ts';
import { activeTraceparent } from '../http/tracing.ts';
import type { Catalogue } from './catalogue.ts';

/** Events of one request at most. */
export const batchEventsMax = 1_000;
/** Bytes of one event's body at most. */
export const eventBodyBytesMax = 262_144;
/** Bytes of one request at most. */
export const batchBytesMax = 16_777_216;
/** Characters of an id that a publisher chose, at most. */
const idCharactersMax = 255;
/** Faults told of in one answer at most. */
export const faultsMax = 100;

/** One event as it goes into the database. */
export interface PublishedEvent {
  id: string;
  /** Empty until the account of the external id is found or made (store.ts). */
  accountId: string;
  /** Where the publisher named the account by its external id. */
  externalId?: string;
  kind: string;
  /** The bytes to be sent. */
  body: Buffer;
  /** Of the span in which it was published; null where that is not recorded. */
  traceparent: string | null;
}

/**
 * What is sent is written anew from what was read and checked, with NUL and halves of surrogate pairs escaped, so a
 * batch need not be read as strictly as what is stored field by field; and it may be large.
 */
export function parseBatch(bytes: Buffer): unknown {
  if (bytes.length > 0 && isUtf8(bytes)) {
    const text = bytes.toString();
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {}
    if (value !== undefined) {
      if (longNumber.test(text)) checkNumbers(text);
      return value;
    }
  }
  throw new Problem(400, 'The body is not JSON.', { code: 'not-json' });
}

/** What could be a number that is another one when it has been read. */
const longNumber = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})/;

/** @throws Problem 422 for a number that would be sent as another one: an identifier of 64 bits, say, or `1e400` */
function checkNumbers(text: string): void {
  let wrong: string | undefined;
  const look = (_name: string, value: unknown, { source = '' }: { source?: string } = {}) => {
    if (typeof value !== 'number' || Number.isSafeInteger(value)) return value;
    if (!Number.isFinite(value) || (/^-?[0-9]+$/.test(source) && String(value) !== source)) wrong ??= source;
    return value;
  };
  try {
    JSON.parse(text, look);
  } catch (cause) {
    // Nested deeper than the stack.
    throw new Problem(422, 'The body is nested too deep.', { code: 'too-deep', cause });
  }
  if (wrong === undefined) return;
  const message = `has the number ${wrong.slice(0, 40)}, which cannot be kept as it is written: send it as a text`;
  throw bodyProblem([{ pointer: '', message, code: 'inexact-number' }]);
}

export interface Batch {
  events: PublishedEvent[];
  /** Indexes of those whose id the publisher chose. */
  chosen: number[];
}

/** @throws Problem 422 with every fault, 413 for an event that is too large */
export function readBatch(body: unknown, catalogue: Catalogue): Batch {
  const isArray = Array.isArray(body);
  const items: unknown[] = isArray ? body : [body];
  if (items.length === 0) throw bodyProblem([{ pointer: '', message: 'must have at least one event' }]);
  if (items.length > batchEventsMax) {
    throw bodyProblem([
      { pointer: '', message: `may have ${batchEventsMax} events at most`, code: 'batch-too-large' },
    ]);
  }
  const faults: BodyFault[] = [];
  const traceparent = activeTraceparent();
  const batch: Batch = { events: [], chosen: [] };
  for (const [index, item] of items.entries()) {
    const event = readEvent(item, isArray ? `/${index}` : '', catalogue, traceparent, faults);
    if (faults.length >= faultsMax) break;
    if (event === undefined) continue;
    if (event.id === '') event.id = newId();
    else batch.chosen.push(index);
    batch.events.push(event);
  }
  if (faults.length > 0) throw bodyProblem(faults);
  return batch;
}

const fields = new Set(['kind', 'account', 'body', 'id']);

/**
 * @param pointer of the event in the body
 * @param faults to which what is wrong is added
 * @returns the event, its id empty where the publisher chose none
 * @throws Problem 413 for a body that is too large
 */
export function readEvent(
  item: unknown,
  pointer: string,
  catalogue: Catalogue,
  traceparent: string | null,
  faults: BodyFault[],
): PublishedEvent | undefined {
  const count = faults.length;
  const fault = (at: string, message: string, code?: string) => {
    faults.push({ pointer: pointer + at, message, ...(code === undefined ? {} : { code }) });
  };
  if (typeof item !== 'object' || item === null || Array.isArray(item)) {
    fault('', 'must be an object');
    return undefined;
  }
  const { kind, account, body, id } = item as Record<string, unknown>;
  for (const name of Object.keys(item)) {
    if (!fields.has(name))
      fault(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'is not a known property');
  }
  const owner = readAccountName(account);
  if (owner === undefined) fault('/account', mustNameAccount);
  if (id !== undefined && !isEventId(id))
    fault('/id', `must be 1 to ${idCharactersMax} visible ASCII characters`);
  const declared = typeof kind === 'string' ? catalogue.kinds.get(kind) : undefined;
  if (declared === undefined || declared.isBuiltIn) fault('/kind', 'must be a declared kind', 'unknown-kind');
  else if (body === undefined) fault('/body', 'is required');
  else if (isDeeper(body, jsonDepthMax)) {
    fault('/body', `may be nested ${jsonDepthMax} deep at most`, 'too-deep');
  } else faults.push(...catalogue.faultsOf(declared.name, body, `${pointer}/body`));
  if (faults.length > count || declared === undefined || owner === undefined) return undefined;
  const bytes = Buffer.from(JSON.stringify(body));
  if (bytes.length > eventBodyBytesMax) {
    throw new Problem(413, `The body of an event may have ${eventBodyBytesMax} bytes at most.`, {
      code: 'event-too-large',
      errors: [{ pointer: `${pointer}/body`, message: `may have ${eventBodyBytesMax} bytes at most` }],
    });
  }
  return {
    id: (id as string | undefined) ?? '',
    accountId: owner.id ?? '',
    ...(owner.externalId === undefined ? {} : { externalId: owner.externalId }),
    kind: declared.name,
    body: bytes,
    traceparent,
  };
}

/** What is nested without end would be read by subscribers, and by the delivery log, with a stack that has one. */
function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (depth === 0) return true;
  const members = Array.isArray(value) ? value : Object.values(value);
  return members.some((member) => isDeeper(member, depth - 1));
}

/** Whether it can be the id of an event: what a publisher may choose; what the server makes is of this form, too. */
export function isEventId(id: unknown): id is string {
  return typeof id === 'string' && /^[\x21-\x7e]+$/.test(id) && id.length <= idCharactersMax;
}
