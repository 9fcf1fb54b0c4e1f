/** Opaque access tokens of this server (shared/opaque_token.ts has their form). */

import { newSecret } from '../crypto/digest.ts';
import { isOpaqueToken as hasForm, withChecksum } from '../shared/opaque_token.ts';

/** Published in the metadata document (discovery.ts), where `nuncio/protect` learns it. */
export const opaqueTokenPrefix = 'nat_';

/** @returns a new token with 256 random bits */
export function newOpaqueToken(): string {
  return withChecksum(opaqueTokenPrefix + newSecret());
}

/** Whether a token has the form of this server's opaque access tokens. */
export function isOpaqueToken(token: string): boolean {
  return hasForm(token, opaqueTokenPrefix);
}
