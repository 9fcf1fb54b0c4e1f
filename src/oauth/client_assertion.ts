/**
 * Client assertions (RFC 7523 section 3, OpenID Connect Core section 9): accepted audiences, lifetimes, and error descriptions.
 * Checks that depend on the registered client run after the signature is verified. Descriptions of earlier errors use the
 * assertion alone, so that a response does not reveal whether a client exists.
 */

import { decodeJwt } from 'jose';
import { type Configuration, errors, type KoaContextWithOIDC, type Provider } from 'oidc-provider';
import { isFapi2 } from './provider_client.ts';

/** Maximum seconds from now to `exp`, and since `iat`. A used `jti` is stored for that time. */
const lifetimeSecondsMax = 3_600;
/** The same for FAPI 2.0 clients. */
const fapi2LifetimeSecondsMax = 60;
/** Tolerance for a client's clock, in seconds. */
const aheadSecondsMax = 60;
/** oidc-provider's tolerance for `exp` and `nbf`, in seconds. */
export const clockToleranceSeconds = 10;

/** The same text for an unknown client, an unknown key and an invalid signature. */
const invalidSignature =
  'the assertion is not signed by a key registered for the client: check client_id, kid, alg and the key';

/** The error found after the signature was verified, by request; null if the claims are valid. */
const verified = new WeakMap<KoaContextWithOIDC, string | null>();

/**
 * oidc-provider's `assertJwtClientAuthClaimsAndHeader`, called after the signature is verified and before the `jti` is used.
 * @throws InvalidClientAuth
 */
export const checkClientAssertion: NonNullable<Configuration['assertJwtClientAuthClaimsAndHeader']> = (
  ctx,
  claims,
  _header,
  client,
) => {
  const error = isFapi2(client) ? fapi2Error(ctx, claims) : claimsError(ctx, claims);
  verified.set(ctx, error ?? null);
  if (error !== undefined) throw new errors.InvalidClientAuth(error);
};

/** Adds the reason to the response to a rejected assertion. */
export function describeAssertionErrors(provider: Provider): void {
  provider.use(async (ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    await next();
    const assertion = ctx.status === 401 ? ctx.oidc?.params?.client_assertion : undefined;
    const body = ctx.body as { error?: unknown } | undefined;
    if (typeof assertion !== 'string' || body?.error !== 'invalid_client') return;
    ctx.body = { ...body, error_description: describe(ctx, assertion) };
  });
}

function describe(ctx: KoaContextWithOIDC, assertion: string): string {
  const error = verified.get(ctx);
  // oidc-provider checks the `jti` last.
  if (error === null) return 'the assertion has already been used: each request needs a new jti';
  if (error !== undefined) return error;
  try {
    return claimsError(ctx, decodeJwt(assertion)) ?? invalidSignature;
  } catch {
    return invalidSignature;
  }
}

/**
 * FAPI 2.0 section 5.3.2.1: `aud` is the issuer as a string, and the lifetime is short. A hostile server could forward an
 * assertion that other servers accept.
 */
function fapi2Error(ctx: KoaContextWithOIDC, claims: Claims): string | undefined {
  const { issuer } = ctx.oidc;
  if (claims.aud !== issuer) return `aud must be the issuer as a string: ${issuer}`;
  if (Number(claims.exp) > Date.now() / 1_000 + fapi2LifetimeSecondsMax + clockToleranceSeconds) {
    return `exp is too far in the future: an assertion is valid for at most ${fapi2LifetimeSecondsMax} seconds`;
  }
  return claimsError(ctx, claims);
}

type Claims = Readonly<Record<string, unknown>>;

/** @returns the error in the claims that apply to every client, described for its developer */
function claimsError(ctx: KoaContextWithOIDC, claims: Claims): string | undefined {
  const { aud, iss, sub, jti } = claims;
  const { issuer } = ctx.oidc;
  const audience = Array.isArray(aud) ? aud : [aud];
  const accepted = acceptedAudiences(ctx);
  if (audience.length === 0 || !audience.every((entry) => accepted.has(entry))) {
    return `aud must be the issuer, ${issuer}, or the token endpoint, ${issuer}/oauth/token`;
  }
  if (typeof sub !== 'string' || iss !== sub) return 'iss and sub must both be the client_id';
  if (typeof jti !== 'string' || jti === '') return 'jti is missing: every assertion needs a new one';
  return lifetimeError(claims, Date.now() / 1_000);
}

/**
 * RFC 7523 section 3 and OpenID Connect Core section 9 name the token endpoint; RFC 9126 section 2 adds the pushed
 * authorization request endpoint. Some libraries use the URL of the request by default.
 */
function acceptedAudiences(ctx: KoaContextWithOIDC): ReadonlySet<unknown> {
  const { issuer } = ctx.oidc;
  return new Set([issuer, `${issuer}/oauth/token`, `${issuer}${ctx.path}`]);
}

function lifetimeError({ exp, iat, nbf }: Claims, now: number): string | undefined {
  if (typeof exp !== 'number') return 'exp is missing: it must be a number of seconds since 1970';
  if (exp <= now - clockToleranceSeconds) return 'exp is in the past: the assertion has expired';
  if (exp > now + lifetimeSecondsMax + aheadSecondsMax) {
    return `exp is too far in the future: an assertion is valid for at most ${lifetimeSecondsMax} seconds`;
  }
  if (nbf !== undefined && !(typeof nbf === 'number' && nbf <= now + clockToleranceSeconds)) {
    return 'nbf is in the future: check the clock';
  }
  if (iat === undefined) return undefined;
  if (typeof iat !== 'number' || iat > now + aheadSecondsMax) return 'iat is in the future: check the clock';
  if (iat < now - lifetimeSecondsMax - aheadSecondsMax) {
    return `iat is too far in the past: an assertion is valid for at most ${lifetimeSecondsMax} seconds`;
  }
  return undefined;
}
