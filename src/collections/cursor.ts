/**
 * Cursors of lists, as opaque text. A cursor holds the position of the page's last resource, so that inserts and deletes in
 * between shift nothing. A cursor grants no access: each page checks permissions again.
 */

import { isId } from '../crypto/ids.ts';
import { isStorable } from '../http/json.ts';
import { Problem } from '../http/problem.ts';

export interface Place {
  /** The sort value as PostgreSQL writes it; null if the list is ordered by id only. */
  key: string | null;
  id: string;
}

/** A key of 500 characters takes up to six bytes per character in JSON, and a third more in base64. */
export const cursorCharactersMax = 8_192;
/** base64url without padding. */
export const cursorPattern = '^[A-Za-z0-9_-]+$';
const cursorForm = new RegExp(cursorPattern);

/** @param order the order of the list, such as `-created_at` */
export function writeCursor(order: string, { key, id }: Place): string {
  return Buffer.from(JSON.stringify([order, id, ...(key === null ? [] : [key])])).toString('base64url');
}

/** @throws Problem 400 unless `writeCursor` created the cursor for the same order */
export function readCursor(order: string, hasKey: boolean, text: string): Place {
  const parts = text.length <= cursorCharactersMax && cursorForm.test(text) ? parse(text) : undefined;
  const [cursorOrder, id, key] = parts ?? [];
  const isWhole =
    cursorOrder === order &&
    typeof id === 'string' &&
    isId(id) &&
    (hasKey ? typeof key === 'string' && isStorable(key) : key === undefined);
  if (isWhole) return { id, key: hasKey ? (key as string) : null };
  throw new Problem(400, 'after must be the cursor from the next link of the same list.', {
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
