/**
 * Client assertions (RFC 7523 section 3, OpenID Connect Core section 9): whom one may be meant for, how long it may
 * live, and what a refused client is told. What depends on the registered client is checked after the signature, and
 * everything before it is described from the assertion alone: so a refusal does not tell which clients exist.
 */

import { decodeJwt } from 'jose';
import { type Configuration, errors, type KoaContextWithOIDC, type Provider } from 'oidc-provider';
import { isHeldToFapi2 } from './engine_client.ts';

/** Seconds from now to `exp`, and since `iat`, at most: for so long a used `jti` is remembered. */
const lifeSecondsMax = 3_600;
/** The same for a client that is held to FAPI 2.0. */
const fapi2LifeSecondsMax = 60;
/** Seconds that the client's clock may be ahead of ours, and behind it. */
const aheadSecondsMax = 60;
/** The engine's own tolerance, for `exp` and `nbf`. */
export const clockToleranceSeconds = 10;

/** One text for an unknown client, an unknown key and a wrong signature. */
const unsigned =
  'the assertion is not signed with a key that is registered for the client: check client_id, kid, alg and the key';

/** What a request learned of its assertion after the signature was verified; null where nothing was wrong. */
const verified = new WeakMap<KoaContextWithOIDC, string | null>();

/**
 * The engine's `assertJwtClientAuthClaimsAndHeader`: called once the signature is verified, before the `jti` is used.
 * @throws InvalidClientAuth
 */
export const checkClientAssertion: NonNullable<Configuration['assertJwtClientAuthClaimsAndHeader']> = (
  ctx,
  claims,
  _header,
  client,
) => {
  const fault = isHeldToFapi2(client) ? fapi2Fault(ctx, claims) : claimsFault(ctx, claims);
  verified.set(ctx, fault ?? null);
  if (fault !== undefined) throw new errors.InvalidClientAuth(fault);
};

/** Says in the response to a refused assertion what was wrong with it. */
export function describeAssertionFaults(provider: Provider): void {
  provider.use(async (ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    await next();
    const assertion = ctx.status === 401 ? ctx.oidc?.params?.client_assertion : undefined;
    const body = ctx.body as { error?: unknown } | undefined;
    if (typeof assertion !== 'string' || body?.error !== 'invalid_client') return;
    ctx.body = { ...body, error_description: describe(ctx, assertion) };
  });
}

function describe(ctx: KoaContextWithOIDC, assertion: string): string {
  const fault = verified.get(ctx);
  // The engine's last check is the `jti`.
  if (fault === null) return 'the assertion was used before: its jti must be new in every request';
  if (fault !== undefined) return fault;
  try {
    return claimsFault(ctx, decodeJwt(assertion)) ?? unsigned;
  } catch {
    return unsigned;
  }
}

/**
 * FAPI 2.0 section 5.3.2.1: the issuer as a string, and no time that is far ahead. An assertion that is good elsewhere
 * too could be passed on.
 */
function fapi2Fault(ctx: KoaContextWithOIDC, claims: Claims): string | undefined {
  const { issuer } = ctx.oidc;
  if (claims.aud !== issuer) return `aud must be the issuer as a string, ${issuer}`;
  if (Number(claims.exp) > Date.now() / 1_000 + fapi2LifeSecondsMax + clockToleranceSeconds) {
    return `exp is too far ahead: an assertion is good for ${fapi2LifeSecondsMax} seconds at most`;
  }
  return claimsFault(ctx, claims);
}

type Claims = Readonly<Record<string, unknown>>;

/** @returns what is wrong with the claims for whatever client, to be read by its developer */
function claimsFault(ctx: KoaContextWithOIDC, claims: Claims): string | undefined {
  const { aud, iss, sub, jti } = claims;
  const { issuer } = ctx.oidc;
  const audience = Array.isArray(aud) ? aud : [aud];
  const accepted = acceptedAudiences(ctx);
  if (audience.length === 0 || !audience.every((entry) => accepted.has(entry))) {
    return `aud must be the issuer, ${issuer}, or the token endpoint, ${issuer}/oauth/token`;
  }
  if (typeof sub !== 'string' || iss !== sub) return 'iss and sub must both be the client_id';
  if (typeof jti !== 'string' || jti === '')
    return 'jti is missing: it must be a new text in every assertion';
  return timeFault(claims, Date.now() / 1_000);
}

/**
 * RFC 7523 section 3 and OpenID Connect Core section 9 name the token endpoint, RFC 9126 section 2 the endpoint of
 * pushed requests as well; libraries that are told no audience take the URL that they call.
 */
function acceptedAudiences(ctx: KoaContextWithOIDC): ReadonlySet<unknown> {
  const { issuer } = ctx.oidc;
  return new Set([issuer, `${issuer}/oauth/token`, `${issuer}${ctx.path}`]);
}

function timeFault({ exp, iat, nbf }: Claims, now: number): string | undefined {
  if (typeof exp !== 'number') return 'exp is missing: it must be a number of seconds since 1970';
  if (exp <= now - clockToleranceSeconds) return 'exp is in the past: the assertion has expired';
  if (exp > now + lifeSecondsMax + aheadSecondsMax) {
    return `exp is too far ahead: an assertion is good for ${lifeSecondsMax} seconds at most`;
  }
  if (nbf !== undefined && !(typeof nbf === 'number' && nbf <= now + clockToleranceSeconds)) {
    return 'nbf is in the future: check the clock';
  }
  if (iat === undefined) return undefined;
  if (typeof iat !== 'number' || iat > now + aheadSecondsMax) return 'iat is in the future: check the clock';
  if (iat < now - lifeSecondsMax - aheadSecondsMax) {
    return `iat is too long ago: an assertion is good for ${lifeSecondsMax} seconds at most`;
  }
  return undefined;
}
