/**
 * Cursors: where a page of a list ended, as an opaque text. It holds the place of the page's last resource in the
 * order, so that what is added or removed meanwhile moves nothing. It proves nothing: what one may see is decided
 * by every page anew.
 */

import { isId } from '../crypto/ids.ts';
import { isStorable } from '../http/json.ts';
import { Problem } from '../http/problem.ts';

export interface Place {
  /** The value that the list is ordered by, as PostgreSQL writes it; null where the id alone orders. */
  key: string | null;
  id: string;
}

/** Characters of a cursor at most: a key of 500 characters may take six bytes for each in JSON, a third more in base64. */
export const cursorCharactersMax = 8_192;
/** base64url without padding. */
export const cursorPattern = '^[A-Za-z0-9_-]+$';
const cursorForm = new RegExp(cursorPattern);

/** @param order the order that it is a place in, like `-created_at` */
export function writeCursor(order: string, { key, id }: Place): string {
  return Buffer.from(JSON.stringify([order, id, ...(key === null ? [] : [key])])).toString('base64url');
}

/** @throws Problem 400 for what was not made by `writeCursor` for the same order */
export function readCursor(order: string, hasKey: boolean, text: string): Place {
  const parts = text.length <= cursorCharactersMax && cursorForm.test(text) ? parse(text) : undefined;
  const [madeFor, id, key] = parts ?? [];
  const isWhole =
    madeFor === order &&
    typeof id === 'string' &&
    isId(id) &&
    (hasKey ? typeof key === 'string' && isStorable(key) : key === undefined);
  if (isWhole) return { id, key: hasKey ? (key as string) : null };
  throw new Problem(400, 'after may be what a link to the next page of the same list has.', {
    code: 'invalid-cursor',
  });
}

function parse(text: string): unknown[] | undefined {
  try {
    const value: unknown = JSON.parse(Buffer.from(text, 'base64url').toString('utf8'));
    return Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
