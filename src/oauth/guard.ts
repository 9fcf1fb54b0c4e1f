/**
 * The guard of a protected resource of this server (RFC 6750, RFC 8705 section 3, RFC 9449 section 7, RFC 9728 section 5.1). It checks
 * signature, audience, expiry, withdrawal, proof of possession and scope. A bearer token of a user needs no query.
 */

import type { FastifyRequest } from 'fastify';
import type { ConnectionTraces } from '../connections/traces.ts';
import type { Guard, Principal } from '../grants/principal.ts';
import type { WithdrawalList } from '../grants/withdrawals.ts';
import { Problem } from '../http/problem.ts';
import { dashed } from '../http/problem_codes.ts';
import { hasTokenInQuery } from '../shared/access_token.ts';
import { proofAlgorithms } from '../shared/dpop_proof.ts';
import type { AccessTokenClaims, AccessTokenVerifier } from './access_token.ts';
import type { ProofChecker, ProofError } from './dpop.ts';
import { reportCall, reportRefusedCall } from './first_call.ts';
import { type ProtectedResource, resourceMetadataUrl, resourceUrl } from './protected_resource.ts';

/** RFC 6750 section 3.1, RFC 9449 section 7.1. */
type TokenError = 'invalid_request' | 'invalid_token' | 'insufficient_scope' | ProofError;

const statusOf: Readonly<Record<TokenError, number>> = {
  invalid_request: 400,
  invalid_token: 401,
  insufficient_scope: 403,
  invalid_dpop_proof: 401,
  use_dpop_nonce: 401,
};

export interface GuardOptions {
  baseUrl: string;
  /** What the guard protects. Tokens for another resource are invalid (RFC 8707 section 2). */
  resource: ProtectedResource;
  verifier: AccessTokenVerifier;
  withdrawals: WithdrawalList;
  proofs: ProofChecker;
  /** Told of the first call of each connection. */
  traces: ConnectionTraces;
  /** Thumbprint of the client certificate of the connection, or of the one that a trusted proxy forwards. */
  certificateThumbprint: (request: FastifyRequest) => string | null;
}

type Scheme = 'Bearer' | 'DPoP';

/** Creates the Problem of a rejected request, with its `WWW-Authenticate` header. */
type Reject = (scheme: Scheme, error: TokenError, detail: string, scope?: string) => Problem;

/** @returns the guard: it authenticates a request, checks its scopes, and throws a Problem if it rejects the request */
export function createGuard(options: GuardOptions): Guard {
  const { verifier, withdrawals } = options;
  const audience = resourceUrl(options.baseUrl, options.resource);
  const challenge = challengeOf(options);
  const reject = createReject(challenge, options.proofs);
  /** Claims of requests that passed all checks. One request may call the guard several times. */
  const verifiedRequests = new WeakMap<FastifyRequest, { scheme: Scheme; claims: AccessTokenClaims }>();

  async function check(
    request: FastifyRequest,
    scopes: readonly string[],
    presented: { claims?: AccessTokenClaims | undefined },
  ): Promise<AccessTokenClaims> {
    const verified = verifiedRequests.get(request);
    const [scheme, token] =
      verified === undefined ? readToken(request, challenge, reject) : [verified.scheme, ''];
    presented.claims = verified?.claims ?? (await verifier.verifyForAny(token));
    const claims = presented.claims?.audience.includes(audience) ? presented.claims : undefined;
    if (claims === undefined || claims.expiresAt * 1_000 <= Date.now())
      throw reject(scheme, 'invalid_token', 'The access token is invalid or has expired.');
    if (await isRevoked(withdrawals, claims))
      throw reject(scheme, 'invalid_token', 'The access token has been revoked.');
    if (verified === undefined) {
      // Once per request, because a DPoP proof can be used only once.
      await requirePossession({ request, scheme, token, claims }, options, reject);
      verifiedRequests.set(request, { scheme, claims });
    }
    const missing = scopes.filter((scope) => !claims.scopes.has(scope));
    if (missing.length > 0) {
      const detail = `The access token lacks the scope ${missing.join(' ')}.`;
      throw reject(scheme, 'insufficient_scope', detail, scopes.join(' '));
    }
    return claims;
  }

  return async function guard(request, ...scopes) {
    const presented: { claims?: AccessTokenClaims | undefined } = {};
    try {
      const claims = await check(request, scopes, presented);
      reportCall(options.traces, request, claims, audience);
      // `Principal` is branded: only this check makes one.
      return claims as unknown as Principal;
    } catch (error) {
      reportRefusedCall(options.traces, request, presented.claims, audience, error);
      throw error;
    }
  };
}

/** The parameters of `WWW-Authenticate` that tell a client how to get a token. */
interface Challenge {
  metadata: string;
  /** Empty, or the scopes to ask for. */
  scope: readonly string[];
}

function challengeOf({ baseUrl, resource }: GuardOptions): Challenge {
  const { asksForScopes, scopes } = resource;
  return {
    metadata: `resource_metadata="${resourceMetadataUrl(baseUrl, resource)}"`,
    scope: asksForScopes && scopes.length > 0 ? [`scope="${scopes.join(' ')}"`] : [],
  };
}

function createReject(challenge: Challenge, proofs: ProofChecker): Reject {
  return (scheme, error, detail, scope) => {
    const offered = statusOf[error] === 401 ? challenge.scope : [];
    const parameters = [
      `error="${error}"`,
      `error_description="${detail}"`,
      ...(scope === undefined ? offered : [`scope="${scope}"`]),
      ...(scheme === 'DPoP' ? [`algs="${proofAlgorithms.join(' ')}"`] : []),
      challenge.metadata,
    ];
    const nonce = error === 'use_dpop_nonce' ? proofs.nonce() : null;
    return new Problem(statusOf[error], detail, {
      code: dashed(error),
      headers: {
        'www-authenticate': `${scheme} ${parameters.join(', ')}`,
        ...(nonce === null ? {} : { 'dpop-nonce': nonce }),
      },
    });
  };
}

function readToken(
  request: FastifyRequest,
  { metadata, scope }: Challenge,
  reject: Reject,
): [Scheme, string] {
  const { authorization } = request.headers;
  if (hasTokenInQuery(request.url)) {
    throw reject('Bearer', 'invalid_request', 'Send the access token in the Authorization header only.');
  }
  if (authorization === undefined) {
    // RFC 6750 section 3.1: a request without a token gets no error code.
    throw new Problem(401, 'This request requires an access token.', {
      code: 'no-token',
      headers: { 'www-authenticate': `Bearer ${[...scope, metadata].join(', ')}` },
    });
  }
  // RFC 9110 section 11.1: the scheme is case-insensitive.
  const match = /^(bearer|dpop) +([A-Za-z0-9._~+/-]+=*)$/i.exec(authorization);
  if (match === null) {
    const detail = 'The Authorization header must contain the scheme Bearer or DPoP, and a token.';
    throw reject('Bearer', 'invalid_request', detail);
  }
  return [match[1]?.toLowerCase() === 'dpop' ? 'DPoP' : 'Bearer', match[2] as string];
}

/** A request with a verified access token. */
interface Presented {
  request: FastifyRequest;
  scheme: Scheme;
  token: string;
  claims: AccessTokenClaims;
}

async function requirePossession(presented: Presented, options: GuardOptions, reject: Reject): Promise<void> {
  const { request, scheme, claims } = presented;
  if (claims.jkt !== null || scheme === 'DPoP') await requireProof(presented, options, reject);
  if (
    claims.certificateThumbprint !== null &&
    claims.certificateThumbprint !== options.certificateThumbprint(request)
  ) {
    throw reject(scheme, 'invalid_token', 'The access token is bound to another client certificate.');
  }
}

async function requireProof(
  { request, scheme, token, claims: { jkt } }: Presented,
  { baseUrl, proofs }: GuardOptions,
  reject: Reject,
): Promise<void> {
  // RFC 9449 section 7.2: a bound token must not be used as a bearer token, nor an unbound one with DPoP.
  if (scheme === 'Bearer')
    throw reject('DPoP', 'invalid_token', 'The access token is bound to a key: use the DPoP scheme.');
  if (jkt === null) throw reject('DPoP', 'invalid_token', 'The access token is not bound to a key.');
  const proof = request.headers.dpop;
  if (typeof proof !== 'string') {
    throw reject('DPoP', 'invalid_dpop_proof', 'The request must contain exactly one DPoP proof.');
  }
  const url = baseUrl + (request.url.split('?', 1)[0] ?? '/');
  const error = await proofs.check(proof, { method: request.method, url, token, jkt });
  if (error === 'use_dpop_nonce')
    throw reject('DPoP', error, 'The DPoP proof must contain the nonce from the DPoP-Nonce header.');
  if (error !== null) throw reject('DPoP', error, 'The DPoP proof is invalid.');
}

/** Rejects all requests while the node cannot read the withdrawal list. */
async function isRevoked(withdrawals: WithdrawalList, claims: AccessTokenClaims): Promise<boolean> {
  try {
    return await withdrawals.includes(claims);
  } catch (cause) {
    throw new Problem(503, 'The database is unreachable.', {
      code: 'database-unavailable',
      headers: { 'retry-after': '5' },
      cause,
    });
  }
}
