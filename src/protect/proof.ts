/** DPoP proofs of requests with a token that is bound to a key (RFC 9449 section 7). */

import { createHash } from 'node:crypto';
import { type ProofTarget, proofSecondsMax, verifyProof } from '../shared/dpop_proof.ts';
import type { ProofNonces } from '../shared/proof_nonces.ts';
import type { ReplayStore } from './replay.ts';

/** A valid proof that is not yet marked as used. */
export interface CheckedProof {
  kind: 'checked';
  nonce: string | undefined;
  /** Identifies the proof globally. */
  id: string;
}

export type ProofOutcome = CheckedProof | { kind: 'invalid'; detail: string } | { kind: 'nonce required' };

/**
 * Verifies the proof of a request.
 * @param proofs the values of the `DPoP` header
 * @param nonces null if nonces are not required
 */
export async function checkProof(
  proofs: readonly string[],
  target: ProofTarget,
  nonces: ProofNonces | null,
): Promise<ProofOutcome> {
  if (proofs.length === 0) return { kind: 'invalid', detail: 'The request must contain a DPoP proof.' };
  // Several values are refused like those that Node has joined.
  const proof = await verifyProof(proofs.join(), target);
  if (typeof proof === 'string') return { kind: 'invalid', detail: proof };
  const { nonce, jti } = proof;
  if (nonces !== null && !nonces.isValid(nonce)) return { kind: 'nonce required' };
  const id = createHash('sha256').update(`${target.jkt}\n${jti}`).digest('base64url');
  return { kind: 'checked', nonce, id };
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
