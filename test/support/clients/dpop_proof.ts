/** DPoP proofs (RFC 9449), valid or with a chosen fault. */

import { createHash } from 'node:crypto';
import { calculateJwkThumbprint, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';
import { newId } from '../../../src/crypto/ids.ts';

export interface ProofKey {
  privateKey: CryptoKey;
  publicJwk: JWK;
  /** The thumbprint that a token is bound to. */
  jkt: string;
}

export async function createProofKey(algorithm = 'ES256'): Promise<ProofKey> {
  const { privateKey, publicKey } = await generateKeyPair(algorithm, { extractable: true });
  const publicJwk = await exportJWK(publicKey);
  return { privateKey, publicJwk, jkt: await calculateJwkThumbprint(publicJwk) };
}

export interface ProofChanges {
  claims?: Record<string, unknown>;
  header?: Record<string, unknown>;
}

/** Creates a proof for one request. `changes` replace members; undefined omits one. */
export async function createProof(
  key: ProofKey,
  request: { method: string; url: string; token: string },
  { claims = {}, header = {} }: ProofChanges = {},
): Promise<string> {
  return new SignJWT({
    htm: request.method,
    htu: request.url,
    ath: createHash('sha256').update(request.token).digest('base64url'),
    iat: Math.floor(Date.now() / 1_000),
    jti: newId(),
    ...claims,
  })
    .setProtectedHeader({ alg: 'ES256', typ: 'dpop+jwt', jwk: key.publicJwk, ...header })
    .sign(key.privateKey);
}
