/**
 * DPoP proofs (RFC 9449 sections 4.3 and 7.1): that whoever sends a token holds the key that it is bound to.
 */

import { createHash } from 'node:crypto';
import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose';
import type { ProofNonces } from './proof_nonces.ts';
import type { ReplayStore } from './replay.ts';

/** The engine of the authorization server takes the same. */
export const proofAlgorithms = ['ES256', 'Ed25519', 'EdDSA'] as const;

/** Seconds that a proof's `iat` may lie in the past or in the future. */
const proofSecondsMax = 60;
/** Characters of a proof, and of its `jti`, at most. */
const proofLengthMax = 8_192;
const jtiLengthMax = 512;

export interface ProofRequest {
  method: string;
  /** The public URL of what is asked for, without query and fragment. */
  url: string;
  token: string;
  /** The thumbprint that the token is bound to. */
  jkt: string;
  /** The values of the `DPoP` header. */
  proofs: readonly string[];
}

/** Checked, and not yet used up. */
export interface CheckedProof {
  kind: 'checked';
  nonce: string | undefined;
  /** Names this proof among all. */
  id: string;
}

export type ProofOutcome = CheckedProof | { kind: 'wrong'; detail: string } | { kind: 'nonce wanted' };

/**
 * Checks a proof.
 * @param nonces null where none is asked for
 */
export async function checkProof(request: ProofRequest, nonces: ProofNonces | null): Promise<ProofOutcome> {
  const [proof, ...more] = request.proofs;
  if (proof === undefined) return wrong('The request needs a DPoP proof.');
  // RFC 9449 section 4.3 number 1. Node joins the values of two headers by a comma, which no JWT has.
  if (more.length > 0 || proof.includes(',')) return wrong('There may be one DPoP header only.');
  if (proof.length > proofLengthMax) return wrong('The DPoP proof is too long.');
  const verified = await verify(proof);
  if (verified === undefined) return wrong('The DPoP proof is not a JWT signed by its own key.');
  const { payload, jwk } = verified;
  if (payload.htm !== request.method) return wrong('The htm of the DPoP proof is of another method.');
  if (!isSameTarget(payload.htu, request.url)) return wrong('The htu of the DPoP proof is another URL.');
  if (payload.ath !== sha256(request.token)) return wrong('The ath of the DPoP proof is of another token.');
  if (typeof payload.iat !== 'number' || Math.abs(Date.now() / 1_000 - payload.iat) > proofSecondsMax) {
    return wrong('The iat of the DPoP proof is not of this moment.');
  }
  const { jti, nonce } = payload;
  if (typeof jti !== 'string' || jti === '' || jti.length > jtiLengthMax) {
    return wrong('The DPoP proof needs a jti.');
  }
  const thumbprint = await calculateJwkThumbprint(jwk);
  if (thumbprint !== request.jkt) return wrong('The DPoP proof is of another key than the token.');
  if (nonces !== null && !nonces.isGood(nonce)) return { kind: 'nonce wanted' };
  return {
    kind: 'checked',
    nonce: typeof nonce === 'string' ? nonce : undefined,
    id: sha256(`${thumbprint}\n${jti}`),
  };
}

/** RFC 9449 section 11.1: uses a proof up. @returns false where it was used before */
export async function useProof(proof: CheckedProof, replays: ReplayStore): Promise<boolean> {
  // A proof from the furthest future is good for twice the window.
  return replays.use(proof.id, Date.now() + (2 * proofSecondsMax + 1) * 1_000);
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

/** RFC 9449 section 4.3 number 9: without query and fragment, after normalisation (RFC 3986 section 6.2). */
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

function wrong(detail: string): ProofOutcome {
  return { kind: 'wrong', detail };
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('base64url');
}
