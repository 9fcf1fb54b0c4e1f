/**
 * Verifies JWT access tokens (RFC 9068) with the issuer's published keys (RFC 7517). Verified claims are cached for a
 * minute, so that signatures are not verified again for every request.
 */

import { createRemoteJWKSet, customFetch, type JWTVerifyGetKey, jwtVerify } from 'jose';
import { LRUCache } from 'lru-cache';
import { accessTokenAlgorithms } from '../shared/access_token.ts';
import { upTo } from '../shared/entries.ts';
import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';
import { clockToleranceSeconds, isUnexpired, readClaims, type TokenClaims } from './claims.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Maximum number of cached tokens, about 500 bytes each, and their lifetime in the cache in milliseconds. */
const cachedMax = 10_000;
const cachedMs = 60_000;
/** Milliseconds until the keys are reloaded in the background, and until cached keys expire. */
const keysReloadMs = 600_000;
const keysExpiryMs = 3_600_000;
/** Minimum milliseconds between reloads, so that tokens with invented key ids cause no requests. */
const keysReloadPauseMs = 30_000;
/** The same after a failure: without it, each such token would cause a request to an issuer that is in trouble. */
const keysFailurePauseMs = 1_000;

export interface JwtOptions {
  issuer: string;
  audience: readonly string[];
  discover: () => Promise<IssuerMetadata>;
  fetchObject: FetchObject;
}

/**
 * @returns a function that returns the claims of a valid token, and undefined for any other
 * @throws IssuerUnavailable (the function) if the keys cannot be loaded
 */
export function createJwtVerifier(
  options: JwtOptions,
): (token: string, digest: string) => Promise<TokenClaims | undefined> {
  const cache = new LRUCache<string, TokenClaims>({ ...upTo(cachedMax), ttl: cachedMs });
  const keysOf = createKeys(options);

  return async function verify(token, digest) {
    const cached = cache.get(digest);
    if (cached !== undefined) return isUnexpired(cached) ? cached : undefined;
    const claims = await check(token, await keysOf(), options);
    if (claims !== undefined) cache.set(digest, claims);
    return claims;
  };
}

async function check(
  token: string,
  keys: JWTVerifyGetKey,
  { issuer, audience }: JwtOptions,
): Promise<TokenClaims | undefined> {
  try {
    // RFC 9068 section 4. Each key has a fixed algorithm, and both are asymmetric. `typ` distinguishes access tokens from
    // id_tokens, which the same keys sign.
    const { payload } = await jwtVerify(token, keys, {
      typ: 'at+jwt',
      issuer,
      audience: [...audience],
      algorithms: [...accessTokenAlgorithms],
      clockTolerance: clockToleranceSeconds,
      requiredClaims: ['exp', 'iat', 'sub', 'client_id', 'jti'],
    });
    return readClaims(payload);
  } catch (error) {
    if (error instanceof IssuerUnavailable) throw error;
    return undefined;
  }
}

/** The issuer's keys, from the `jwks_uri` of its current metadata. */
function createKeys({ discover, fetchObject }: JwtOptions): () => Promise<JWTVerifyGetKey> {
  let currentUri: string | undefined;
  let keys: ReturnType<typeof createRemoteJWKSet> | undefined;
  let reloadAt = Number.POSITIVE_INFINITY;
  let failure: { error: unknown; until: number } | undefined;

  async function fetchKeys(url: string): Promise<Response> {
    if (failure !== undefined && performance.now() < failure.until) throw failure.error;
    reloadAt = performance.now() + keysReloadPauseMs;
    try {
      const set = await fetchObject(url);
      if (!Array.isArray(set.keys)) throw new IssuerUnavailable(`the response of ${url} contains no keys`);
      reloadAt = performance.now() + keysReloadMs;
      failure = undefined;
      return Response.json(set);
    } catch (error) {
      failure = { error, until: performance.now() + keysFailurePauseMs };
      throw error;
    }
  }

  return async function keysOf() {
    const { jwksUri } = await discover();
    if (keys === undefined || currentUri !== jwksUri) {
      currentUri = jwksUri;
      keys = createRemoteJWKSet(new URL(jwksUri), {
        cacheMaxAge: keysExpiryMs,
        cooldownDuration: keysReloadPauseMs,
        [customFetch]: fetchKeys,
      });
    } else if (keys.fresh && !keys.reloading && performance.now() > reloadAt) {
      // Reloads in the background. During an outage of the issuer the cached keys stay valid.
      keys.reload().catch(() => {});
    }
    return keys;
  };
}
