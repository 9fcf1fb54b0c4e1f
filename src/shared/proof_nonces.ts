/**
 * Nonces for DPoP proofs (RFC 9449 section 9), which prevent proofs from being generated in advance. They are derived from
 * a key and the current time, so that processes with the same key accept each other's and nothing is stored.
 */

import { createHmac } from 'node:crypto';

export interface ProofNonces {
  /** The current nonce. */
  current(): string;
  isValid(nonce: string | undefined): boolean;
}

/** @param stepMs milliseconds until a new nonce; the previous one is valid for the same time again */
export function createProofNonces(key: string | Buffer, stepMs: number): ProofNonces {
  const nonceOf = (step: number) =>
    createHmac('sha256', key).update(`dpop-nonce ${step}`).digest('base64url');
  const currentStep = () => Math.floor(Date.now() / stepMs);
  return {
    current: () => nonceOf(currentStep()),
    isValid(nonce) {
      const step = currentStep();
      // A nonce is no secret: every refused request gets the current one.
      return nonce === nonceOf(step) || nonce === nonceOf(step - 1);
    },
  };
}
