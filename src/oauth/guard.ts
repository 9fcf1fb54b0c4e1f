/**
 * The bearer guard of our own API (RFC 6750, RFC 9728 section 5.1): signature, audience, expiry, withdrawal and
 * scope, without a query.
 */

import type { FastifyRequest } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';
import type { WithdrawalList } from '../grants/withdrawals.ts';
import { Problem } from '../http/problem.ts';
import type { AccessTokenVerifier } from './access_token.ts';

/** RFC 6750 section 3.1. */
type BearerError = 'invalid_request' | 'invalid_token' | 'insufficient_scope';

const statusOf = { invalid_request: 400, invalid_token: 401, insufficient_scope: 403 } as const;

export function createGuard(
  baseUrl: string,
  verifier: AccessTokenVerifier,
  withdrawals: WithdrawalList,
): Guard {
  const resourceMetadata = `resource_metadata="${baseUrl}/.well-known/oauth-protected-resource"`;

  function refuse(error: BearerError, detail: string, scope?: string): Problem {
    const parameters = [
      `error="${error}"`,
      `error_description="${detail}"`,
      ...(scope === undefined ? [] : [`scope="${scope}"`]),
      resourceMetadata,
    ];
    return new Problem(statusOf[error], detail, {
      code: error.replace('_', '-'),
      headers: { 'www-authenticate': `Bearer ${parameters.join(', ')}` },
    });
  }

  return async function guard(request, ...scopes) {
    const { authorization } = request.headers;
    if (hasTokenInQuery(request)) {
      // RFC 6750 section 2: one method only; and OAuth 2.1 section 5 has no tokens in URLs at all.
      throw refuse('invalid_request', 'The access token belongs in the Authorization header alone.');
    }
    if (authorization === undefined) {
      // RFC 6750 section 3.1: who brought no token is told no error.
      throw new Problem(401, 'An access token is required.', {
        code: 'no-token',
        headers: { 'www-authenticate': `Bearer ${resourceMetadata}` },
      });
    }
    // RFC 9110 section 11.1: the scheme's name is in any case.
    const match = /^bearer +([A-Za-z0-9._~+/-]+=*)$/i.exec(authorization);
    if (match === null)
      throw refuse('invalid_request', 'The Authorization header must be Bearer and a token.');
    const claims = await verifier.verify(match[1] as string);
    if (claims === undefined) throw refuse('invalid_token', 'The access token is not valid or has expired.');
    await requireFresh(withdrawals);
    if (withdrawals.has(claims)) throw refuse('invalid_token', 'The access token was withdrawn.');
    const missing = scopes.filter((scope) => !claims.scopes.has(scope));
    if (missing.length > 0) {
      const needed = scopes.join(' ');
      throw refuse('insufficient_scope', `The access token lacks the scope ${missing.join(' ')}.`, needed);
    }
    return claims as unknown as Principal;
  };
}

/** Whoever cannot know what was withdrawn lets nobody in. */
async function requireFresh(withdrawals: WithdrawalList): Promise<void> {
  try {
    await withdrawals.fresh();
  } catch (cause) {
    throw new Problem(503, 'The database cannot be reached at the moment.', {
      code: 'database-unavailable',
      headers: { 'retry-after': '5' },
      cause,
    });
  }
}

function hasTokenInQuery(request: FastifyRequest): boolean {
  const at = request.url.indexOf('?');
  if (at < 0) return false;
  return new URLSearchParams(request.url.slice(at)).has('access_token');
}
