/** The keys of a subscription's secrets. */

import type { KeyObject } from 'node:crypto';
import { type SignatureShape, standardKey, textKey } from '../subscriptions/signature.ts';
import type { Secrets } from '../subscriptions/subscription_secrets.ts';

/** The subscription's signing keys, newest first. */
export interface SigningKeys {
  both: readonly KeyObject[];
  newest: readonly KeyObject[];
  /** Milliseconds since 1970. Both keys sign until then. */
  bothUntil: number;
}

export function createSigningKeys({ secret, previous }: Secrets, signature: SignatureShape): SigningKeys {
  // The deployment's own keys sign.
  if (signature === 'ed25519') return { both: [], newest: [], bothUntil: 0 };
  const keyOf = signature === 'standard' ? standardKey : textKey;
  const newest = [keyOf(secret)];
  if (previous === null) return { both: newest, newest, bothUntil: 0 };
  return { both: [...newest, keyOf(previous.secret)], newest, bothUntil: previous.until.getTime() };
}
