/**
 * Runtime rules for FAPI 2.0 clients (Security Profile, section 5.3.2.1): the age of their DPoP proofs, and refresh
 * tokens without rotation. clients/metadata.ts checks their registration, client_assertion.ts their assertions.
 */

import { decodeJwt } from 'jose';
import { errors, type KoaContextWithOIDC } from 'oidc-provider';
import type { Database } from '../database/database.ts';
import { isFapi2 } from './provider_client.ts';
import { extendRefreshToken } from './storage/refresh_token.ts';

/** Maximum difference between `iat` of a DPoP proof and the server's clock, in seconds, as in dpop.ts. */
const proofSeconds = 60;
/** Minimum extension of a refresh token's lifetime, in seconds, so that a busy client does not cause a write per use. */
const extensionSecondsMin = 86_400;

/**
 * oidc-provider's `requireNonce`, called before oidc-provider checks a proof. oidc-provider accepts proofs up to 300 seconds off.
 * Here, a proof older than `proofSeconds` must contain a nonce, which proves its age.
 * @throws InvalidDpopProof if `iat` is too far in the future, with or without a nonce
 */
export function requireNonce(ctx: KoaContextWithOIDC, isAlwaysRequired: boolean): boolean {
  if (!hasNarrowBounds(ctx)) return isAlwaysRequired;
  const aheadSeconds = secondsAhead(ctx.get('DPoP'));
  if (aheadSeconds > proofSeconds) {
    throw new errors.InvalidDpopProof(
      `DPoP proof iat is more than ${proofSeconds} seconds in the future: check the clock`,
    );
  }
  return isAlwaysRequired || aheadSeconds < -proofSeconds;
}

/** At `userinfo` oidc-provider checks the proof before the token, so the client is not known yet. */
function hasNarrowBounds({ oidc }: KoaContextWithOIDC): boolean {
  return oidc.route === 'userinfo' || (oidc.client !== undefined && isFapi2(oidc.client));
}

/** @returns 0 for a proof that oidc-provider rejects anyway */
function secondsAhead(proof: string): number {
  try {
    const { iat } = decodeJwt(proof);
    return typeof iat === 'number' ? iat - Date.now() / 1_000 : 0;
  } catch {
    return 0;
  }
}

/**
 * oidc-provider's `rotateRefreshToken`. A FAPI 2.0 client keeps its refresh token: it is sender-constrained, and only the
 * authenticated client can use it. Its lifetime is extended on each use.
 * @param secondsToLive returns the lifetime of a refresh token that is used now, in seconds
 */
export async function rotateRefreshToken(
  ctx: KoaContextWithOIDC,
  db: Database,
  secondsToLive: (token: { iiat?: number | undefined }) => number,
): Promise<boolean> {
  const { client, entities } = ctx.oidc;
  if (client === undefined || !isFapi2(client)) return true;
  const token = entities.RefreshToken;
  if (token === undefined) return true;
  const expiresAt = Math.floor(Date.now() / 1_000) + secondsToLive(token);
  if (expiresAt - (token.exp ?? 0) > extensionSecondsMin) await extendRefreshToken(db, token.jti, expiresAt);
  return false;
}
