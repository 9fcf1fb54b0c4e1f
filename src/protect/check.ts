/**
 * The check of one request, in this order: the token's place and form, the token itself (signature or the issuer's
 * word), the key it is bound to, whether it was withdrawn, the proof's single use, the scopes.
 */

import { createHash } from 'node:crypto';
import { IssuerUnavailable } from './bounded_fetch.ts';
import { isAlive, isMeantFor, type Principal, readClaims, type TokenClaims } from './claims.ts';
import {
  headerValues,
  type ProtectedRequest,
  type RequestHeaders,
  readCredentials,
  type Scheme,
} from './credentials.ts';
import type { Introspect } from './introspection.ts';
import { type CheckedProof, checkProof, useProof } from './proof.ts';
import type { ProofNonces } from './proof_nonces.ts';
import type { Refusal, Refusals } from './refusal.ts';
import type { ReplayStore } from './replay.ts';

/** The request may go on. */
export interface Grant {
  readonly granted: true;
  readonly principal: Principal;
  /** To be added to the answer: a new `DPoP-Nonce`, or nothing. */
  readonly headers: Readonly<Record<string, string>>;
}

/** Checks a request's access token, and that it has all the scopes named. Never throws for what came with it. */
export type Check = (request: ProtectedRequest, ...scopes: string[]) => Promise<Grant | Refusal>;

export interface CheckOptions {
  issuer: string;
  audience: readonly string[];
  /** The origin under which clients reach this server. */
  origin: string;
  verifyJwt: (token: string, digest: string) => Promise<TokenClaims | undefined>;
  /** Null: the issuer is not asked about tokens. */
  introspect: Introspect | null;
  refusals: Refusals;
  replays: ReplayStore;
  nonces: ProofNonces | null;
  onError: (error: Error) => void;
}

/** Longer ones are no token of ours. Characters. */
const tokenLengthMax = 8_192;

export function createCheck(options: CheckOptions): Check {
  const { refusals, nonces } = options;

  return async function check(request, ...scopes) {
    try {
      return await checkToken(request, scopes);
    } catch (error) {
      options.onError(error as Error);
      const detail =
        error instanceof IssuerUnavailable
          ? 'The authorization server cannot be reached at the moment.'
          : 'The access token cannot be checked at the moment.';
      return refusals.unavailable(detail);
    }
  };

  async function checkToken(request: ProtectedRequest, scopes: string[]): Promise<Grant | Refusal> {
    const credentials = readCredentials(request);
    if (credentials.kind === 'none') return refusals.noToken();
    const { scheme } = credentials;
    if (credentials.kind === 'malformed') {
      return refusals.refuse(scheme, 'invalid_request', credentials.detail);
    }
    const { token } = credentials;
    const digest = createHash('sha256').update(token).digest('base64');
    const claims = await readToken(token, digest, options);
    if (claims === undefined) {
      return refusals.refuse(scheme, 'invalid_token', 'The access token is not valid or has expired.');
    }
    const binding = await checkBinding(request, scheme, token, claims, options);
    if ('granted' in binding) return binding;
    if (await isWithdrawn(token, digest, options)) {
      return refusals.refuse(scheme, 'invalid_token', 'The access token was withdrawn.');
    }
    if (binding.proof !== null && !(await useProof(binding.proof, options.replays))) {
      return refusals.refuse('DPoP', 'invalid_dpop_proof', 'The DPoP proof was used before.');
    }
    const { principal } = claims;
    const missing = scopes.filter((scope) => !principal.scopes.has(scope));
    if (missing.length > 0) {
      const detail = `The access token lacks the scope ${missing.join(' ')}.`;
      return refusals.refuse(scheme, 'insufficient_scope', detail, { scope: scopes.join(' ') });
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
  if (token.length > tokenLengthMax) return undefined;
  if (token.split('.').length === 3) return options.verifyJwt(token, digest);
  // An opaque token is known to the issuer alone.
  const answer = await options.introspect?.(token, digest);
  if (answer === undefined) return undefined;
  if (answer.iss !== undefined && answer.iss !== options.issuer) return undefined;
  if (!isMeantFor(answer.aud, options.audience)) return undefined;
  const claims = readClaims(answer);
  return claims !== undefined && isAlive(claims) ? claims : undefined;
}

/** @returns the proof that has to be used up, or null for a bearer token */
async function checkBinding(
  request: ProtectedRequest,
  scheme: Scheme,
  token: string,
  { confirmation }: TokenClaims,
  { refusals, nonces, origin }: CheckOptions,
): Promise<Refusal | { proof: CheckedProof | null }> {
  if (confirmation === null) {
    if (scheme === 'Bearer') return { proof: null };
    return refusals.refuse('DPoP', 'invalid_token', 'The access token is not bound to a key.');
  }
  const { jkt, ...others } = confirmation;
  if (typeof jkt !== 'string' || Object.keys(others).length > 0) {
    // RFC 8705 section 3 and whatever comes: what cannot be seen from here cannot be taken as proven.
    return refusals.refuse(scheme, 'invalid_token', 'The access token is bound in a way not known here.');
  }
  // RFC 9449 section 7.2: a bound token is no bearer token.
  if (scheme !== 'DPoP') {
    return refusals.refuse(
      'DPoP',
      'invalid_token',
      'The access token is bound to a key: use the scheme DPoP.',
    );
  }
  const proofs = headerValues(request.headers as RequestHeaders, 'dpop');
  const url = origin + pathOf(request.url);
  const outcome = await checkProof({ method: request.method, url, token, jkt, proofs }, nonces);
  switch (outcome.kind) {
    case 'checked':
      return { proof: outcome };
    case 'wrong':
      return refusals.refuse('DPoP', 'invalid_dpop_proof', outcome.detail);
    case 'nonce wanted':
      return refusals.refuse('DPoP', 'use_dpop_nonce', 'The DPoP proof needs the nonce given here.', {
        nonce: nonces?.current(),
      });
  }
}

/** An opaque token was asked about when it was read; the answer is the same one. */
async function isWithdrawn(token: string, digest: string, { introspect }: CheckOptions): Promise<boolean> {
  if (introspect === null || token.split('.').length !== 3) return false;
  return (await introspect(token, digest)) === undefined;
}

/** The path alone: host and protocol are what this server is configured with, whatever the request says. */
function pathOf(target: string): string {
  // RFC 9112 section 3.2.2: a request's target may be a whole URL.
  const path = target.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '').split(/[?#]/, 1)[0] ?? '';
  return path.startsWith('/') ? path : '/';
}
