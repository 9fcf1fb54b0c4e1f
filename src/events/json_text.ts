/**
 * Looks into JSON without making a value of it. To parse 256 KiB takes a millisecond if its objects are alike, but a hundred if each has
 * a name of its own, and a function that looks at each value takes as long. The time of these grows with the length of the text only.
 */

const quote = 34;
const comma = 44;
const minus = 45;
const [bracket, bracketEnd] = [91, 93];
const backslash = 92;
const [brace, braceEnd] = [123, 125];

/**
 * Finds a value.
 * @param text JSON that `JSON.parse` accepts
 * @param steps the names and indices that lead to it
 * @returns its text; undefined if there is none
 */
export function textAt(text: string, steps: readonly string[]): string | undefined {
  let at: number | undefined = afterSpace(text, 0);
  for (const step of steps) {
    const code = text.charCodeAt(at);
    if (code === brace) at = memberAt(text, at, step);
    else if (code === bracket) at = itemAt(text, at, step);
    else return undefined;
    if (at === undefined) return undefined;
  }
  return text.slice(at, endOfValue(text, at));
}

/**
 * The items of JSON that is an array, as text. Which of them are JSON is not checked.
 * @param countMax looks for one item more, and no further
 * @returns undefined if it has none, or another form
 */
export function itemTexts(text: string, countMax: number): string[] | undefined {
  let at = afterSpace(text, 0);
  if (text.charCodeAt(at) !== bracket || text.charCodeAt(afterSpace(text, at + 1)) === bracketEnd)
    return undefined;
  const items: string[] = [];
  do {
    at = afterSpace(text, at + 1);
    const end = endOfValue(text, at);
    items.push(text.slice(at, end));
    if (items.length > countMax) return items;
    at = afterSpace(text, end);
  } while (text.charCodeAt(at) === comma);
  return text.charCodeAt(at) === bracketEnd && afterSpace(text, at + 1) === text.length ? items : undefined;
}

/** @param at of the object @returns where the value begins. Of several members with the name, the last one counts, as for `JSON.parse` */
function memberAt(text: string, at: number, name: string): number | undefined {
  let found: number | undefined;
  at = afterSpace(text, at + 1);
  while (text.charCodeAt(at) === quote) {
    const end = endOfString(text, at);
    const value = afterSpace(text, afterSpace(text, end) + 1);
    if (isName(text.slice(at, end), name)) found = value;
    at = afterComma(text, endOfValue(text, value));
  }
  return found;
}

function isName(written: string, name: string): boolean {
  return written.includes('\\') ? JSON.parse(written) === name : written === `"${name}"`;
}

/** @param at of the array @returns where the value begins */
function itemAt(text: string, at: number, index: string): number | undefined {
  if (!/^(?:0|[1-9]\d*)$/.test(index)) return undefined;
  at = afterSpace(text, at + 1);
  for (let left = Number(index); text.charCodeAt(at) !== bracketEnd; left -= 1) {
    if (left === 0) return at;
    at = afterComma(text, endOfValue(text, at));
  }
  return undefined;
}

function afterComma(text: string, at: number): number {
  const next = afterSpace(text, at);
  return text.charCodeAt(next) === comma ? afterSpace(text, next + 1) : next;
}

function afterSpace(text: string, at: number): number {
  while (isSpace(text.charCodeAt(at))) at += 1;
  return at;
}

/** @param at where a value begins @returns where it has ended */
function endOfValue(text: string, at: number): number {
  let depth = 0;
  for (; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === quote) {
      at = endOfString(text, at);
      if (depth === 0) return at;
      at -= 1;
    } else if (code === brace || code === bracket) depth += 1;
    else if (code === braceEnd || code === bracketEnd) {
      if (depth <= 1) return depth === 0 ? at : at + 1;
      depth -= 1;
    } else if (depth === 0 && (code === comma || isSpace(code))) return at;
  }
  return at;
}

/** @param at of the opening quotation mark @returns after the closing one */
function endOfString(text: string, at: number): number {
  for (let end = text.indexOf('"', at + 1); ; end = text.indexOf('"', end + 1)) {
    // Never in text that `JSON.parse` accepts.
    if (end < 0) return text.length;
    let escapes = 0;
    while (text.charCodeAt(end - 1 - escapes) === backslash) escapes += 1;
    if (escapes % 2 === 0) return end + 1;
  }
}

/** The numbers that JavaScript may not represent exactly, as they are written: those with very many digits, or with an exponent. */
export function* longNumbers(text: string): Iterable<string> {
  for (let at = 0; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === quote) at = endOfString(text, at) - 1;
    else if (code === minus || isDigit(code)) {
      const end = endOfValue(text, at);
      const written = text.slice(at, end);
      if (written.length > 15 || /e/i.test(written)) yield written;
      at = end - 1;
    }
  }
}

function isDigit(code: number): boolean {
  return code >= 48 && code <= 57;
}

function isSpace(code: number): boolean {
  return code === 32 || code === 10 || code === 13 || code === 9;
}
