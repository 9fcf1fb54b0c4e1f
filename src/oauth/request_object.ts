/**
 * Lifetime of request objects (RFC 9101). A signed request that leaks, for example from a browser's history or a log, must
 * not be valid forever (section 10.2). The limits are those of FAPI 2.0 Message Signing and apply to every client.
 */

import { errors, type KoaContextWithOIDC } from 'oidc-provider';

/** Maximum seconds from `nbf` to `exp`, and since `iat`. */
const lifetimeSecondsMax = 3_600;
/** Tolerance for the client's clock, in seconds. */
const clockToleranceSeconds = 60;

/**
 * oidc-provider's `assertJwtClaimsAndHeader`. oidc-provider has already checked that `exp` is not in the past and `nbf` not in
 * the future, so these limits also bound the age of `nbf`.
 * @throws InvalidRequestObject
 */
export function checkRequestObject(
  _ctx: KoaContextWithOIDC,
  claims: Readonly<Record<string, unknown>>,
): void {
  const error = lifetimeError(claims, Date.now() / 1_000);
  if (error !== undefined) throw new errors.InvalidRequestObject(error);
}

function lifetimeError(
  { exp, nbf, iat }: Readonly<Record<string, unknown>>,
  now: number,
): string | undefined {
  if (typeof exp !== 'number') return 'exp is missing from the request object';
  if (typeof nbf !== 'number') return 'nbf is missing from the request object';
  if (exp <= nbf) return 'exp of the request object must be after its nbf';
  if (exp - nbf > lifetimeSecondsMax) {
    return `exp of the request object must be at most ${lifetimeSecondsMax} seconds after its nbf`;
  }
  if (iat === undefined) return undefined;
  if (typeof iat !== 'number' || iat > now + clockToleranceSeconds) {
    return 'iat of the request object is in the future: check the clock';
  }
  return iat < now - lifetimeSecondsMax - clockToleranceSeconds
    ? `iat of the request object is more than ${lifetimeSecondsMax} seconds in the past`
    : undefined;
}
