/** The request body of `POST /events`, one event or a list: parsing and validation. */

import { isUtf8 } from 'node:buffer';
import { mustNameAccount, readAccountName } from '../accounts/account_name.ts';
import { newId } from '../crypto/ids.ts';
import { jsonDepthMax } from '../http/json.ts';
import { bodyProblem, Problem, type ValidationError } from '../http/problem.ts';
import type { ProblemCode } from '../http/problem_codes.ts';
import { activeTraceparent } from '../http/tracing.ts';
import type { Catalogue } from './catalogue.ts';
import { itemTexts, longNumbers } from './json_text.ts';

/** Maximum number of events in a request. */
export const batchEventsMax = 1_000;
/** Maximum size of an event's body. */
export const eventBodyBytesMax = 262_144;
/** Maximum length of an event in a large request, as it was sent: before it is parsed, which takes long. */
const eventTextMax = 4 * eventBodyBytesMax;
/** Maximum size of a request. */
export const batchBytesMax = 16_777_216;
/** Maximum length of a chosen id. */
const idCharactersMax = 255;
/** Maximum number of errors in a response. */
export const errorsMax = 100;

/** An event as it is stored. */
export interface PublishedEvent {
  id: string;
  /** Empty until the account of the external id is found or created (store.ts). */
  accountId: string;
  /** Set if the publisher named the account by its external id. */
  externalId?: string;
  kind: string;
  /** The version of the body: the newest of its kind; null if the kind has none. */
  version: string | null;
  /** The bytes that subscribers receive. */
  body: Buffer;
  /** Trace context of the publishing request (W3C `traceparent`). Null if tracing is off. */
  traceparent: string | null;
}

/**
 * Parses a request body. Bodies of events are serialized again from the parsed values, with NUL and lone surrogates escaped.
 * Therefore this parser is less strict than the one for resources, and faster on large bodies.
 * @throws Problem 400 if it is not JSON, 422 for a number that JavaScript cannot represent
 */
export function parseBatch(bytes: Buffer): unknown {
  return parseText(textOf(bytes));
}

/** Waits for a turn of this thread, if so many bytes need one. */
export type TakeTurn = (bytes: number) => Promise<void> | undefined;

/** Bytes of events that one turn reads, and one event more. */
const turnBytes = eventBodyBytesMax / 2;

/** Counts bytes, and waits for a turn when they are many. */
function turnsOf(takeTurn: TakeTurn): TakeTurn {
  let waiting = 0;
  return (bytes) => {
    waiting += bytes;
    if (waiting < turnBytes) return undefined;
    const turn = takeTurn(waiting);
    waiting = 0;
    return turn;
  };
}

/** The same for a body that may have a thousand events. */
export async function parseInTurns(bytes: Buffer, takeTurn: TakeTurn): Promise<unknown> {
  const text = textOf(bytes);
  const items = bytes.length < turnBytes ? undefined : itemTexts(text, batchEventsMax);
  if (items === undefined) {
    if (text.length > eventTextMax) throw text.trimStart().startsWith('[') ? notJson() : eventTooLarge('');
    return parseText(text);
  }
  if (items.length > batchEventsMax) throw batchTooLarge();
  const nextTurn = turnsOf(takeTurn);
  const values: unknown[] = [];
  for (const [index, item] of items.entries()) {
    if (item.length > eventTextMax) throw eventTooLarge(`/${index}`);
    await nextTurn(item.length);
    values.push(parseText(item));
  }
  return values;
}

function textOf(bytes: Buffer): string {
  if (!isUtf8(bytes)) throw notJson();
  return bytes.toString();
}

function parseText(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw notJson();
  }
  if (longNumber.test(`[${text}`)) checkNumbers(text);
  return value;
}

function batchTooLarge(): Problem {
  const message = `must have at most ${batchEventsMax} events`;
  return bodyProblem([{ pointer: '', message, code: 'batch-too-large' }]);
}

/** @param pointer of the event */
export function eventTooLarge(pointer: string): Problem {
  return new Problem(413, `The body of an event must have at most ${eventBodyBytesMax} bytes.`, {
    code: 'event-too-large',
    errors: [{ pointer: `${pointer}/body`, message: `must have at most ${eventBodyBytesMax} bytes` }],
  });
}

function notJson(): Problem {
  return new Problem(400, 'The body is not JSON.', { code: 'not-json' });
}

/** Matches text that may contain a number that JavaScript cannot represent exactly. */
const longNumber = /[:[,]\s*-?[0-9][0-9.]*(?:[0-9]{15}|[eE]\+?[0-9]{2})/;

/** @throws Problem 422 for a number that would change when it is sent, such as a 64-bit id or `1e400` */
function checkNumbers(text: string): void {
  for (const written of longNumbers(text)) {
    const value = Number(written);
    if (Number.isFinite(value) && (!/^-?[0-9]+$/.test(written) || String(value) === written)) continue;
    const message = `has the number ${written.slice(0, 40)}, which JavaScript cannot represent: send it as a string`;
    throw bodyProblem([{ pointer: '', message, code: 'inexact-number' }]);
  }
}

export interface Batch {
  events: PublishedEvent[];
  /** Indexes of the events with a chosen id. */
  chosen: number[];
}

/** @throws Problem 422 with all errors, 413 for an event that is too large */
export async function readBatch(body: unknown, catalogue: Catalogue, takeTurn: TakeTurn): Promise<Batch> {
  const isArray = Array.isArray(body);
  const items: unknown[] = isArray ? body : [body];
  if (items.length === 0) throw bodyProblem([{ pointer: '', message: 'must contain at least one event' }]);
  if (items.length > batchEventsMax) throw batchTooLarge();
  const errors: ValidationError[] = [];
  const traceparent = activeTraceparent();
  const batch: Batch = { events: [], chosen: [] };
  const nextTurn = turnsOf(takeTurn);
  for (const [index, item] of items.entries()) {
    const event = readEvent(item, isArray ? `/${index}` : '', catalogue, traceparent, errors);
    if (errors.length >= errorsMax) break;
    if (event === undefined) continue;
    if (event.id === '') event.id = newId();
    else batch.chosen.push(index);
    batch.events.push(event);
    await nextTurn(event.body.length);
  }
  if (errors.length > 0) throw bodyProblem(errors);
  return batch;
}

const fields = new Set(['kind', 'account', 'body', 'id']);

/**
 * Validates one event.
 * @param pointer JSON pointer of the event in the request body
 * @param errors receives the errors
 * @returns the event, with an empty id if the publisher chose none; undefined if it has errors
 * @throws Problem 413 for a body that is too large
 */
export function readEvent(
  item: unknown,
  pointer: string,
  catalogue: Catalogue,
  traceparent: string | null,
  errors: ValidationError[],
): PublishedEvent | undefined {
  const count = errors.length;
  const addError = (at: string, message: string, code?: ProblemCode) => {
    errors.push({ pointer: pointer + at, message, ...(code === undefined ? {} : { code }) });
  };
  if (typeof item !== 'object' || item === null || Array.isArray(item)) {
    addError('', 'must be an object');
    return undefined;
  }
  const { kind, account, body, id } = item as Record<string, unknown>;
  for (const name of Object.keys(item)) {
    if (!fields.has(name))
      addError(`/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`, 'is not a known property');
  }
  const owner = readAccountName(account);
  if (owner === undefined) addError('/account', mustNameAccount);
  if (id !== undefined && !isEventId(id))
    addError('/id', `must be 1 to ${idCharactersMax} visible ASCII characters`);
  const declared = typeof kind === 'string' ? catalogue.kinds.get(kind) : undefined;
  if (declared === undefined || declared.isBuiltIn)
    addError('/kind', 'must be a declared kind', 'unknown-kind');
  else if (body === undefined) addError('/body', 'is required');
  else if (isDeeper(body, jsonDepthMax)) {
    addError('/body', `must be nested at most ${jsonDepthMax} levels deep`, 'too-deep');
  } else errors.push(...catalogue.errorsOf(declared.name, body, `${pointer}/body`));
  if (errors.length > count || declared === undefined || owner === undefined) return undefined;
  const bytes = Buffer.from(JSON.stringify(body));
  if (bytes.length > eventBodyBytesMax) throw eventTooLarge(pointer);
  return {
    id: (id as string | undefined) ?? '',
    accountId: owner.id ?? '',
    ...(owner.externalId === undefined ? {} : { externalId: owner.externalId }),
    kind: declared.name,
    version: declared.version ?? null,
    body: bytes,
    traceparent,
  };
}

/** Whether a value is nested deeper than the limit. Parsers of subscribers and of the delivery log have a limited stack. */
function isDeeper(value: unknown, depth: number): boolean {
  if (typeof value !== 'object' || value === null) return false;
  if (depth === 0) return true;
  const members = Array.isArray(value) ? value : Object.values(value);
  return members.some((member) => isDeeper(member, depth - 1));
}

/** Whether a value can be the id of an event. Ids that the server generates have this form, too. */
export function isEventId(id: unknown): id is string {
  return typeof id === 'string' && /^[\x21-\x7e]+$/.test(id) && id.length <= idCharactersMax;
}
