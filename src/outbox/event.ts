/** Events as an application appends them: checked, and written as JSON once. */

import { randomUUID } from 'node:crypto';

/** Bytes of an event's body as JSON, at most: the server's limit. */
export const bodyBytesMax = 262_144;
/** Characters of a kind, an id, an account's id or an external id, at most. */
const nameCharactersMax = 255;

/** An account's id, or the user id of your own application. */
export type AccountName = string | { readonly external_id: string };

export interface NewEvent {
  /** A kind that `nuncio.config.ts` of the server declares, like `note.created`. */
  kind: string;
  /** The account that the event belongs to. */
  account: AccountName;
  /** As the kind's schema wants it; at most 262,144 bytes as JSON. */
  body: unknown;
  /** 1 to 255 visible ASCII characters. The same id with the same content is one event. Default: a new UUID. */
  id?: string | undefined;
}

/** An event as it is stored: one of the two names of its account is null. */
export interface EventRow {
  id: string;
  kind: string;
  account_id: string | null;
  external_id: string | null;
  /** JSON. */
  body: string;
}

/**
 * Checks an event. What only the server knows (kinds, schemas, accounts) is checked when it is published.
 * @throws TypeError for an event that no server would accept
 */
export function toRow(event: NewEvent): EventRow {
  const { kind, account, body, id = randomUUID() } = event;
  if (!isName(kind)) throw new TypeError(`kind must be a text of 1 to ${nameCharactersMax} characters`);
  if (!isEventId(id))
    throw new TypeError(`id must be a text of 1 to ${nameCharactersMax} visible ASCII characters`);
  const isOwn = typeof account === 'string';
  const name = isOwn ? account : account?.external_id;
  if (!isName(name)) {
    throw new TypeError('account must be the id of an account, or an object with an external_id');
  }
  return {
    id,
    kind,
    account_id: isOwn ? name : null,
    external_id: isOwn ? null : name,
    body: toJson(body),
  };
}

/**
 * Writes a body as JSON.
 * @throws TypeError for what JSON has no form for, and for too much of it
 */
export function toJson(body: unknown): string {
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError('body must be a value that JSON can express');
  if (Buffer.byteLength(text) > bodyBytesMax) {
    throw new TypeError(`body may have ${bodyBytesMax} bytes at most as JSON`);
  }
  return text;
}

/** The account of a row, as `POST /events` takes it. */
export function accountOf(row: Pick<EventRow, 'account_id' | 'external_id'>): AccountName {
  return row.external_id === null ? (row.account_id ?? '') : { external_id: row.external_id };
}

/** @throws Error where the id belongs to another event that waits or was set aside */
export function mustBeSame(given: EventRow, stored: EventRow): void {
  const names = ['kind', 'account_id', 'external_id', 'body'] as const;
  if (names.every((name) => given[name] === stored[name])) return;
  throw new Error(`the outbox has another event with the id ${given.id}`);
}

function isEventId(value: unknown): value is string {
  return isName(value) && /^[\x21-\x7e]+$/.test(value);
}

/** Without control characters and halves of surrogate pairs, which a database may reject. */
function isName(value: unknown): value is string {
  if (typeof value !== 'string' || /\p{Cc}|\p{Cs}/u.test(value)) return false;
  const { length } = [...value.slice(0, 2 * nameCharactersMax + 1)];
  return length >= 1 && length <= nameCharactersMax;
}
