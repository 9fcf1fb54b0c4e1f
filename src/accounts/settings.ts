/** The section `accounts` of `nuncio.config.ts`: whose users the accounts are. */

import { isLoopbackHost } from '../config/config.ts';

/** What an operator may say. */
export interface AccountDeclaration {
  /** Origins of the application that users may be sent back to from their account page, like `https://app.example.com`. */
  readonly returnTo?: readonly string[];
  /** Hands the sign-in over to the application's own login page. */
  readonly login?: LoginDeclaration;
}

export interface LoginDeclaration {
  /** The page: it gets `login_request` as a parameter. https, or http on loopback. */
  readonly url: string;
  /** Values of `acr` that the application can reach, for clients that ask for one. */
  readonly acrValues?: readonly string[];
}

export interface AccountSettings {
  readonly returnTo: readonly string[];
  /** Null where users sign in here. */
  readonly login: { readonly url: string; readonly acrValues: readonly string[] } | null;
}

/** Origins at most. */
const originsMax = 20;
const acrValuesMax = 20;

/** @param report told of each problem with its place */
export function readAccountSettings(
  declared: AccountDeclaration | undefined,
  report: (place: string, reason: string) => void,
): AccountSettings {
  const { returnTo = [], login, ...others } = declared ?? {};
  for (const name of Object.keys(others)) report(`accounts.${name}`, 'there is no such setting');
  const isList = Array.isArray(returnTo) && returnTo.length <= originsMax && returnTo.every(isOrigin);
  if (!isList) {
    report(
      'accounts.returnTo',
      `it may be an array of up to ${originsMax} origins like "https://app.example.com": https, or http on loopback`,
    );
  }
  return Object.freeze({
    returnTo: Object.freeze(isList ? [...returnTo] : []),
    login: login === undefined ? null : readLogin(login, report),
  });
}

/** Where users may be sent back to: the declared origins, and that of the application's login page. */
export function returnOriginsOf({ returnTo, login }: AccountSettings): ReadonlySet<string> {
  return new Set([...returnTo, ...(login === null ? [] : [new URL(login.url).origin])]);
}

function readLogin(
  declared: LoginDeclaration,
  report: (place: string, reason: string) => void,
): AccountSettings['login'] {
  if (typeof declared !== 'object' || declared === null) {
    report('accounts.login', 'it may be { url, acrValues }');
    return null;
  }
  const { url, acrValues = [], ...others } = declared;
  for (const name of Object.keys(others)) report(`accounts.login.${name}`, 'there is no such setting');
  const page = typeof url === 'string' ? URL.parse(url) : null;
  if (page === null || !isSafe(page) || page.username !== '' || page.password !== '' || page.hash !== '') {
    const reason =
      'it may be a URL that begins with https://, or with http:// on loopback, without credentials and fragment';
    report('accounts.login.url', reason);
  }
  const isAcr = (value: unknown) => typeof value === 'string' && /^[\x21-\x7e]{1,255}$/.test(value);
  if (!Array.isArray(acrValues) || acrValues.length > acrValuesMax || !acrValues.every(isAcr)) {
    report('accounts.login.acrValues', `it may be an array of up to ${acrValuesMax} values without spaces`);
  }
  return Object.freeze({ url, acrValues });
}

function isOrigin(value: unknown): boolean {
  const url = typeof value === 'string' ? URL.parse(value) : null;
  return url !== null && url.origin === value && isSafe(url);
}

/** What a browser may be sent to: https, or http on this machine. */
function isSafe(url: URL): boolean {
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}
