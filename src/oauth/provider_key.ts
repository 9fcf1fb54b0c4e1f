/**
 * A signing key for oidc-provider. oidc-provider would sign with WebCrypto, which hands each signature to another thread; for
 * ES256 that takes longer than the signature itself.
 *
 * This thread computes ES256 signatures in a batch at the end of the current turn of the event loop. It then writes all responses
 * of the turn back to back. Written one at a time, each response would wake a client or proxy that went to sleep after the
 * previous one. That costs this thread more than the signature.
 */

import { createPrivateKey, createPublicKey, type KeyObject, sign } from 'node:crypto';
import type { JWK } from 'jose';
import { ExternalSigningKey } from 'oidc-provider';

/** oidc-provider recognizes external keys by this base class. */
export class ProviderKey extends ExternalSigningKey {
  readonly #jwk: JWK;
  readonly #privateKey: KeyObject;
  readonly #publicKey: KeyObject;

  /** @param jwk private key with `kid` and an `alg` of ES256 or RS256 */
  constructor(jwk: JWK) {
    super();
    this.#jwk = jwk;
    this.#privateKey = createPrivateKey({ key: jwk, format: 'jwk' });
    this.#publicKey = createPublicKey(this.#privateKey);
  }

  override get kid(): string | undefined {
    return this.#jwk.kid;
  }

  override get alg(): string | undefined {
    return this.#jwk.alg;
  }

  override keyObject(): KeyObject {
    return this.#publicKey;
  }

  override sign(data: Uint8Array): Promise<Uint8Array> {
    // RFC 7518 section 3.4: the concatenation of R and S. Takes about 25 microseconds.
    if (this.#jwk.alg === 'ES256') {
      return atEndOfTurn(() => sign('sha256', data, { key: this.#privateKey, dsaEncoding: 'ieee-p1363' }));
    }
    // RFC 7518 section 3.3. Takes several hundred microseconds, too long for the event loop.
    return new Promise((resolve, reject) => {
      sign('sha256', data, this.#privateKey, (error, signature) => {
        if (error === null) resolve(signature);
        else reject(error);
      });
    });
  }
}

/** Signatures requested in this turn of the event loop. */
let pending: (() => void)[] = [];

function atEndOfTurn<T>(work: () => T): Promise<T> {
  return new Promise((resolve, reject) => {
    const length = pending.push(() => {
      try {
        resolve(work());
      } catch (error) {
        reject(error);
      }
    });
    if (length === 1) setImmediate(runPending);
  });
}

/** Computes all signatures first. The promises' continuations run after this function. */
function runPending(): void {
  const tasks = pending;
  pending = [];
  for (const task of tasks) task();
}
