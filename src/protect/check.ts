/**
 * The check of one request. Order: format of the credentials, the token itself (signature or introspection), proof of
 * possession, withdrawal, single use of the proof, scopes.
 */

import { createHash } from 'node:crypto';
import { accessTokenLengthMax } from '../shared/access_token.ts';
import type { ProofNonces } from '../shared/proof_nonces.ts';
import { IssuerUnavailable } from './bounded_fetch.ts';
import { isAudience, isUnexpired, type Principal, readClaims, type TokenClaims } from './claims.ts';
import {
  headerValues,
  type ProtectedRequest,
  type RequestHeaders,
  readCredentials,
  type Scheme,
} from './credentials.ts';
import type { ErrorResponse, ErrorResponses } from './error_response.ts';
import type { Introspect } from './introspection.ts';
import { type CheckedProof, checkProof, useProof } from './proof.ts';
import type { ReplayStore } from './replay.ts';

/** The request is authorized. */
export interface Grant {
  readonly granted: true;
  readonly principal: Principal;
  /** Headers to add to the response: a new `DPoP-Nonce`, or none. */
  readonly headers: Readonly<Record<string, string>>;
}

/** Checks the access token of a request and that it has all given scopes. Does not throw for any input from the request. */
export type Check = (request: ProtectedRequest, ...scopes: string[]) => Promise<Grant | ErrorResponse>;

export interface CheckOptions {
  issuer: string;
  audience: readonly string[];
  /** The public origin of this server. */
  origin: string;
  verifyJwt: (token: string, digest: string) => Promise<TokenClaims | undefined>;
  /** Null: tokens are not introspected. */
  introspect: Introspect | null;
  acceptsOpaqueTokens: boolean;
  errorResponses: ErrorResponses;
  replays: ReplayStore;
  nonces: ProofNonces | null;
  onError: (error: Error) => void;
}

export function createCheck(options: CheckOptions): Check {
  const { errorResponses, nonces } = options;

  return async function check(request, ...scopes) {
    try {
      return await checkToken(request, scopes);
    } catch (error) {
      options.onError(error as Error);
      const detail =
        error instanceof IssuerUnavailable
          ? 'The authorization server is unreachable.'
          : 'The access token cannot be verified at the moment.';
      return errorResponses.unavailable(detail);
    }
  };

  async function checkToken(request: ProtectedRequest, scopes: string[]): Promise<Grant | ErrorResponse> {
    const credentials = readCredentials(request);
    if (credentials.kind === 'none') return errorResponses.noToken();
    const { scheme } = credentials;
    if (credentials.kind === 'malformed') {
      return errorResponses.forError(scheme, 'invalid_request', credentials.detail);
    }
    const { token } = credentials;
    const digest = createHash('sha256').update(token).digest('base64');
    const claims = await readToken(token, digest, options);
    if (claims === undefined) {
      return errorResponses.forError(scheme, 'invalid_token', 'The access token is invalid or has expired.');
    }
    const binding = await checkBinding(request, scheme, token, claims, options);
    if ('granted' in binding) return binding;
    const { principal } = claims;
    const holder = principal.accountId ?? principal.clientId;
    if (await isWithdrawn(token, digest, holder, options)) {
      return errorResponses.forError(scheme, 'invalid_token', 'The access token has been revoked.');
    }
    if (binding.proof !== null && !(await useProof(binding.proof, options.replays, holder))) {
      return errorResponses.forError('DPoP', 'invalid_dpop_proof', 'The DPoP proof has already been used.');
    }
    const missing = scopes.filter((scope) => !principal.scopes.has(scope));
    if (missing.length > 0) {
      const detail = `The access token lacks the scope ${missing.join(' ')}.`;
      return errorResponses.forError(scheme, 'insufficient_scope', detail, { scope: scopes.join(' ') });
    }
    const nonce = nonces?.current();
    const isNew = nonce !== undefined && binding.proof !== null && binding.proof.nonce !== nonce;
    return { granted: true, principal, headers: isNew ? { 'dpop-nonce': nonce } : {} };
  }
}

async function readToken(
  token: string,
  digest: string,
  options: CheckOptions,
): Promise<TokenClaims | undefined> {
  if (token.length > accessTokenLengthMax) return undefined;
  if (token.split('.').length === 3) return options.verifyJwt(token, digest);
  // Only the issuer can look up an opaque token.
  if (!options.acceptsOpaqueTokens) return undefined;
  const response = await options.introspect?.(token, digest, null);
  if (response === undefined) return undefined;
  if (response.iss !== undefined && response.iss !== options.issuer) return undefined;
  if (!isAudience(response.aud, options.audience)) return undefined;
  const claims = readClaims(response);
  return claims !== undefined && isUnexpired(claims) ? claims : undefined;
}

/** @returns the proof, which must still be marked as used; null for a bearer token */
async function checkBinding(
  request: ProtectedRequest,
  scheme: Scheme,
  token: string,
  { confirmation }: TokenClaims,
  { errorResponses, nonces, origin }: CheckOptions,
): Promise<ErrorResponse | { proof: CheckedProof | null }> {
  if (confirmation === null) {
    if (scheme === 'Bearer') return { proof: null };
    return errorResponses.forError('DPoP', 'invalid_token', 'The access token is not bound to a key.');
  }
  const { jkt, ...others } = confirmation;
  if (typeof jkt !== 'string' || Object.keys(others).length > 0) {
    // For example certificate-bound tokens (RFC 8705 section 3), whose certificate this server cannot see.
    return errorResponses.forError(
      scheme,
      'invalid_token',
      'The access token is bound by an unsupported method.',
    );
  }
  // RFC 9449 section 7.2: a bound token must not be used as a bearer token.
  if (scheme !== 'DPoP') {
    return errorResponses.forError(
      'DPoP',
      'invalid_token',
      'The access token is bound to a key: use the DPoP scheme.',
    );
  }
  const proofs = headerValues(request.headers as RequestHeaders, 'dpop');
  const url = origin + pathOf(request.url);
  const outcome = await checkProof(proofs, { method: request.method, url, token, jkt }, nonces);
  switch (outcome.kind) {
    case 'checked':
      return { proof: outcome };
    case 'invalid':
      return errorResponses.forError('DPoP', 'invalid_dpop_proof', outcome.detail);
    case 'nonce required':
      return errorResponses.forError(
        'DPoP',
        'use_dpop_nonce',
        'The DPoP proof must contain the nonce from the DPoP-Nonce header.',
        {
          nonce: nonces?.current(),
        },
      );
  }
}

/** Introspects a JWT. An opaque token has already been introspected. */
async function isWithdrawn(
  token: string,
  digest: string,
  holder: string,
  { introspect }: CheckOptions,
): Promise<boolean> {
  if (introspect === null || token.split('.').length !== 3) return false;
  return (await introspect(token, digest, holder)) === undefined;
}

/** The path of the request target. Host and protocol come from the configuration, not from the request. */
function pathOf(target: string): string {
  // RFC 9112 section 3.2.2: a request target may be an absolute URL.
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0] ?? '';
  return path.startsWith('/') ? path : '/';
}
