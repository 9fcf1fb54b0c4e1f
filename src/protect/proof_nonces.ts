/**
 * Nonces for DPoP proofs (RFC 9449 section 9), which prevent proofs from being generated in advance. They are derived from
 * a secret and the current minute, so that processes with the same secret accept each other's and nothing is stored.
 */

import { createHmac } from 'node:crypto';

/** Milliseconds until a new nonce. The previous one is valid for the same time again. */
const stepMs = 60_000;
/** Minimum length of the secret in bytes. */
const secretBytesMin = 32;

export interface ProofNonces {
  /** The current nonce. */
  current(): string;
  isValid(nonce: unknown): boolean;
}

/** @throws TypeError if the secret is too short */
export function createProofNonces(secret: string): ProofNonces {
  if (Buffer.byteLength(secret) < secretBytesMin) {
    throw new TypeError(`dpopNonceSecret is too short: it must have ${secretBytesMin} bytes or more`);
  }
  const nonceOf = (step: number) =>
    createHmac('sha256', secret).update(`dpop-nonce ${step}`).digest('base64url');
  const currentStep = () => Math.floor(Date.now() / stepMs);
  return {
    current: () => nonceOf(currentStep()),
    isValid(nonce) {
      const step = currentStep();
      return nonce === nonceOf(step) || nonce === nonceOf(step - 1);
    },
  };
}
