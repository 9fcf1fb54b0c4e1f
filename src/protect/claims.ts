/**
 * What a good access token says, whether it was read from a JWT or from introspection.
 */

/** Who a request speaks for. */
export interface Principal {
  /** The user's account, or null where the client speaks for itself (client credentials). */
  readonly accountId: string | null;
  readonly clientId: string;
  /** The user's grant behind the token, where the token says it. */
  readonly grantId: string | null;
  readonly scopes: ReadonlySet<string>;
  /** The access token's `jti`, where it has one. */
  readonly tokenId: string | null;
  /** Seconds since the epoch. */
  readonly expiresAt: number;
}

/** The principal with what has still to be proven. */
export interface TokenClaims {
  readonly principal: Principal;
  /** RFC 7800: null for a bearer token; otherwise what the sender must prove. */
  readonly confirmation: Readonly<Record<string, unknown>> | null;
}

/** Seconds that this machine's clock and the issuer's may differ by. */
export const clockToleranceSeconds = 5;

/**
 * Reads the claims that JWTs (RFC 9068 section 2.2) and introspection (RFC 7662 section 2.2) have in common.
 * @returns undefined when one that is needed is missing or not what it must be
 */
export function readClaims(claims: Readonly<Record<string, unknown>>): TokenClaims | undefined {
  const { sub, client_id, grant_id, scope, jti, exp, cnf } = claims;
  if (typeof client_id !== 'string' || typeof exp !== 'number') return undefined;
  if (sub !== undefined && typeof sub !== 'string') return undefined;
  if (cnf !== undefined && (typeof cnf !== 'object' || cnf === null)) return undefined;
  const principal: Principal = {
    // RFC 9068 section 2.2: a client that speaks for itself is its own subject.
    accountId: sub === undefined || sub === client_id ? null : sub,
    clientId: client_id,
    grantId: typeof grant_id === 'string' ? grant_id : null,
    scopes: new Set(typeof scope === 'string' ? scope.split(' ').filter((name) => name !== '') : []),
    tokenId: typeof jti === 'string' ? jti : null,
    expiresAt: exp,
  };
  return { principal, confirmation: (cnf as Record<string, unknown> | undefined) ?? null };
}

/** RFC 7519 section 4.1.3: one audience or several, of which one must be expected. */
export function isMeantFor(audience: unknown, expected: readonly string[]): boolean {
  const named: unknown[] = Array.isArray(audience) ? audience : [audience];
  return expected.some((one) => named.includes(one));
}

export function isAlive(claims: TokenClaims): boolean {
  return claims.principal.expiresAt + clockToleranceSeconds > Date.now() / 1_000;
}
