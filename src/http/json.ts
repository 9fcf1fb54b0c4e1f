/**
 * JSON from the wire (RFC 8259), read strictly: what two readers could understand differently, or what could not be
 * stored and given back unchanged, is refused instead of guessed at.
 *
 * Refused are bytes that are not UTF-8, a member named twice in one object, `__proto__` as a member, nesting beyond
 * a limit, numbers beyond the range of a double, and text with NUL or half a surrogate pair in it.
 */

import { type BodyFault, bodyProblem, Problem } from './problem.ts';

/** Objects and arrays in each other at most. */
export const jsonDepthMax = 64;

/**
 * @returns undefined for no bytes at all
 * @throws Problem 400 for what is not JSON, 422 for JSON that is refused
 */
export function parseJson(bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined;
  let text: string;
  let value: unknown;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    value = JSON.parse(text);
  } catch (cause) {
    throw new Problem(400, 'The body is not JSON.', { code: 'not-json', cause });
  }
  if (scan(text)) {
    const faults = findBadValues(value, '');
    if (faults.length > 0) throw bodyProblem(faults);
  }
  return value;
}

const quote = 34;
const backslash = 92;

/**
 * Goes through text that is known to be JSON.
 * @returns whether some text or number in it may not be acceptable: its values are to be looked at
 * @throws Problem for everything else
 */
function scan(text: string): boolean {
  /** The names seen in each object around this place; null for an array. */
  const around: (Set<string> | null)[] = [];
  let nameComes = false;
  let isBad = false;
  // Looked for once and again only when passed: looking back from each string would make the time grow as the square.
  let escapeAt = nextEscape(text, 0);
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 123: // {
      case 91: // [
        around.push(text.charCodeAt(at) === 123 ? new Set() : null);
        if (around.length > jsonDepthMax) {
          throw new Problem(422, `The body is nested more than ${jsonDepthMax} deep.`, { code: 'too-deep' });
        }
        nameComes = around.at(-1) !== null;
        break;
      case 125: // }
      case 93: // ]
        around.pop();
        nameComes = false;
        break;
      case 44: // ,
        nameComes = around.at(-1) !== null;
        break;
      case quote: {
        const nextQuote = text.indexOf('"', at + 1);
        const isEscaped = escapeAt < nextQuote;
        const end = isEscaped ? endOfString(text, at) : nextQuote;
        if (isEscaped) escapeAt = nextEscape(text, end);
        const content = isEscaped ? (JSON.parse(text.slice(at, end + 1)) as string) : text.slice(at + 1, end);
        if (isEscaped && !isStorable(content)) isBad = true;
        if (nameComes) addName(around.at(-1) as Set<string>, content);
        nameComes = false;
        at = end;
        break;
      }
      case 69: // E
      case 101: // e, also in true and false, where it does no harm
        if (!isInRange(numberAround(text, at))) isBad = true;
    }
  }
  return isBad || longDigits.test(text);
}

/** What could be a number that is too large without an exponent, or digits in a text. Tried once for each run of them. */
const longDigits = /(?<![0-9])[0-9]{309}/;

function isInRange(value: number): boolean {
  return Math.abs(value) !== Number.POSITIVE_INFINITY;
}

/** The number that has its exponent at this place; NaN for the e of a word. */
function numberAround(text: string, at: number): number {
  let start = at;
  while (start > 0 && /[-+.0-9]/.test(text[start - 1] as string)) start--;
  let end = at + 1;
  while (end < text.length && /[-+0-9]/.test(text[end] as string)) end++;
  return Number(text.slice(start, end) || 'NaN');
}

/** Where the next backslash is; infinite for nowhere. They are in strings alone. */
function nextEscape(text: string, from: number): number {
  const at = text.indexOf('\\', from);
  return at < 0 ? Number.POSITIVE_INFINITY : at;
}

function endOfString(text: string, start: number): number {
  for (let at = start + 1; ; at++) {
    const code = text.charCodeAt(at);
    if (code === quote) return at;
    if (code === backslash) at++;
  }
}

function addName(names: Set<string>, name: string): void {
  if (name === '__proto__') {
    throw new Problem(422, 'The body has a member named __proto__.', { code: 'invalid-body' });
  }
  if (names.has(name)) {
    throw new Problem(
      400,
      `The body names the member ${JSON.stringify(name.slice(0, 100))} twice in one object.`,
      {
        code: 'duplicate-member',
      },
    );
  }
  names.add(name);
}

/** Whether PostgreSQL can keep the text and give it back unchanged. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}

/** Faults shown at most. */
const faultsMax = 20;

function findBadValues(value: unknown, pointer: string): BodyFault[] {
  if (typeof value === 'string' && !isStorable(value)) {
    return [{ pointer, message: 'has a NUL character or half a surrogate pair in it' }];
  }
  if (typeof value === 'number' && !Number.isFinite(value)) {
    return [{ pointer, message: 'is a number out of range' }];
  }
  if (typeof value !== 'object' || value === null) return [];
  const faults: BodyFault[] = [];
  for (const [name, member] of Object.entries(value)) {
    if (faults.length >= faultsMax) break;
    const at = `${pointer}/${escapePointer(name)}`;
    if (!isStorable(name)) {
      faults.push({
        pointer: pointer,
        message: 'has a member whose name has a NUL character or half a surrogate pair',
      });
    } else faults.push(...findBadValues(member, at));
  }
  return faults;
}

/** RFC 6901 section 3. */
export function escapePointer(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1');
}
