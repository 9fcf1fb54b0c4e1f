/** The section `accounts` of `nuncio.config.ts`: whose users the accounts are. */

import { isLoopbackHost } from '../config/config.ts';

/** What an operator may say. */
export interface AccountDeclaration {
  /** Origins of the application that users may be sent back to from their account page, like `https://app.example.com`. */
  readonly returnTo?: readonly string[];
}

export interface AccountSettings {
  readonly returnTo: readonly string[];
}

/** Origins at most. */
const originsMax = 20;

/** @param report told of each problem with its place */
export function readAccountSettings(
  declared: AccountDeclaration | undefined,
  report: (place: string, reason: string) => void,
): AccountSettings {
  const { returnTo = [], ...others } = declared ?? {};
  for (const name of Object.keys(others)) report(`accounts.${name}`, 'there is no such setting');
  if (!Array.isArray(returnTo) || returnTo.length > originsMax || !returnTo.every(isOrigin)) {
    report(
      'accounts.returnTo',
      `it may be an array of up to ${originsMax} origins like "https://app.example.com": https, or http on loopback`,
    );
    return { returnTo: [] };
  }
  return Object.freeze({ returnTo: Object.freeze([...returnTo]) });
}

function isOrigin(value: unknown): boolean {
  const url = typeof value === 'string' ? URL.parse(value) : null;
  return url !== null && url.origin === value && isSafe(url);
}

/** What a browser may be sent to: https, or http on this machine. */
function isSafe(url: URL): boolean {
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}
