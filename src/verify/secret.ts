/** Signatures by a secret: `timestamp`, `sha256` and `standard`. */

import { type Bytes, fromBase64 } from './bytes.ts';
import { VerificationError } from './error.ts';
import { isSigned, type Signature } from './signature.ts';

/** Bodies up to this size are examined for the reason why no secret matches. */
const examinedBytesMax = 300_000;

/**
 * @throws VerificationError if none of the secrets has signed the body, or one is not a secret
 */
export async function checkSecrets(
  signature: Signature,
  body: Bytes,
  secrets: readonly unknown[],
): Promise<void> {
  if (secrets.length === 0) {
    throw new VerificationError('no-secret', `A delivery signed with ${signature.format} needs a secret.`);
  }
  const keys = await Promise.all(
    secrets.map((secret) => importSecret(secret, signature.format === 'standard')),
  );
  if (isOtherFormat(signature, body) || !(await isSigned(signature, body, 'HMAC', keys))) {
    throw new VerificationError('no-matching-secret', await reasonOf(signature, body, keys));
  }
}

/**
 * The body of a `sha256` signature could be the signed bytes of a `timestamp` one, which nothing would protect from replays.
 * They are no JSON.
 */
function isOtherFormat({ format }: Signature, body: Bytes): boolean {
  return format === 'sha256' && /^\d+\.(?!\d)/.test(new TextDecoder().decode(body.subarray(0, 32)));
}

async function importSecret(secret: unknown, isEncoded: boolean): Promise<CryptoKey> {
  const text = typeof secret === 'string' ? secret : '';
  const bytes = isEncoded ? fromBase64(text.replace(/^whsec_/, '')) : new TextEncoder().encode(text);
  if (text === '' || text !== text.trim() || bytes === undefined || bytes.length === 0) {
    throw new VerificationError(
      'malformed-secret',
      'A secret is whsec_ and base64, without spaces around it.',
    );
  }
  return crypto.subtle.importKey('raw', bytes, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify']);
}

async function reasonOf(signature: Signature, body: Bytes, keys: readonly CryptoKey[]): Promise<string> {
  if (body.length === 0) {
    return 'The body is empty: something has read it before.';
  }
  for (const text of rewritten(body)) {
    if (await isSigned(signature, new TextEncoder().encode(text), 'HMAC', keys)) {
      return (
        'The body was changed: the secret matches the same JSON with other white space. ' +
        'Pass the bytes of the request.'
      );
    }
  }
  return 'The secret is of another subscription or was replaced, or the body was changed on its way.';
}

/** The same JSON as other serializers write it: without spaces, and with one after each comma and colon. */
function rewritten(body: Bytes): string[] {
  if (body.length > examinedBytesMax) return [];
  const text = new TextDecoder().decode(body);
  try {
    const compact = JSON.stringify(JSON.parse(text));
    // Not by an indent, whose output grows with the product of depth and length.
    const spaced = compact.replace(/"(?:[^"\\]+|\\.)*"|[,:]/g, (token) =>
      token.length > 1 ? token : `${token} `,
    );
    return [compact, spaced, text.trim()];
  } catch {
    return [];
  }
}
