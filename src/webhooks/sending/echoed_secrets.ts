/**
 * Hides what authenticates a delivery where a response repeats it, before the response is stored: many servers for debugging return each
 * request as they received it, and the log is read by more people than the secrets may be.
 */

import type { RequestTemplate } from './delivery_request.ts';

/** What replaces a secret. */
const mask = Buffer.from('***');
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

/** @param text with characters of one byte, as headers have */
export function hideInText(text: string | null, secrets: readonly string[]): string | null {
  if (text === null) return null;
  const before: Buffer = Buffer.from(text, 'latin1');
  // Others cannot occur.
  const possible = secrets.filter((secret) => !wideCharacter.test(secret));
  const shown = possible.reduce((bytes, secret) => hide(bytes, Buffer.from(secret, 'latin1'), false), before);
  return shown === before ? text : shown.toString('latin1');
}

/**
 * @param json headers of a response
 * @returns null if nothing can be shown: a secret may look like a part of JSON itself, and what is left is none
 */
export function hideInHeaders(json: string | null, secrets: readonly string[]): string | null {
  const shown = hideInText(json, secrets);
  if (shown === null || shown === json) return shown;
  try {
    JSON.parse(shown);
    return shown;
  } catch {
    return null;
  }
}

/** @param truncated whether the end is missing, and with it perhaps that of a secret */
export function hideInBody(
  body: Buffer | null,
  truncated: boolean,
  secrets: readonly string[],
): Buffer | null {
  return body && secrets.reduce((bytes, secret) => hide(bytes, Buffer.from(secret), truncated), body);
}

const wideCharacter = /[^\0-\xff]/;

/**
 * Replaces a secret. Searches by Knuth, Morris and Pratt: a subscriber who chooses the secret and the bytes makes `replaceAll` compare each
 * byte with each.
 * @param isCut whether the bytes may end within the secret
 * @returns the same buffer if there is nothing to replace
 */
function hide(bytes: Buffer, secret: Buffer, isCut: boolean): Buffer {
  const { length } = secret;
  if (bytes.length < length && !isCut) return bytes;
  const borders = bordersOf(secret);
  const shown: Buffer[] = [];
  let from = 0;
  let matched = 0;
  for (let at = 0; at < bytes.length; at += 1) {
    const byte = bytes[at];
    while (matched > 0 && secret[matched] !== byte) matched = borders[matched - 1] as number;
    if (secret[matched] === byte) matched += 1;
    if (matched < length) continue;
    shown.push(bytes.subarray(from, at + 1 - length), mask);
    from = at + 1;
    matched = 0;
  }
  if (isCut && matched >= secretCharactersMin) {
    shown.push(bytes.subarray(from, bytes.length - matched), mask);
    from = bytes.length;
  }
  return shown.length === 0 ? bytes : Buffer.concat([...shown, bytes.subarray(from)]);
}

/** For each start of a secret, the length of its longest border: what it both begins and ends with. */
function bordersOf(secret: Buffer): Uint16Array {
  const borders = new Uint16Array(secret.length);
  let matched = 0;
  for (let at = 1; at < secret.length; at += 1) {
    while (matched > 0 && secret[matched] !== secret[at]) matched = borders[matched - 1] as number;
    if (secret[matched] === secret[at]) matched += 1;
    borders[at] = matched;
  }
  return borders;
}
