/** The section `accounts` of `nuncio.config.ts`. */

import { isLoopbackHost } from '../config/config.ts';
import { reportUnknown } from '../shared/nearest.ts';
import {
  readUpstreamProviders,
  type UpstreamDeclaration,
  type UpstreamProvider,
} from './upstream/provider_settings.ts';

/** The section as operators write it. */
export interface AccountDeclaration {
  /**
   * Origins of the application that the account page leads back to, such as `['https://app.example.com']`:
   * https, or http on loopback. The origin of `login.url` is always one of them.
   * @default `[]`
   */
  readonly returnTo?: readonly string[];
  /**
   * `{ url, acrValues?, administrators? }`: users sign in on the login page of your application, see
   * docs/platform.md#sign-in-at-the-application.
   * @default none
   */
  readonly login?: LoginDeclaration;
  /**
   * OpenID providers that users sign in with, beside the password, see
   * docs/platform.md#sign-in-with-openid-providers.
   * @default `[]`
   */
  readonly upstream?: readonly UpstreamDeclaration[];
  /**
   * `'open'`: the first sign-in with a provider creates an account. `'off'`: the operator creates accounts
   * (`nuncio user create`), and users connect providers to them. There is no form to register with a
   * password, so `'open'` requires `upstream`.
   * @default `'off'`
   */
  readonly registration?: 'open' | 'off';
}

export interface LoginDeclaration {
  /** The login page, which gets the parameter `login_request`. https, or http on loopback. */
  readonly url: string;
  /** The `acr` values that the application can achieve. */
  readonly acrValues?: readonly string[];
  /**
   * Whether the application may sign in administrators. Its backend then has their rights. Default: false, and
   * administration is left to commands and machine clients.
   */
  readonly administrators?: boolean;
}

export interface AccountSettings {
  readonly returnTo: readonly string[];
  /** Null if users sign in at Nuncio. */
  readonly login: Required<LoginDeclaration> | null;
  readonly upstream: readonly UpstreamProvider[];
  readonly registration: 'open' | 'off';
}

const members: Readonly<Record<keyof AccountDeclaration, true>> = {
  returnTo: true,
  login: true,
  upstream: true,
  registration: true,
};
const loginMembers: Readonly<Record<keyof LoginDeclaration, true>> = {
  url: true,
  acrValues: true,
  administrators: true,
};

/** Maximum numbers of entries. */
const originsMax = 20;
const acrValuesMax = 20;

/** @param report called with the place and the reason of each problem */
export function readAccountSettings(
  declared: AccountDeclaration | undefined,
  report: (place: string, reason: string) => void,
): AccountSettings {
  const { returnTo = [], login, upstream: declaredUpstream, registration = 'off' } = declared ?? {};
  reportUnknown(declared ?? {}, members, 'accounts', report);
  const isList = Array.isArray(returnTo) && returnTo.length <= originsMax && returnTo.every(isOrigin);
  if (!isList) {
    report(
      'accounts.returnTo',
      `must be an array of up to ${originsMax} origins like "https://app.example.com": https, or http on loopback`,
    );
  }
  const upstream = readUpstreamProviders(declaredUpstream, report);
  if (login !== undefined && upstream.length > 0) {
    report('accounts.upstream', 'users sign in at `accounts.login`: offer the providers on that page');
  }
  checkRegistration(registration, declaredUpstream !== undefined, report);
  return Object.freeze({
    returnTo: Object.freeze(isList ? [...returnTo] : []),
    login: login === undefined ? null : readLogin(login, report),
    upstream,
    registration,
  });
}

/** There is no form to register with: an account is created by the first sign-in with a provider. */
function checkRegistration(
  registration: unknown,
  hasUpstream: boolean,
  report: (place: string, reason: string) => void,
): void {
  if (registration !== 'open' && registration !== 'off') {
    report('accounts.registration', 'must be "open" or "off"');
  } else if (registration === 'open' && !hasUpstream) {
    report(
      'accounts.registration',
      'must be "off" without `accounts.upstream`: there is no other way to register',
    );
  }
}

/** The origins to which users may return: the declared ones, and that of the application's login page. */
export function returnOriginsOf({ returnTo, login }: AccountSettings): ReadonlySet<string> {
  return new Set([...returnTo, ...(login === null ? [] : [new URL(login.url).origin])]);
}

function readLogin(
  declared: LoginDeclaration,
  report: (place: string, reason: string) => void,
): AccountSettings['login'] {
  if (typeof declared !== 'object' || declared === null) {
    report('accounts.login', 'must be { url, acrValues, administrators }');
    return null;
  }
  const { url, acrValues = [], administrators = false } = declared;
  reportUnknown(declared, loginMembers, 'accounts.login', report);
  const page = typeof url === 'string' ? URL.parse(url) : null;
  if (page === null || !isSafe(page) || page.username !== '' || page.password !== '' || page.hash !== '') {
    const reason =
      'must be a URL that begins with https://, or with http:// on loopback, without credentials and fragment';
    report('accounts.login.url', reason);
  }
  const isAcr = (value: unknown) => typeof value === 'string' && /^[\x21-\x7e]{1,255}$/.test(value);
  if (!Array.isArray(acrValues) || acrValues.length > acrValuesMax || !acrValues.every(isAcr)) {
    report('accounts.login.acrValues', `must be an array of up to ${acrValuesMax} values without spaces`);
  }
  if (typeof administrators !== 'boolean') {
    report('accounts.login.administrators', 'must be true or false');
  }
  return Object.freeze({ url, acrValues, administrators });
}

function isOrigin(value: unknown): boolean {
  const url = typeof value === 'string' ? URL.parse(value) : null;
  return url !== null && url.origin === value && isSafe(url);
}

/** Whether browsers may be redirected to the URL: https, or http on loopback. */
function isSafe(url: URL): boolean {
  return url.protocol === 'https:' || (url.protocol === 'http:' && isLoopbackHost(url.hostname));
}
