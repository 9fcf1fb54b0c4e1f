/**
 * Request objects (RFC 9101): from when and until when one is good. A signed request that leaks, by a browser's history
 * or a log, must not be good for ever (RFC 9101 section 10.2); the bounds are those of FAPI's message signing, for
 * every client.
 */

import { errors, type KoaContextWithOIDC } from 'oidc-provider';

/** Seconds from `nbf` to `exp`, and since `iat`, at most. */
const lifeSecondsMax = 3_600;
/** Seconds that the client's clock may be off. */
const clockToleranceSeconds = 60;

/**
 * The engine has checked before that `exp` is not past and `nbf` not ahead: so with these bounds `nbf` is not longer ago
 * than an object lives.
 * @throws InvalidRequestObject
 */
export function checkRequestObject(
  _ctx: KoaContextWithOIDC,
  claims: Readonly<Record<string, unknown>>,
): void {
  const fault = timeFault(claims, Date.now() / 1_000);
  if (fault !== undefined) throw new errors.InvalidRequestObject(fault);
}

function timeFault({ exp, nbf, iat }: Readonly<Record<string, unknown>>, now: number): string | undefined {
  if (typeof exp !== 'number') return 'the request object has no exp: it must say when it expires';
  if (typeof nbf !== 'number') return 'the request object has no nbf: it must say from when it is good';
  if (exp <= nbf) return 'exp of the request object must be after its nbf';
  if (exp - nbf > lifeSecondsMax) {
    return `exp of the request object must be at most ${lifeSecondsMax} seconds after its nbf`;
  }
  if (iat === undefined) return undefined;
  if (typeof iat !== 'number' || iat > now + clockToleranceSeconds) {
    return 'iat of the request object is in the future: check the clock';
  }
  return iat < now - lifeSecondsMax - clockToleranceSeconds
    ? `iat of the request object is more than ${lifeSecondsMax} seconds ago`
    : undefined;
}
