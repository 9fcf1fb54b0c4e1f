/**
 * DPoP proofs at the server's own API (RFC 9449 section 7): a request proves possession of the key that its access
 * token is bound to. Used proofs are stored in the database, so that each proof is accepted once across all nodes.
 */

import { createHash, createHmac, timingSafeEqual } from 'node:crypto';
import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose';
import { deriveKey } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import { useProof } from './storage/used_proof.ts';

/** Signature algorithms accepted in proofs. All are asymmetric (RFC 9449 section 4.2). */
export const dpopAlgorithms = ['ES256', 'EdDSA', 'Ed25519'] as const;
/** Maximum difference between `iat` and the server's clock, in seconds. */
const proofSeconds = 60;
/** Lifetime of a nonce, in seconds. The previous nonce is accepted too. */
const nonceSeconds = 120;

export type ProofError = 'invalid_dpop_proof' | 'use_dpop_nonce';

export interface ProofRequest {
  proof: string;
  method: string;
  /** The request URL without query and fragment. */
  url: string;
  accessToken: string;
  /** RFC 7638 thumbprint of the key that the access token is bound to. */
  jkt: string;
}

export interface ProofChecker {
  /** @returns null if the proof is valid */
  check: (request: ProofRequest) => Promise<ProofError | null>;
  /** The nonce that clients must put into proofs; null if nonces are not required. */
  nonce: () => string | null;
}

/** @param secret the deployment's key material; nonces are derived from it */
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
      // RFC 9449 section 7.1: the proof contains the hash of the token and is signed by the key it is bound to.
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
    // RFC 9449 section 4.3: type, asymmetric algorithm, public key in the header, valid signature.
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
