/**
 * Identifiers: UUIDv7 (RFC 9562 section 5.7), which sort by the time they were made.
 */

import { randomUUIDv7 } from 'node:crypto';

/** The 48 bits of time of the last id, as text, and the 12 bits after them. */
let lastTime = '';
let counter = 0;

/**
 * A new UUIDv7 in its canonical text form. Those of one process are in the order in which they were made, also
 * within a millisecond and when the clock is set back (RFC 9562 section 6.2, method 1): 12 of the random bits count.
 */
export function newId(): string {
  const random = randomUUIDv7();
  const time = random.slice(0, 13);
  if (time > lastTime) {
    lastTime = time;
    // Begins in the lower half: there is room to count.
    counter = Number.parseInt(random.slice(15, 18), 16) >> 1;
  } else if (counter < 0xfff) counter += 1;
  else {
    lastTime = nextMillisecond(lastTime);
    counter = 0;
  }
  return `${lastTime}-7${counter.toString(16).padStart(3, '0')}${random.slice(18)}`;
}

function nextMillisecond(time: string): string {
  const next = (Number.parseInt(time.replace('-', ''), 16) + 1).toString(16).padStart(12, '0');
  return `${next.slice(0, 8)}-${next.slice(8)}`;
}

const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Whether a text is a UUID in canonical lower case: what may be asked of the database as an id. */
export function isId(text: string): boolean {
  return uuid.test(text);
}
