/**
 * Verifies access tokens of the server's own resources: JWTs (RFC 9068) of users without a query, opaque tokens by one lookup. Verified
 * claims are cached until the token expires.
 */

import { hash } from 'node:crypto';
import { createLocalJWKSet, errors, type JWK, type JWTPayload, type JWTVerifyGetKey, jwtVerify } from 'jose';
import { LRUCache } from 'lru-cache';
import { accessTokenAlgorithms, accessTokenLengthMax } from '../shared/access_token.ts';
import { upTo } from '../shared/entries.ts';
import { isOpaqueToken } from './opaque_token.ts';

/** Maximum number of cached tokens, about 500 bytes each. */
const cachedMax = 20_000;

/** The claims of a verified access token. */
export interface AccessTokenClaims {
  readonly tokenId: string;
  readonly accountId: string | null;
  /** The application's own id of the account. */
  readonly externalId: string | null;
  readonly clientId: string;
  /** The account that created the client, if the client speaks for itself; otherwise null, and for clients of the operator. */
  readonly creatorId: string | null;
  readonly grantId: string | null;
  /** The revision of the grant at issuance: how often the grant had been narrowed. */
  readonly grantRevision: number;
  readonly scopes: ReadonlySet<string>;
  /** The resources that the token is for: the server's own API, or resource servers elsewhere (RFC 8707). */
  readonly audience: readonly string[];
  /** The client's epoch at issuance. */
  readonly clientEpoch: string;
  /** Seconds since the epoch. */
  readonly issuedAt: number;
  readonly expiresAt: number;
  /** Thumbprints of the key (RFC 9449 section 6.1) and of the certificate (RFC 8705 section 3.1) it is bound to. */
  readonly jkt: string | null;
  readonly certificateThumbprint: string | null;
}

/** What a token says itself. */
export type OwnClaims = Omit<AccessTokenClaims, 'creatorId'>;

export interface VerifierOptions {
  /** The base URL. */
  issuer: string;
  /** Finds an opaque token. */
  lookUp: (token: string) => Promise<OwnClaims | undefined>;
  /** Reloads the keys. Called for a token with an unknown key, which may be new. */
  refreshKeys: () => Promise<void>;
  /** Finds who created a client; undefined if the client is not found. Called once for each token of a client that speaks for itself. */
  creatorOf: (clientId: string) => Promise<string | null | undefined>;
}

export class AccessTokenVerifier {
  readonly #options: VerifierOptions;
  #keys: JWTVerifyGetKey = toKeySet([]);
  readonly #cache = new LRUCache<string, AccessTokenClaims>(upTo(cachedMax));

  constructor(options: VerifierOptions) {
    this.#options = options;
  }

  /** Replaces the keys. Tokens signed by removed keys are rejected from now on. */
  useKeys(publicKeys: readonly JWK[]): void {
    this.#keys = toKeySet(publicKeys);
    this.#cache.clear();
  }

  /** @returns undefined if the token is not a valid access token of this server, for any audience */
  async verifyForAny(token: string): Promise<AccessTokenClaims | undefined> {
    if (token.length > accessTokenLengthMax) return undefined;
    const key = hash('sha256', token, 'base64');
    const cached = this.#cache.get(key);
    if (cached !== undefined) return isUnexpired(cached) ? cached : undefined;
    const keys = this.#keys;
    const own = await this.#read(token);
    if (own === undefined) return undefined;
    const creatorId = own.accountId === null ? await this.#options.creatorOf(own.clientId) : null;
    const claims = { ...own, creatorId: creatorId ?? null };
    // Otherwise its key may have been removed meanwhile, or nothing is known of its client.
    if (keys === this.#keys && creatorId !== undefined) this.#cache.set(key, claims);
    return claims;
  }

  /** Whether the token was valid before and is cached, so that it needs no lookup. */
  isKnown(token: string): boolean {
    return this.#cache.has(hash('sha256', token, 'base64'));
  }

  /** The claims of a token that was verified before, at no cost. They say who sent it, and not that it is still valid. */
  peek(token: string): AccessTokenClaims | undefined {
    return this.#cache.get(hash('sha256', token, 'base64'));
  }

  /** A random text that is no token costs no query. */
  async #read(token: string): Promise<OwnClaims | undefined> {
    if (token.includes('.')) return this.#check(token);
    return isOpaqueToken(token) ? this.#options.lookUp(token) : undefined;
  }

  async #check(token: string, isRetry = false): Promise<OwnClaims | undefined> {
    try {
      // RFC 9068 section 4: type, issuer, algorithm and signature, expiry. `typ` distinguishes access tokens from
      // id_tokens and logout tokens, which the same keys sign. The caller checks the audience.
      const { payload } = await jwtVerify(token, this.#keys, {
        typ: 'at+jwt',
        issuer: this.#options.issuer,
        algorithms: [...accessTokenAlgorithms],
        requiredClaims: ['aud', 'exp', 'iat', 'sub', 'client_id', 'client_epoch', 'jti'],
      });
      return toClaims(payload);
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey) || isRetry) return undefined;
    }
    await this.#options.refreshKeys();
    return this.#check(token, true);
  }
}

function toKeySet(publicKeys: readonly JWK[]): JWTVerifyGetKey {
  const isForTokens = ({ alg }: JWK) => accessTokenAlgorithms.some((algorithm) => algorithm === alg);
  return createLocalJWKSet({ keys: publicKeys.filter(isForTokens) });
}

function isUnexpired(claims: AccessTokenClaims): boolean {
  return claims.expiresAt * 1_000 > Date.now();
}

function toClaims(payload: JWTPayload): OwnClaims {
  const { jti, sub, client_id, client_epoch, grant_id, grant_revision, external_id, scope, aud, iat, exp } =
    payload;
  const cnf = (payload.cnf ?? {}) as { jkt?: string; 'x5t#S256'?: string };
  const grantId = typeof grant_id === 'string' ? grant_id : null;
  return {
    tokenId: jti as string,
    // RFC 9068 section 2.2: without a resource owner, `sub` is the client. Tokens of a user have a grant.
    accountId: grantId === null ? null : (sub as string),
    externalId: typeof external_id === 'string' ? external_id : null,
    clientId: String(client_id),
    clientEpoch: String(client_epoch),
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
