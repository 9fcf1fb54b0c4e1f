/**
 * Clients that prove themselves by keys (RFC 7523, RFC 9101): registered by value or fetched from the client's own
 * URL, by the guarded connector.
 */

import { type Configuration, errors } from 'oidc-provider';
import { fetchBytesMax, type GuardedFetch } from '../egress/fetch.ts';

/** Seconds ahead that an assertion may be good for: so long its `jti` has to be remembered. */
const assertionSecondsMax = 3_600;

/** The engine's way out: whatever it fetches is somebody else's address. */
export function outgoingRequests(
  fetch: GuardedFetch,
): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
  return {
    fetch: (input, init = {}) => {
      const { method, headers, body } = init;
      return fetch(String(input), {
        ...(method === undefined ? {} : { method }),
        ...(headers === undefined ? {} : { headers }),
        body,
      });
    },
    fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
  };
}

/** RFC 7523 section 3, as FAPI 2.0 (section 5.3.2.1) and draft-ietf-oauth-rfc7523bis narrow it. */
export const checkClientAssertion: NonNullable<Configuration['assertJwtClientAuthClaimsAndHeader']> = (
  ctx,
  claims,
) => {
  // One audience, the issuer: an assertion that is good elsewhere too could be passed on.
  if (claims.aud !== ctx.oidc.issuer) {
    throw new errors.InvalidClientAuth('the audience of the assertion must be the issuer alone');
  }
  if (Number(claims.exp) > Date.now() / 1_000 + assertionSecondsMax) {
    throw new errors.InvalidClientAuth('the assertion is good for too long');
  }
};
