/**
 * Identifiers: UUIDv7 (RFC 9562 section 5.7), which sort by time of creation.
 */

import { randomUUID } from 'node:crypto';

/** The time of the last id in milliseconds and as text, and its 12-bit counter. */
let lastMs = 0;
let lastTime = '';
let counter = 0;

/**
 * Creates a UUIDv7 in canonical text form. Ids of one process are strictly increasing, also within a millisecond and after
 * the clock was set back (RFC 9562 section 6.2, method 1): 12 of the random bits are a counter.
 */
export function newId(): string {
  // The random bits of a UUIDv4 are at the same places.
  const random = randomUUID();
  const now = Date.now();
  if (now > lastMs) {
    setTime(now);
    // Starts in the lower half, which leaves room to increment.
    counter = Number.parseInt(random.slice(15, 18), 16) >> 1;
  } else if (counter < 0xfff) counter += 1;
  else {
    setTime(lastMs + 1);
    counter = 0;
  }
  return `${lastTime}-7${counter.toString(16).padStart(3, '0')}${random.slice(18)}`;
}

function setTime(milliseconds: number): void {
  const text = milliseconds.toString(16).padStart(12, '0');
  lastMs = milliseconds;
  lastTime = `${text.slice(0, 8)}-${text.slice(8)}`;
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Whether a text is a UUID in canonical lower-case form, which PostgreSQL accepts as an id. */
export function isId(text: string): boolean {
  return uuid.test(text);
}
