/**
 * Hides what authenticates a delivery where a response repeats it, before the response is stored: many servers for debugging return each
 * request as they received it, and the log is read by more people than the secrets may be.
 */

import type { RequestTemplate } from './delivery_request.ts';

/** What replaces a secret. */
const mask = '***';
/** Shorter values are no secrets, and occur in ordinary text. */
const secretCharactersMin = 8;

/** The secrets of a request, also in JSON. @param token the access token; null for none */
export function sentSecrets(
  { headerLines, auth }: Pick<RequestTemplate, 'headerLines' | 'auth'>,
  token: string | null,
): string[] {
  if (headerLines === '' && auth === null) return [];
  const values = headerLines
    .split('\r\n')
    .filter((line) => line !== '')
    .map((line) => line.slice(line.indexOf(':') + 1).trim());
  if (auth?.type === 'basic')
    values.push(Buffer.from(`${auth.username}:${auth.password}`).toString('base64'), auth.password);
  if (auth?.type === 'header') values.push(auth.value);
  if (token !== null) values.push(token);
  const long = values.filter(({ length }) => length >= secretCharactersMin);
  const inJson = long.map((value) => JSON.stringify(value).slice(1, -1));
  // A secret that contains another one is replaced first.
  return [...new Set([...long, ...inJson])].toSorted((a, b) => b.length - a.length);
}

export function hideInText(text: string | null, secrets: readonly string[]): string | null {
  return text && secrets.reduce((shown, secret) => hide(shown, secret, false), text);
}

/** @param truncated whether the end is missing, and with it perhaps that of a secret */
export function hideInBody(
  body: Buffer | null,
  truncated: boolean,
  secrets: readonly string[],
): Buffer | null {
  if (body === null) return null;
  // One character for each byte, so that other bytes stay as they are.
  const before = body.toString('latin1');
  const shown = secrets.reduce(
    (text, secret) => hide(text, Buffer.from(secret).toString('latin1'), truncated),
    before,
  );
  return shown === before ? body : Buffer.from(shown, 'latin1');
}

/**
 * Replaces a secret. Searches by Knuth, Morris and Pratt: a subscriber who chooses the secret and the text makes `replaceAll` compare each
 * character with each.
 * @param isCut whether the text may end within the secret
 */
function hide(text: string, secret: string, isCut: boolean): string {
  if (text.length < secret.length && !isCut) return text;
  const borders = bordersOf(secret);
  let shown = '';
  let from = 0;
  let matched = 0;
  for (let at = 0; at < text.length; at += 1) {
    matched = extend(secret, borders, matched, text.charCodeAt(at));
    if (matched < secret.length) continue;
    shown += text.slice(from, at + 1 - matched) + mask;
    from = at + 1;
    matched = 0;
  }
  if (isCut && matched >= secretCharactersMin) return shown + text.slice(from, text.length - matched) + mask;
  return from === 0 ? text : shown + text.slice(from);
}

/** For each start of a text, the length of its longest border: what it both begins and ends with. */
function bordersOf(text: string): Uint16Array {
  const borders = new Uint16Array(text.length);
  let matched = 0;
  for (let at = 1; at < text.length; at += 1) {
    matched = extend(text, borders, matched, text.charCodeAt(at));
    borders[at] = matched;
  }
  return borders;
}

/** @returns how many characters of the secret match after one more character of the text, if `matched` did before it */
function extend(secret: string, borders: Uint16Array, matched: number, code: number): number {
  let length = matched;
  while (length > 0 && secret.charCodeAt(length) !== code) length = borders[length - 1] as number;
  return secret.charCodeAt(length) === code ? length + 1 : length;
}
