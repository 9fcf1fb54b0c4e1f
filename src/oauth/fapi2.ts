/**
 * What a client that is held to FAPI 2.0 (Security Profile, section 5.3.2.1) gets otherwise than others: the bounds
 * of its DPoP proofs, and a refresh token that stays the same. What it must be registered with stands in
 * clients/metadata.ts, the bounds of its assertions in client_assertion.ts.
 */

import { decodeJwt } from 'jose';
import { errors, type KoaContextWithOIDC } from 'oidc-provider';
import type { Database } from '../database/database.ts';
import { isHeldToFapi2 } from './engine_client.ts';
import { extendRefreshToken } from './storage/refresh_token.ts';

/** Seconds that the time of a DPoP proof may differ from ours, as at our own API (dpop.ts). */
const proofSeconds = 60;
/** Seconds by which an extension must lengthen a refresh token's life: so a busy client does not write each time. */
const extensionSecondsMin = 86_400;

/**
 * The engine's `requireNonce`, which is asked before a proof is judged. The engine itself takes proofs that are 300
 * seconds off. A proof that is too old is answered with a nonce; then the nonce says how old the proof is.
 * @throws InvalidDpopProof where the proof's time is too far ahead, with a nonce or without
 */
export function requireNonce(ctx: KoaContextWithOIDC, isAlwaysRequired: boolean): boolean {
  if (!hasNarrowBounds(ctx)) return isAlwaysRequired;
  const aheadSeconds = secondsAhead(ctx.get('DPoP'));
  if (aheadSeconds > proofSeconds) {
    throw new errors.InvalidDpopProof(
      `DPoP proof iat is more than ${proofSeconds} seconds ahead: check the clock`,
    );
  }
  return isAlwaysRequired || aheadSeconds < -proofSeconds;
}

/** At `userinfo`, the proof is judged before the token, so nobody knows yet whose it is. */
function hasNarrowBounds({ oidc }: KoaContextWithOIDC): boolean {
  return oidc.route === 'userinfo' || (oidc.client !== undefined && isHeldToFapi2(oidc.client));
}

/** @returns 0 for what the engine refuses anyway */
function secondsAhead(proof: string): number {
  try {
    const { iat } = decodeJwt(proof);
    return typeof iat === 'number' ? iat - Date.now() / 1_000 : 0;
  } catch {
    return 0;
  }
}

/**
 * The engine's `rotateRefreshToken`. The refresh token of a FAPI 2.0 client is not rotated: only the client that
 * authenticates with its key or certificate can use it. Its life counts from the last use, as that of the others.
 * @param secondsToLive what a refresh token that is used now may live
 */
export async function rotateRefreshToken(
  ctx: KoaContextWithOIDC,
  db: Database,
  secondsToLive: (token: { iiat?: number | undefined }) => number,
): Promise<boolean> {
  const { client, entities } = ctx.oidc;
  if (client === undefined || !isHeldToFapi2(client)) return true;
  const token = entities.RefreshToken;
  if (token === undefined) return true;
  const expiresAt = Math.floor(Date.now() / 1_000) + secondsToLive(token);
  if (expiresAt - (token.exp ?? 0) > extensionSecondsMin) await extendRefreshToken(db, token.jti, expiresAt);
  return false;
}
