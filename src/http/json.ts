/**
 * Strict JSON parsing (RFC 8259). Rejects input that two parsers could read differently, or that cannot be stored and
 * returned unchanged: invalid UTF-8, duplicate members, a member `__proto__`, deep nesting, numbers beyond the range of a
 * double, and text with NUL or a lone surrogate.
 *
 * `JSON.parse` does the parsing. One scan of the text then finds what `JSON.parse` cannot report: duplicate members and
 * nesting.
 */

import { bodyProblem, escapePointer, Problem, type ValidationError } from './problem.ts';

/** Limit of nested objects and arrays. */
export const jsonDepthMax = 64;

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * @returns undefined for an empty body
 * @throws Problem 400 for invalid JSON, 422 for JSON that is rejected
 */
export function parseJson(bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined;
  let text: string;
  let value: unknown;
  try {
    text = decoder.decode(bytes);
    value = JSON.parse(text);
  } catch (cause) {
    throw new Problem(400, 'The body is not JSON.', { code: 'not-json', cause });
  }
  if (scan(text)) {
    const errors: ValidationError[] = [];
    findBadValues(value, [], bytes.length > collectedBytesMax ? 1 : errorsMax, errors);
    if (errors.length > 0) throw bodyProblem(errors);
  }
  return value;
}

const quote = 34;
const backslash = 92;

/**
 * Scans text that `JSON.parse` has accepted.
 * @returns whether a string or number may be unacceptable, so that all values must be checked
 * @throws Problem for duplicate members, `__proto__` and nesting
 */
function scan(text: string): boolean {
  /** Member names of each enclosing object; null for an array. The innermost is `names`. */
  const around: (Names | null)[] = [];
  let names: Names | null = null;
  let nameComes = false;
  let isBad = false;
  // Search again only after passing the last match: a search for each string would take quadratic time.
  let escapeAt = nextEscape(text, 0);
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 123: // {
      case 91: // [
        names = text.charCodeAt(at) === 123 ? { few: [], many: undefined } : null;
        around.push(names);
        if (around.length > jsonDepthMax) {
          throw new Problem(422, `The body is nested more than ${jsonDepthMax} levels deep.`, {
            code: 'too-deep',
          });
        }
        nameComes = names !== null;
        break;
      case 125: // }
      case 93: // ]
        around.pop();
        names = around[around.length - 1] ?? null;
        nameComes = false;
        break;
      case 44: // ,
        nameComes = names !== null;
        break;
      case quote: {
        const nextQuote = text.indexOf('"', at + 1);
        const isEscaped = escapeAt < nextQuote;
        const end = isEscaped ? endOfString(text, at) : nextQuote;
        if (isEscaped) escapeAt = nextEscape(text, end);
        const content = isEscaped ? (JSON.parse(text.slice(at, end + 1)) as string) : text.slice(at + 1, end);
        if (isEscaped && !isStorable(content)) isBad = true;
        if (nameComes) addName(names as Names, content);
        nameComes = false;
        at = end;
        break;
      }
      case 69: // E
      case 101: // e, also of `true` and `false`, which is harmless
        if (!isInRange(numberAround(text, at))) isBad = true;
    }
  }
  return isBad || longDigits.test(text);
}

/** Matches a number that may be out of range without an exponent, and long digits in strings. */
const longDigits = /(?<![0-9])[0-9]{309}/;

function isInRange(value: number): boolean {
  return Math.abs(value) !== Number.POSITIVE_INFINITY;
}

/** Returns the number around an exponent, or NaN for the `e` of a word. */
function numberAround(text: string, at: number): number {
  let start = at;
  while (start > 0 && /[-+.0-9]/.test(text[start - 1] as string)) start--;
  let end = at + 1;
  while (end < text.length && /[-+0-9]/.test(text[end] as string)) end++;
  return Number(text.slice(start, end) || 'NaN');
}

/** Returns the position of the next backslash, or infinity. Backslashes occur only in strings. */
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

/** Names of the members of an object. Most have few, for which a set costs more than it saves. */
interface Names {
  readonly few: string[];
  many: Set<string> | undefined;
}

const fewNames = 8;

function addName(names: Names, name: string): void {
  if (name === '__proto__') {
    throw new Problem(422, 'The body has a member named __proto__.', { code: 'invalid-body' });
  }
  if (names.many?.has(name) ?? names.few.includes(name)) {
    throw new Problem(
      400,
      `The body names the member ${JSON.stringify(name.slice(0, 100))} twice in one object.`,
      {
        code: 'duplicate-member',
      },
    );
  }
  if (names.many !== undefined) names.many.add(name);
  else if (names.few.push(name) > fewNames) names.many = new Set(names.few);
}

/** Whether PostgreSQL can store the text and return it unchanged. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}

/** Limit of reported errors. Each names its place, which can be as long as the body, so large bodies, and those with such a place, get fewer. */
const errorsMax = 20;
const collectedBytesMax = 65_536;
const longPointer = 1_000;

/** Adds errors, up to `max` or to one with a long place. @param place names of the members and numbers of the items around the value; only for errors, because it costs time */
function findBadValues(
  value: unknown,
  place: (string | number)[],
  max: number,
  errors: ValidationError[],
): void {
  const message = whatIsBad(value);
  if (message !== undefined) errors.push({ pointer: pointerTo(place), message });
  if (typeof value !== 'object' || value === null) return;
  const enter = (name: string | number, member: unknown) => {
    place.push(name);
    findBadValues(member, place, max, errors);
    place.pop();
  };
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length && !isEnough(errors, max); index += 1)
      enter(index, value[index]);
    return;
  }
  for (const name of Object.keys(value)) {
    if (isEnough(errors, max)) break;
    if (isStorable(name)) enter(name, (value as Record<string, unknown>)[name]);
    else {
      const message = 'has a member whose name contains a NUL character or a lone surrogate';
      errors.push({ pointer: pointerTo(place), message });
    }
  }
}

function isEnough(errors: readonly ValidationError[], max: number): boolean {
  return errors.length >= max || (errors.at(-1)?.pointer.length ?? 0) > longPointer;
}

function whatIsBad(value: unknown): string | undefined {
  if (typeof value === 'string' && !isStorable(value)) return 'contains a NUL character or a lone surrogate';
  return typeof value === 'number' && !Number.isFinite(value) ? 'is a number out of range' : undefined;
}

function pointerTo(place: readonly (string | number)[]): string {
  return place.map((part) => `/${escapePointer(String(part))}`).join('');
}
