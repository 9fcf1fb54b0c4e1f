/**
 * The claims of an access token, from a JWT or from introspection.
 */

/** The user and client that a request acts for. */
export interface Principal {
  /** The user's account; null if the client acts for itself (client credentials). */
  readonly accountId: string | null;
  /** The same account, with your application's own id of it; null if the client acts for itself. */
  readonly account: {
    readonly id: string;
    /** The `external_id` of the account when the token was issued; null if it had none. */
    readonly externalId: string | null;
  } | null;
  readonly clientId: string;
  /** The user's grant, if the token contains it. */
  readonly grantId: string | null;
  readonly scopes: ReadonlySet<string>;
  /** The `jti` of the access token, if it has one. */
  readonly tokenId: string | null;
  /** Seconds since the epoch. */
  readonly expiresAt: number;
}

/** The principal, and the proof of possession that the token requires. */
export interface TokenClaims {
  readonly principal: Principal;
  /** RFC 7800: what the sender must prove; null for a bearer token. */
  readonly confirmation: Readonly<Record<string, unknown>> | null;
}

/** Tolerance between this machine's clock and the issuer's, in seconds. */
export const clockToleranceSeconds = 5;

/**
 * Reads the claims that JWTs (RFC 9068 section 2.2) and introspection responses (RFC 7662 section 2.2) have in common.
 * @returns undefined if a required claim is missing or a claim has the wrong type
 */
export function readClaims(claims: Readonly<Record<string, unknown>>): TokenClaims | undefined {
  const { sub, client_id, grant_id, external_id, scope, jti, exp, cnf } = claims;
  if (typeof client_id !== 'string' || typeof exp !== 'number') return undefined;
  if (sub !== undefined && typeof sub !== 'string') return undefined;
  if (cnf !== undefined && (typeof cnf !== 'object' || cnf === null)) return undefined;
  // RFC 9068 section 2.2: without a resource owner, `sub` is the client.
  const accountId = sub === undefined || sub === client_id ? null : sub;
  const externalId = typeof external_id === 'string' ? external_id : null;
  const principal: Principal = {
    accountId,
    account: accountId === null ? null : { id: accountId, externalId },
    clientId: client_id,
    grantId: typeof grant_id === 'string' ? grant_id : null,
    scopes: new Set(typeof scope === 'string' ? scope.split(' ').filter((name) => name !== '') : []),
    tokenId: typeof jti === 'string' ? jti : null,
    expiresAt: exp,
  };
  return { principal, confirmation: (cnf as Record<string, unknown> | undefined) ?? null };
}

/** RFC 7519 section 4.1.3: `aud` is one audience or several; one of them must be accepted. */
export function isAudience(audience: unknown, expected: readonly string[]): boolean {
  const named: unknown[] = Array.isArray(audience) ? audience : [audience];
  return expected.some((one) => named.includes(one));
}

export function isUnexpired(claims: TokenClaims): boolean {
  return claims.principal.expiresAt + clockToleranceSeconds > Date.now() / 1_000;
}
