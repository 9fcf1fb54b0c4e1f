/**
 * JWT access tokens (RFC 9068), checked by the issuer's published keys (RFC 7517). What was checked is remembered
 * for a minute, so that the signature of one token is not computed again for every request.
 */

import { createRemoteJWKSet, customFetch, type JWTVerifyGetKey, jwtVerify } from 'jose';
import { LRUCache } from 'lru-cache';
import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';
import { clockToleranceSeconds, isAlive, readClaims, type TokenClaims } from './claims.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Tokens remembered at most, some 500 bytes each, and for how long in milliseconds. */
const rememberedMax = 10_000;
const rememberedMs = 60_000;
/** Milliseconds after which the keys are asked for anew, while those at hand go on being used, and for how long. */
const keysRenewedMs = 600_000;
const keysKeptMs = 3_600_000;
/** Milliseconds between two questions for keys: whoever invents key ids makes no traffic. */
const keysPauseMs = 30_000;

/** RFC 9068 section 2.1: RS256 is everybody's; the issuer chooses. Never `none`, never HS256. */
const tokenAlgorithms = ['ES256', 'RS256'] as const;

export interface JwtOptions {
  issuer: string;
  audience: readonly string[];
  discover: () => Promise<IssuerMetadata>;
  fetchObject: FetchObject;
}

/**
 * @returns a function that gives the claims of a good token and undefined for any other
 * @throws IssuerUnavailable (the function) when the keys cannot be had
 */
export function createJwtVerifier(
  options: JwtOptions,
): (token: string, digest: string) => Promise<TokenClaims | undefined> {
  const remembered = new LRUCache<string, TokenClaims>({ max: rememberedMax, ttl: rememberedMs });
  const keysOf = createKeys(options);

  return async function verify(token, digest) {
    const known = remembered.get(digest);
    if (known !== undefined) return isAlive(known) ? known : undefined;
    const claims = await check(token, await keysOf(), options);
    if (claims !== undefined) remembered.set(digest, claims);
    return claims;
  };
}

async function check(
  token: string,
  keys: JWTVerifyGetKey,
  { issuer, audience }: JwtOptions,
): Promise<TokenClaims | undefined> {
  try {
    // RFC 9068 section 4. Both algorithms are asymmetric and each key names its own; the type tells an access token
    // from an id_token, which the same keys sign.
    const { payload } = await jwtVerify(token, keys, {
      typ: 'at+jwt',
      issuer,
      audience: [...audience],
      algorithms: [...tokenAlgorithms],
      clockTolerance: clockToleranceSeconds,
      requiredClaims: ['exp', 'iat', 'sub', 'client_id', 'jti'],
    });
    return readClaims(payload);
  } catch (error) {
    if (error instanceof IssuerUnavailable) throw error;
    return undefined;
  }
}

/** The issuer's keys, by the address that its metadata name at the moment. */
function createKeys({ discover, fetchObject }: JwtOptions): () => Promise<JWTVerifyGetKey> {
  let address: string | undefined;
  let keys: ReturnType<typeof createRemoteJWKSet> | undefined;
  let renewAt = Number.POSITIVE_INFINITY;

  async function fetchKeys(url: string): Promise<Response> {
    renewAt = performance.now() + keysPauseMs;
    const set = await fetchObject(url);
    if (!Array.isArray(set.keys)) throw new IssuerUnavailable(`${url} answered without keys`);
    renewAt = performance.now() + keysRenewedMs;
    return Response.json(set);
  }

  return async function keysOf() {
    const { jwksUri } = await discover();
    if (keys === undefined || address !== jwksUri) {
      address = jwksUri;
      keys = createRemoteJWKSet(new URL(jwksUri), {
        cacheMaxAge: keysKeptMs,
        cooldownDuration: keysPauseMs,
        [customFetch]: fetchKeys,
      });
    } else if (keys.fresh && !keys.reloading && performance.now() > renewAt) {
      // Nobody waits for it, and while the issuer is away the keys at hand are still good.
      keys.reload().catch(() => {});
    }
    return keys;
  };
}
