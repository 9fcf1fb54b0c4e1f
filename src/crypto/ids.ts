/**
 * Identifiers: UUIDv7 (RFC 9562 section 5.7), which sort by the time they were made.
 */

import { randomUUID } from 'node:crypto';

/** The time of the last id in milliseconds, the same as text, and the 12 bits after it. */
let lastMs = 0;
let lastTime = '';
let counter = 0;

/**
 * A new UUIDv7 in its canonical text form. Those of one process are in the order in which they were made, also
 * within a millisecond and when the clock is set back (RFC 9562 section 6.2, method 1): 12 of the random bits count.
 */
export function newId(): string {
  // All but the first 60 bits of a UUIDv4 have the same form.
  const random = randomUUID();
  const now = Date.now();
  if (now > lastMs) {
    setTime(now);
    // Begins in the lower half: there is room to count.
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

/** Whether a text is a UUID in canonical lower case: what may be asked of the database as an id. */
export function isId(text: string): boolean {
  return uuid.test(text);
}
