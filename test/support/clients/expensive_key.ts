/** An RSA key whose signatures are valid and expensive to verify: its public exponent is nearly as long as its modulus. */

import { createPrivateKey, generatePrimeSync, randomBytes } from 'node:crypto';
import type { JWK } from 'jose';

const modulusBits = 3_072;
const exponentBits = 3_064;

export function createExpensiveKey(): { privateJwk: JWK; publicJwk: JWK } {
  for (;;) {
    const [p, q] = [prime(), prime()];
    const n = p * q;
    const e = randomOdd(exponentBits);
    const d = inverse(e, (p - 1n) * (q - 1n));
    if (d === undefined || n >> BigInt(modulusBits - 1) === 0n) continue;
    const publicJwk = { kty: 'RSA', n: encode(n), e: encode(e) };
    const crt = { dp: encode(d % (p - 1n)), dq: encode(d % (q - 1n)), qi: encode(inverse(q, p) as bigint) };
    const privateJwk = { ...publicJwk, d: encode(d), p: encode(p), q: encode(q), ...crt };
    // OpenSSL checks what belongs together.
    createPrivateKey({ key: privateJwk, format: 'jwk' });
    return { privateJwk, publicJwk };
  }
}

function prime(): bigint {
  return generatePrimeSync(modulusBits / 2, { bigint: true });
}

function randomOdd(bits: number): bigint {
  const bytes = randomBytes(bits / 8);
  bytes[0] = (bytes[0] as number) | 0x80;
  return BigInt(`0x${bytes.toString('hex')}`) | 1n;
}

/** The extended Euclidean algorithm. */
function inverse(value: bigint, modulus: bigint): bigint | undefined {
  let [rest, nextRest, factor, nextFactor] = [modulus, value % modulus, 0n, 1n];
  while (nextRest !== 0n) {
    const quotient = rest / nextRest;
    [rest, nextRest] = [nextRest, rest - quotient * nextRest];
    [factor, nextFactor] = [nextFactor, factor - quotient * nextFactor];
  }
  return rest === 1n ? (factor + modulus) % modulus : undefined;
}

function encode(value: bigint): string {
  const hex = value.toString(16);
  return Buffer.from(hex.length % 2 === 0 ? hex : `0${hex}`, 'hex').toString('base64url');
}
