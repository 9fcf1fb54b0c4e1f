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
  return text && secrets.reduce((shown, secret) => shown.replaceAll(secret, mask), text);
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
  let shown = before;
  for (const secret of secrets) {
    const bytes = Buffer.from(secret).toString('latin1');
    shown = shown.replaceAll(bytes, mask);
    for (let length = truncated ? bytes.length - 1 : 0; length >= secretCharactersMin; length -= 1) {
      if (!shown.endsWith(bytes.slice(0, length))) continue;
      shown = shown.slice(0, -length) + mask;
      break;
    }
  }
  return shown === before ? body : Buffer.from(shown, 'latin1');
}
