/**
 * DPoP proofs at the server's own API (RFC 9449 section 7). Used proofs are stored in the database, so that each proof is
 * accepted once across all nodes.
 */

import { deriveKey } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import { type ProofTarget, proofSecondsMax, verifyProof } from '../shared/dpop_proof.ts';
import { createProofNonces } from '../shared/proof_nonces.ts';
import { useProof } from './storage/used_proof.ts';

/** Milliseconds until a new nonce. */
const nonceMs = 120_000;

export type ProofError = 'invalid_dpop_proof' | 'use_dpop_nonce';

export interface ProofChecker {
  /** @returns null if the proof is valid */
  check: (proof: string, target: ProofTarget) => Promise<ProofError | null>;
  /** The nonce that clients must put into proofs; null if nonces are not required. */
  nonce: () => string | null;
}

/** @param secret the deployment's key material; nonces are derived from it */
export function createProofChecker(db: Database, secret: Buffer, requireNonce: boolean): ProofChecker {
  const nonces = requireNonce ? createProofNonces(deriveKey(secret, 'dpop-nonce-api'), nonceMs) : null;
  return {
    nonce: () => nonces?.current() ?? null,
    async check(proof, target) {
      const verified = await verifyProof(proof, target);
      if (typeof verified === 'string') return 'invalid_dpop_proof';
      if (nonces !== null && !nonces.isValid(verified.nonce)) return 'use_dpop_nonce';
      const expiresAt = Math.floor(Date.now() / 1_000) + 2 * proofSecondsMax;
      return (await useProof(db, `dpop:${target.jkt}`, verified.jti, expiresAt))
        ? null
        : 'invalid_dpop_proof';
    },
  };
}
