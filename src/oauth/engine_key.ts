/**
 * A signing key in the form of the engine. The engine would sign by WebCrypto, which hands each signature to another
 * thread: for ES256 the handing over takes longer than the signature itself.
 *
 * ES256 is signed here, for all requests of a turn of the event loop together at its end, so that their answers go out
 * one right after the other. Signed one by one, each answer wakes a client (or a proxy) that has gone to sleep since the
 * one before; waking it up took this thread longer than the signature did.
 */

import { createPrivateKey, createPublicKey, type KeyObject, sign } from 'node:crypto';
import type { JWK } from 'jose';
import { ExternalSigningKey } from 'oidc-provider';

/** The engine tells its own kind of key by this class. */
export class EngineKey extends ExternalSigningKey {
  readonly #jwk: JWK;
  readonly #privateKey: KeyObject;
  readonly #publicKey: KeyObject;

  /** @param jwk private, with `kid`, and `alg` either ES256 or RS256 */
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
    // RFC 7518 section 3.4: the two numbers one after the other. Some 25 microseconds.
    if (this.#jwk.alg === 'ES256') {
      return atEndOfTurn(() => sign('sha256', data, { key: this.#privateKey, dsaEncoding: 'ieee-p1363' }));
    }
    // RFC 7518 section 3.3. Some hundreds of microseconds: not for the thread that answers everybody.
    return new Promise((resolve, reject) => {
      sign('sha256', data, this.#privateKey, (error, signature) => {
        if (error === null) resolve(signature);
        else reject(error);
      });
    });
  }
}

/** What was asked for in this turn of the event loop. */
let asked: (() => void)[] = [];

function atEndOfTurn<T>(work: () => T): Promise<T> {
  return new Promise((resolve, reject) => {
    const count = asked.push(() => {
      try {
        resolve(work());
      } catch (error) {
        reject(error);
      }
    });
    if (count === 1) setImmediate(doAsked);
  });
}

/** Who waits goes on when all is done: promises are looked at after this function. */
function doAsked(): void {
  const works = asked;
  asked = [];
  for (const work of works) work();
}
