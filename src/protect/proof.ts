/**
 * DPoP proofs (RFC 9449 sections 4.3 and 7.1): the sender of a token proves possession of the key it is bound to.
 */

import { createHash } from 'node:crypto';
import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose';
import type { ProofNonces } from './proof_nonces.ts';
import type { ReplayStore } from './replay.ts';

/** The algorithms that the authorization server accepts. */
export const proofAlgorithms = ['ES256', 'Ed25519', 'EdDSA'] as const;

/** Maximum difference between `iat` and this server's clock, in seconds. */
const proofSecondsMax = 60;
/** Maximum length of a proof and of its `jti`, in characters. */
const proofLengthMax = 8_192;
const jtiLengthMax = 512;

export interface ProofRequest {
  method: string;
  /** The public URL of the request, without query and fragment. */
  url: string;
  token: string;
  /** RFC 7638 thumbprint of the key that the token is bound to. */
  jkt: string;
  /** The values of the `DPoP` header. */
  proofs: readonly string[];
}

/** A valid proof that is not yet marked as used. */
export interface CheckedProof {
  kind: 'checked';
  nonce: string | undefined;
  /** Identifies the proof globally. */
  id: string;
}

export type ProofOutcome = CheckedProof | { kind: 'invalid'; detail: string } | { kind: 'nonce required' };

/**
 * Verifies a proof.
 * @param nonces null if nonces are not required
 */
export async function checkProof(request: ProofRequest, nonces: ProofNonces | null): Promise<ProofOutcome> {
  const [proof, ...more] = request.proofs;
  if (proof === undefined) return invalid('The request must contain a DPoP proof.');
  // RFC 9449 section 4.3 number 1. Node joins repeated headers by a comma, which no JWT contains.
  if (more.length > 0 || proof.includes(',')) return invalid('The request must have only one DPoP header.');
  if (proof.length > proofLengthMax) return invalid('The DPoP proof is too long.');
  const verified = await verify(proof);
  if (verified === undefined) return invalid('The DPoP proof is not a JWT signed by the key it contains.');
  const { payload, jwk } = verified;
  if (payload.htm !== request.method) return invalid('The htm of the DPoP proof does not match the method.');
  if (!isSameTarget(payload.htu, request.url))
    return invalid('The htu of the DPoP proof does not match the URL.');
  if (payload.ath !== sha256(request.token))
    return invalid('The ath of the DPoP proof does not match the token.');
  if (typeof payload.iat !== 'number' || Math.abs(Date.now() / 1_000 - payload.iat) > proofSecondsMax) {
    return invalid('The iat of the DPoP proof is too far from the current time.');
  }
  const { jti, nonce } = payload;
  if (typeof jti !== 'string' || jti === '' || jti.length > jtiLengthMax) {
    return invalid('The DPoP proof must contain a jti.');
  }
  const thumbprint = await calculateJwkThumbprint(jwk);
  if (thumbprint !== request.jkt)
    return invalid('The DPoP proof is signed by another key than the token is bound to.');
  if (nonces !== null && !nonces.isValid(nonce)) return { kind: 'nonce required' };
  return {
    kind: 'checked',
    nonce: typeof nonce === 'string' ? nonce : undefined,
    id: sha256(`${thumbprint}\n${jti}`),
  };
}

/**
 * RFC 9449 section 11.1: marks a proof as used.
 * @param holder the account or client of the token
 * @returns false if it has been used before
 */
export async function useProof(proof: CheckedProof, replays: ReplayStore, holder: string): Promise<boolean> {
  // A proof from the furthest accepted future is valid for twice the window.
  return replays.use(proof.id, Date.now() + (2 * proofSecondsMax + 1) * 1_000, holder);
}

async function verify(proof: string): Promise<{ payload: Record<string, unknown>; jwk: JWK } | undefined> {
  try {
    const { payload, protectedHeader } = await jwtVerify(proof, EmbeddedJWK, {
      typ: 'dpop+jwt',
      algorithms: [...proofAlgorithms],
    });
    return { payload, jwk: protectedHeader.jwk as JWK };
  } catch {
    return undefined;
  }
}

/** RFC 9449 section 4.3 number 9: compares without query and fragment, after normalization (RFC 3986 section 6.2). */
function isSameTarget(htu: unknown, expected: string): boolean {
  if (typeof htu !== 'string') return false;
  try {
    const url = new URL(htu);
    url.search = '';
    url.hash = '';
    return url.href === new URL(expected).href;
  } catch {
    return false;
  }
}

function invalid(detail: string): ProofOutcome {
  return { kind: 'invalid', detail };
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('base64url');
}
