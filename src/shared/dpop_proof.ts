/**
 * DPoP proofs at a resource server (RFC 9449 sections 4.3 and 7.1): the sender of an access token proves possession of the key
 * that it is bound to. The caller checks the nonce, and that each proof is used once.
 */

import { createHash } from 'node:crypto';
import { calculateJwkThumbprint, EmbeddedJWK, type JWK, jwtVerify } from 'jose';

/**
 * Signature algorithms accepted in proofs. All are asymmetric (RFC 9449 section 4.2). None is of RSA: whoever sends a proof chooses
 * its key, and the exponent of an RSA key decides what a verification costs.
 */
export const proofAlgorithms = ['ES256', 'Ed25519', 'EdDSA'] as const;

/** Maximum difference between `iat` and this machine's clock, in seconds. */
export const proofSecondsMax = 60;
/** Maximum length of a proof and of its `jti`, in characters. */
const proofLengthMax = 8_192;
const jtiLengthMax = 512;

export interface ProofTarget {
  method: string;
  /** The public URL of the request, without query and fragment. */
  url: string;
  token: string;
  /** RFC 7638 thumbprint of the key that the token is bound to. */
  jkt: string;
}

/** A proof that is valid if its nonce is, and if it has not been used before. */
export interface VerifiedProof {
  nonce: string | undefined;
  /** Identifies the proof together with the thumbprint of the key. */
  jti: string;
}

/**
 * Verifies a proof.
 * @param proof value of the `DPoP` header
 * @returns the proof, or the reason why it is invalid
 */
export async function verifyProof(proof: string, target: ProofTarget): Promise<VerifiedProof | string> {
  // RFC 9449 section 4.3 number 1. Node joins repeated headers by a comma, which no JWT contains.
  if (proof.includes(',')) return 'The request must have only one DPoP header.';
  if (proof.length > proofLengthMax) return 'The DPoP proof is too long.';
  const verified = await verifySignature(proof);
  if (verified === undefined) return 'The DPoP proof is not a JWT signed by the key it contains.';
  const { payload, thumbprint } = verified;
  if (payload.htm !== target.method) return 'The htm of the DPoP proof does not match the method.';
  if (!isSameTarget(payload.htu, target.url)) return 'The htu of the DPoP proof does not match the URL.';
  if (payload.ath !== createHash('sha256').update(target.token).digest('base64url'))
    return 'The ath of the DPoP proof does not match the token.';
  const { iat, jti, nonce } = payload;
  if (typeof iat !== 'number' || Math.abs(Date.now() / 1_000 - iat) > proofSecondsMax)
    return 'The iat of the DPoP proof is too far from the current time.';
  if (typeof jti !== 'string' || jti === '' || jti.length > jtiLengthMax)
    return 'The DPoP proof must contain a jti.';
  if (thumbprint !== target.jkt) return 'The DPoP proof is signed by another key than the token is bound to.';
  return { nonce: typeof nonce === 'string' ? nonce : undefined, jti };
}

/** RFC 9449 section 4.3 numbers 4 to 7: type, asymmetric algorithm, public key in the header, valid signature. */
async function verifySignature(
  proof: string,
): Promise<{ payload: Record<string, unknown>; thumbprint: string } | undefined> {
  try {
    const { payload, protectedHeader } = await jwtVerify(proof, EmbeddedJWK, {
      typ: 'dpop+jwt',
      algorithms: [...proofAlgorithms],
      clockTolerance: proofSecondsMax,
    });
    return { payload, thumbprint: await calculateJwkThumbprint(protectedHeader.jwk as JWK) };
  } catch {
    return undefined;
  }
}

/** RFC 9449 section 4.3 number 9: compares without query and fragment, after normalization (RFC 3986 section 6.2). */
function isSameTarget(htu: unknown, expected: string): boolean {
  const url = typeof htu === 'string' ? URL.parse(htu) : null;
  if (url === null) return false;
  url.search = '';
  url.hash = '';
  return url.href === URL.parse(expected)?.href;
}
