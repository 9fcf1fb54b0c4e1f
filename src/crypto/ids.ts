/**
 * Identifiers: UUIDv7 (RFC 9562 section 5.7), which sort by the time they were made.
 */

import { randomUUIDv7 } from 'node:crypto';

/** A new UUIDv7 in its canonical text form. */
export function newId(): string {
  return randomUUIDv7();
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Whether a text is a UUID in canonical lower case: what may be asked of the database as an id. */
export function isId(text: string): boolean {
  return uuid.test(text);
}
