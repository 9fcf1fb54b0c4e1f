/**
 * Access tokens of our own API: JWTs as in RFC 9068, checked without a query, or opaque ones, looked up once. What
 * was checked is kept until it expires, so that nothing of it is done again for every request.
 */

import { hash } from 'node:crypto';
import { createLocalJWKSet, errors, type JWK, type JWTPayload, type JWTVerifyGetKey, jwtVerify } from 'jose';
import { LRUCache } from 'lru-cache';
import { accessTokenAlgorithms } from './settings.ts';

/** Longer ones are nobody's of ours. Characters. */
const tokenLengthMax = 8_192;
/** Tokens remembered at most, some 500 bytes each. */
const rememberedMax = 20_000;

/** What a checked access token says. */
export interface AccessTokenClaims {
  readonly tokenId: string;
  readonly accountId: string | null;
  readonly clientId: string;
  readonly grantId: string | null;
  /** How often its grant had been narrowed when it was issued. */
  readonly grantRevision: number;
  readonly scopes: ReadonlySet<string>;
  /** The resources that it is meant for: our own API, or APIs elsewhere (RFC 8707). */
  readonly audience: readonly string[];
  /** The client's epoch in which it was issued; null for tokens of a version that knew none. */
  readonly clientEpoch: string | null;
  /** Seconds since the epoch. */
  readonly issuedAt: number;
  readonly expiresAt: number;
  /** RFC 9449 section 6.1: thumbprint of the key that must be proven, and RFC 8705 section 3.1's. */
  readonly jkt: string | null;
  readonly certificateThumbprint: string | null;
}

export class AccessTokenVerifier {
  readonly #issuer: string;
  readonly #audience: string;
  #keys: JWTVerifyGetKey = toKeySet([]);
  readonly #remembered = new LRUCache<string, AccessTokenClaims>({ max: rememberedMax });

  readonly #lookUp: (token: string) => Promise<AccessTokenClaims | undefined>;
  readonly #refreshKeys: () => Promise<void>;

  /**
   * @param baseUrl issuer and audience in one
   * @param lookUp finds an opaque token
   * @param refreshKeys for a token whose key is not known: perhaps it is new
   */
  constructor(
    baseUrl: string,
    lookUp: (token: string) => Promise<AccessTokenClaims | undefined>,
    refreshKeys: () => Promise<void>,
  ) {
    this.#issuer = baseUrl;
    this.#audience = baseUrl;
    this.#lookUp = lookUp;
    this.#refreshKeys = refreshKeys;
  }

  /** After a rotation: tokens signed by keys that are gone are refused from here on. */
  useKeys(publicKeys: readonly JWK[]): void {
    this.#keys = toKeySet(publicKeys);
    this.#remembered.clear();
  }

  /** @returns undefined for whatever is not a good access token of this server, for its own API */
  async verify(token: string): Promise<AccessTokenClaims | undefined> {
    const claims = await this.verifyForAny(token);
    return claims?.audience.includes(this.#audience) ? claims : undefined;
  }

  /** @returns undefined for whatever is not a good access token of this server, whichever API it is for */
  async verifyForAny(token: string): Promise<AccessTokenClaims | undefined> {
    if (token.length > tokenLengthMax) return undefined;
    const key = hash('sha256', token, 'base64');
    const remembered = this.#remembered.get(key);
    if (remembered !== undefined) return isAlive(remembered) ? remembered : undefined;
    const claims = token.includes('.') ? await this.#check(token) : await this.#lookUp(token);
    if (claims !== undefined) this.#remembered.set(key, claims);
    return claims;
  }

  async #check(token: string, isRetry = false): Promise<AccessTokenClaims | undefined> {
    try {
      // RFC 9068 section 4: type, issuer, signature by a known algorithm, expiry; whom it is for is read below. The
      // type tells it from an id_token or a logout token, which the same keys sign.
      const { payload } = await jwtVerify(token, this.#keys, {
        typ: 'at+jwt',
        issuer: this.#issuer,
        algorithms: [...accessTokenAlgorithms],
        requiredClaims: ['aud', 'exp', 'iat', 'sub', 'client_id', 'jti'],
      });
      return toClaims(payload);
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey) || isRetry) return undefined;
    }
    await this.#refreshKeys();
    return this.#check(token, true);
  }
}

function toKeySet(publicKeys: readonly JWK[]): JWTVerifyGetKey {
  const isForTokens = ({ alg }: JWK) => accessTokenAlgorithms.some((algorithm) => algorithm === alg);
  return createLocalJWKSet({ keys: publicKeys.filter(isForTokens) });
}

function isAlive(claims: AccessTokenClaims): boolean {
  return claims.expiresAt * 1_000 > Date.now();
}

function toClaims(payload: JWTPayload): AccessTokenClaims {
  const { jti, sub, client_id, client_epoch, grant_id, grant_revision, scope, aud, iat, exp } = payload;
  const cnf = (payload.cnf ?? {}) as { jkt?: string; 'x5t#S256'?: string };
  const grantId = typeof grant_id === 'string' ? grant_id : null;
  return {
    tokenId: jti as string,
    // A client that speaks for itself is its own subject (RFC 9068 section 2.2); a user's token has a grant.
    accountId: grantId === null ? null : (sub as string),
    clientId: String(client_id),
    clientEpoch: typeof client_epoch === 'string' ? client_epoch : null,
    grantId,
    grantRevision: typeof grant_revision === 'number' ? grant_revision : 0,
    scopes: new Set(typeof scope === 'string' ? scope.split(' ') : []),
    audience: toAudience(aud),
    issuedAt: iat as number,
    expiresAt: exp as number,
    jkt: cnf.jkt ?? null,
    certificateThumbprint: cnf['x5t#S256'] ?? null,
  };
}

/** RFC 7519 section 4.1.3: one audience or several. */
export function toAudience(audience: string | readonly string[] | undefined): readonly string[] {
  if (audience === undefined) return [];
  return typeof audience === 'string' ? [audience] : audience;
}
