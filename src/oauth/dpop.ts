/**
 * DPoP at our own API (RFC 9449 section 7): the request proves the key that its access token is bound to. Proofs
 * are remembered in the database, so that one is good once, on whatever node.
 */

import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose';
import { deriveKey } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import { useProof } from './storage/used_proof.ts';

/** Algorithms taken in proofs; none is symmetric. */
export const dpopAlgorithms = ['ES256', 'EdDSA', 'Ed25519'] as const;
/** Seconds that a proof's time may be off, and for which it is remembered. */
const proofSeconds = 60;
/** Seconds that a nonce is the one we give; it is taken for twice that. */
const nonceSeconds = 120;

export type ProofFault = 'invalid_dpop_proof' | 'use_dpop_nonce';

export interface ProofRequest {
  proof: string;
  method: string;
  /** The address asked, without query and fragment. */
  url: string;
  accessToken: string;
  /** Thumbprint of the key that the token is bound to. */
  jkt: string;
}

export interface ProofChecker {
  /** @returns null where the proof is good */
  check: (request: ProofRequest) => Promise<ProofFault | null>;
  /** The nonce that a proof should carry; null where none is asked for. */
  nonce: () => string | null;
}

export function createProofChecker(db: Database, secret: Buffer, requireNonce: boolean): ProofChecker {
  const key = deriveKey(secret, 'dpop-nonce-api');
  const nonceAt = (step: number) => createHmac('sha256', key).update(String(step)).digest('base64url');
  const currentStep = () => Math.floor(Date.now() / 1_000 / nonceSeconds);

  return {
    nonce: () => (requireNonce ? nonceAt(currentStep()) : null),
    async check({ proof, method, url, accessToken, jkt }) {
      const claims = await readProof(proof);
      if (claims === undefined) return 'invalid_dpop_proof';
      const { iat, jti, htm, htu, ath, nonce, thumbprint } = claims;
      const ageSeconds = Date.now() / 1_000 - iat;
      if (htm !== method || !isSameAddress(htu, url) || Math.abs(ageSeconds) > proofSeconds) {
        return 'invalid_dpop_proof';
      }
      // RFC 9449 section 7.1: the hash of the token, and the key that it is bound to.
      if (ath !== createHash('sha256').update(accessToken).digest('base64url') || thumbprint !== jkt) {
        return 'invalid_dpop_proof';
      }
      if (requireNonce) {
        const step = currentStep();
        if (![step, step - 1].some((known) => equals(nonce, nonceAt(known)))) return 'use_dpop_nonce';
      }
      const expiresAt = Math.floor(Date.now() / 1_000) + 2 * proofSeconds;
      return (await useProof(db, `dpop:${thumbprint}`, jti, expiresAt)) ? null : 'invalid_dpop_proof';
    },
  };
}

async function readProof(proof: string) {
  try {
    // RFC 9449 section 4.3: type, asymmetric algorithm, public key in the header, signature.
    const { payload, protectedHeader } = await jwtVerify(proof, EmbeddedJWK, {
      typ: 'dpop+jwt',
      algorithms: [...dpopAlgorithms],
      requiredClaims: ['iat', 'jti', 'htm', 'htu', 'ath'],
      clockTolerance: proofSeconds,
    });
    const { iat, jti, htm, htu, ath, nonce } = payload as Record<string, unknown>;
    if (![jti, htm, htu, ath].every((value) => typeof value === 'string' && value.length <= 2_048))
      return undefined;
    return {
      iat: Number(iat),
      jti: String(jti),
      htm: String(htm),
      htu: String(htu),
      ath: String(ath),
      nonce: typeof nonce === 'string' ? nonce : '',
      thumbprint: await calculateJwkThumbprint(protectedHeader.jwk as JWK),
    };
  } catch {
    return undefined;
  }
}

function isSameAddress(htu: string, expected: string): boolean {
  const url = URL.parse(htu);
  if (url === null) return false;
  url.search = '';
  url.hash = '';
  return url.href === new URL(expected).href;
}

function equals(a: string, b: string): boolean {
  return a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b));
}
