/** Validates the events that an application appends, and serializes their bodies. */

import { randomUUID } from 'node:crypto';

/** Maximum size of a body as JSON. The server has the same limit. */
const bodyBytesMax = 262_144;
/** Maximum length of a kind, an event id, an account id and an external id. */
const nameCharactersMax = 255;

/** The id of an account, or the user id of your application as `external_id`. An integer is kept as its decimal text. */
export type AccountName = string | { readonly external_id: string | number };

export interface NewEvent {
  /** A kind that the server's `nuncio.config.ts` declares, such as `note.created`. */
  kind: string;
  /** The account that the event belongs to. */
  account: AccountName;
  /** Must match the schema of the kind. Maximum size: 262,144 bytes as JSON. */
  body: unknown;
  /** 1 to 255 visible ASCII characters. Appending the same id and content again has no effect. Default: a new UUID. */
  id?: string | undefined;
}

/** A stored event. Either `account_id` or `external_id` is null. */
export interface EventRow {
  id: string;
  kind: string;
  account_id: string | null;
  external_id: string | null;
  /** JSON. */
  body: string;
}

/**
 * Validates an event. The server validates its kind, schema and account when the relay publishes it.
 * @throws TypeError when no server would accept the event
 */
export function toRow(event: NewEvent): EventRow {
  const { kind, account, body, id = randomUUID() } = event;
  if (!isName(kind)) throw new TypeError(`kind must be a string of 1 to ${nameCharactersMax} characters`);
  if (!isEventId(id))
    throw new TypeError(`id must be a string of 1 to ${nameCharactersMax} visible ASCII characters`);
  const isAccountId = typeof account === 'string';
  const given = isAccountId ? account : account?.external_id;
  const name = Number.isSafeInteger(given) ? String(given) : given;
  if (!isName(name)) {
    throw new TypeError('account must be an account id, or an object with an external_id');
  }
  return {
    id,
    kind,
    account_id: isAccountId ? name : null,
    external_id: isAccountId ? null : name,
    body: toJson(body),
  };
}

/**
 * Serializes a body.
 * @throws TypeError when JSON cannot represent the body, or when the body is too large
 */
export function toJson(body: unknown): string {
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError('body must be a JSON value');
  if (Buffer.byteLength(text) > bodyBytesMax) {
    throw new TypeError(`body must have a maximum of ${bodyBytesMax} bytes as JSON`);
  }
  return text;
}

/** The account of a row in the form that `POST /events` accepts. */
export function accountOf(row: Pick<EventRow, 'account_id' | 'external_id'>): AccountName {
  return row.external_id === null ? (row.account_id ?? '') : { external_id: row.external_id };
}

/** @throws Error when the outbox has a different event with the same id */
export function assertSameEvent(given: EventRow, stored: EventRow): void {
  const names = ['kind', 'account_id', 'external_id', 'body'] as const;
  if (names.every((name) => given[name] === stored[name])) return;
  throw new Error(`the outbox has a different event with the id ${given.id}`);
}

function isEventId(value: unknown): value is string {
  return isName(value) && /^[\x21-\x7e]+$/.test(value);
}

/** Rejects control characters and lone surrogates, because some databases do not store them. */
function isName(value: unknown): value is string {
  if (typeof value !== 'string' || /\p{Cc}|\p{Cs}/u.test(value)) return false;
  const { length } = [...value.slice(0, 2 * nameCharactersMax + 1)];
  return length >= 1 && length <= nameCharactersMax;
}
