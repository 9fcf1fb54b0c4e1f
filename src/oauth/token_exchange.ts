/**
 * Access tokens that the server makes for itself, to call an API in the name of whoever called it: a token for one API never
 * reaches another. They are like those of the token endpoint (RFC 9068): for the same user, app and grant, so that a withdrawal
 * ends them as well, but for one audience, for a minute, and with some of the caller's scopes. They are not sender-constrained,
 * because this server alone sends them, and only the API gets to know them.
 */

import { SignJWT } from 'jose';
import { newId } from '../crypto/ids.ts';
import type { Principal } from '../grants/principal.ts';
import type { AccessTokenClaims } from './access_token.ts';
import type { OAuthSettings } from './settings.ts';
import type { SigningKeys } from './signing_keys.ts';

/** Lifetime in seconds. */
const lifetimeSeconds = 60;

/** @throws Error if the principal lacks one of the scopes */
export type ExchangeToken = (
  principal: Principal,
  target: { audience: string; scopes: readonly string[] },
) => Promise<string>;

/**
 * @param keys the current keys
 * @param seconds lifetime of a token
 */
export function createTokenExchange(
  issuer: string,
  settings: OAuthSettings,
  keys: () => SigningKeys,
  seconds = lifetimeSeconds,
): ExchangeToken {
  const algorithmOf = (audience: string) => {
    const declared = settings.resources.find((entry) => typeof entry === 'object' && entry.url === audience);
    const own = typeof declared === 'object' ? declared.accessTokenAlgorithm : undefined;
    return own ?? settings.accessTokenAlgorithm;
  };
  return async (principal, { audience, scopes }) => {
    // Only the guard makes principals, of claims.
    const caller = principal as unknown as AccessTokenClaims;
    const missing = scopes.filter((scope) => !caller.scopes.has(scope));
    if (missing.length > 0) throw new Error(`the token lacks the scope ${missing.join(' ')}`);
    const alg = algorithmOf(audience);
    const key = keys().privateKeys.find((each) => each.alg === alg);
    if (key === undefined) throw new Error(`there is no signing key for ${alg}`);
    const issuedAt = Math.floor(Date.now() / 1_000);
    const { accountId, externalId, clientId, clientEpoch, grantId, grantRevision } = caller;
    const claims = {
      client_id: clientId,
      client_epoch: clientEpoch,
      scope: scopes.join(' '),
      ...(grantId === null ? {} : { grant_id: grantId }),
      ...(grantRevision > 0 ? { grant_revision: grantRevision } : {}),
      ...(externalId === null ? {} : { external_id: externalId }),
    };
    return new SignJWT(claims)
      .setProtectedHeader({ typ: 'at+jwt', alg, kid: key.kid as string })
      .setIssuer(issuer)
      .setSubject(accountId ?? clientId)
      .setAudience(audience)
      .setJti(newId())
      .setIssuedAt(issuedAt)
      .setExpirationTime(issuedAt + seconds)
      .sign(key);
  };
}
