/**
 * Limits on the public keys of apps (RFC 7517), registered by value (`jwks`) or by URL (`jwks_uri`). Anyone can register keys and
 * make the server verify signatures with them, so every verification must be cheap: that of RSA grows with the exponent and the
 * modulus.
 */

/** Maximum number of keys of an app. */
export const keysMax = 20;
/** Maximum length of a key set as JSON. It is read with the app, also in lists of apps. */
const keySetLengthMax = 65_536;

/** RFC 7518 section 6.3.1.2: base64url of 65537, which nearly every RSA key has. Larger exponents are slow, smaller ones fragile. */
const rsaExponent = 'AQAB';
const rsaBits = { min: 2_048, max: 4_096 };

/** Accepted values of `crv`. Signatures use P-256 and Ed25519; certificates and keys for encryption may have the others. */
const curves: ReadonlyMap<unknown, readonly string[]> = new Map([
  ['EC', ['P-256', 'P-384', 'P-521']],
  ['OKP', ['Ed25519', 'X25519']],
]);

type Key = Readonly<Record<string, unknown>>;

/** @returns the error of a key set, which begins with `jwks`; undefined if there is none */
export function keySetError(jwks: unknown): string | undefined {
  const keys = isObject(jwks) ? jwks.keys : undefined;
  if (!Array.isArray(keys) || !keys.every(isObject)) return 'jwks must have an array of keys (RFC 7517)';
  if (keys.length > keysMax) return `jwks has more than ${keysMax} keys`;
  const { length } = JSON.stringify(jwks);
  if (length > keySetLengthMax) return `jwks has more than ${keySetLengthMax} characters as JSON`;
  for (const [index, key] of keys.entries()) {
    const error = keyError(key);
    if (error !== undefined) return `jwks.keys[${index}] ${error}`;
  }
  return undefined;
}

/** @returns why the server does not use a key; undefined for types that it does not know, which RFC 7517 section 5 says to ignore */
export function keyError(key: Key): string | undefined {
  const error = memberError(key);
  if (error !== undefined) return error;
  if (key.kty === 'RSA') return rsaError(key);
  const allowed = curves.get(key.kty);
  if (allowed === undefined || allowed.includes(String(key.crv))) return undefined;
  return `must have a crv of ${allowed.join(', ')}`;
}

/** RFC 7517 section 4 and RFC 7518 section 6: members are texts, and `key_ops` and `x5c` lists of texts. Others could take 25 times the memory of their JSON. */
function memberError(key: Key): string | undefined {
  const hasNested = Object.values(key)
    .flat()
    .some((value) => typeof value === 'object' && value !== null);
  return hasNested ? 'has a member that is an object or a list of lists' : undefined;
}

function rsaError({ e, n }: Key): string | undefined {
  if (e !== rsaExponent) return `must have the RSA exponent 65537 (e ${rsaExponent})`;
  const bits = typeof n === 'string' ? bitLength(n) : 0;
  if (bits >= rsaBits.min && bits <= rsaBits.max) return undefined;
  return `must have an RSA modulus of ${rsaBits.min} to ${rsaBits.max} bits`;
}

/** @returns zero if the text is not base64url */
function bitLength(text: string): number {
  if (!/^[\w-]+$/.test(text)) return 0;
  const bytes = Buffer.from(text, 'base64url');
  const first = bytes.findIndex((byte) => byte !== 0);
  return first === -1 ? 0 : (bytes.length - first) * 8 - (Math.clz32(bytes[first] as number) - 24);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
