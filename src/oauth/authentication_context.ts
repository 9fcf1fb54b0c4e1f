/**
 * The authentication context class, `acr` (OpenID Connect Core section 2). Nuncio signs users in by password only and
 * reports it with a SAML authentication context class, as other servers do. Over plain http (development) the class is
 * `Password`, because the other one implies a protected transport. If the application signs users in, it reports `acr`.
 */

import { errors } from 'oidc-provider';
import type { AccountSettings } from '../accounts/settings.ts';

const classes = 'urn:oasis:names:tc:SAML:2.0:ac:classes:';

export function passwordAcr(baseUrl: string): string {
  return classes + (baseUrl.startsWith('https:') ? 'PasswordProtectedTransport' : 'Password');
}

/** The values that sign-in can achieve: Nuncio's own, or those that the application declares. */
export function supportedAcrs(login: AccountSettings['login'], baseUrl: string): string[] {
  return login === null ? [passwordAcr(baseUrl)] : [...login.acrValues];
}

/**
 * Rejects an essential `acr` that sign-in cannot achieve (OpenID Connect Core section 5.5.1.1). oidc-provider would ask the
 * user to sign in again forever.
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
