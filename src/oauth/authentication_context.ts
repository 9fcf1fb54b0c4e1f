/**
 * How a user signed in, as `acr` (OpenID Connect Core section 2). There is one method, the password, so there is one
 * value: a name of SAML's authentication context classes, which other servers use too. Plain http (development) has its
 * own, because the other one promises a protected transport. Where the application signs users in, it says how.
 */

import { errors } from 'oidc-provider';
import type { AccountSettings } from '../accounts/settings.ts';

const classes = 'urn:oasis:names:tc:SAML:2.0:ac:classes:';

export function passwordAcr(baseUrl: string): string {
  return classes + (baseUrl.startsWith('https:') ? 'PasswordProtectedTransport' : 'Password');
}

/** Where the application signs users in, what it can reach. */
export function supportedAcrs(login: AccountSettings['login'], baseUrl: string): string[] {
  return login === null ? [passwordAcr(baseUrl)] : [...login.acrValues];
}

/**
 * Refuses an essential `acr` that no sign-in here can reach (OpenID Connect Core section 5.5.1.1): the engine would ask
 * the user to sign in again without end.
 * @param claims the `claims` parameter
 * @throws CustomOIDCProviderError with the code of OpenID Connect Unmet Authentication Requirements
 */
export function refuseUnmetAcr(claims: unknown, supported: readonly string[]): void {
  const { acr } = (claims as { id_token?: { acr?: AcrRequest | null } }).id_token ?? {};
  if (typeof acr !== 'object' || acr === null || acr.essential !== true) return;
  const { value, values } = acr;
  const isMet = (wanted: unknown) => typeof wanted === 'string' && supported.includes(wanted);
  const isAnyMet = values === undefined || (Array.isArray(values) && values.some(isMet));
  if ((value === undefined || isMet(value)) && isAnyMet) return;
  throw new errors.CustomOIDCProviderError(
    'unmet_authentication_requirements',
    'none of the requested acr values is supported',
  );
}

interface AcrRequest {
  essential?: unknown;
  value?: unknown;
  values?: unknown;
}
