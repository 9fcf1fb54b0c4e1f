/**
 * Nonces for DPoP proofs (RFC 9449 section 9): a proof made before its time is of no use. They follow from a secret
 * and the minute, so that several processes with one secret know each other's, and nothing is stored.
 */

import { createHmac } from 'node:crypto';

/** Milliseconds after which there is a new nonce; the one before is good for as long again. */
const stepMs = 60_000;
/** Bytes of the secret at least. */
const secretBytesMin = 32;

export interface ProofNonces {
  /** The nonce to be used from now on. */
  current(): string;
  isGood(nonce: unknown): boolean;
}

/** @throws TypeError when the secret is too short */
export function createProofNonces(secret: string): ProofNonces {
  if (Buffer.byteLength(secret) < secretBytesMin) {
    throw new TypeError(`dpopNonceSecret is too short: it may be ${secretBytesMin} bytes or more`);
  }
  const nonceOf = (step: number) =>
    createHmac('sha256', secret).update(`dpop-nonce ${step}`).digest('base64url');
  const currentStep = () => Math.floor(Date.now() / stepMs);
  return {
    current: () => nonceOf(currentStep()),
    isGood(nonce) {
      const step = currentStep();
      return nonce === nonceOf(step) || nonce === nonceOf(step - 1);
    },
  };
}
