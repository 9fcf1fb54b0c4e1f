/**
 * Pairwise subjects (OpenID Connect Core section 8.1): a client registered with `subject_type: pairwise` knows each user
 * by a name that no client of another host knows. It is a keyed hash, so nothing is stored for it.
 *
 * That is about what clients read. Access tokens are for APIs, which must know whose resources they serve: there, and
 * in what an API is told by introspection, the user goes by the account's own id. The tokens of such a client are
 * opaque, so that it cannot read them (features.ts).
 */

import { createHmac } from 'node:crypto';
import type { Configuration } from 'oidc-provider';
import { deriveKey } from '../crypto/sealing.ts';

export function pairwiseSubjects(
  secret: Buffer,
): Required<Pick<Configuration, 'subjectTypes' | 'pairwiseIdentifier'>> {
  const key = deriveKey(secret, 'pairwise-subject');
  return {
    subjectTypes: ['public', 'pairwise'],
    async pairwiseIdentifier(ctx, accountId, client) {
      // Logout tokens are made outside of a request.
      const oidc = ctx?.oidc;
      const isForApi = oidc?.route === 'introspection' && oidc.client?.clientId !== client.clientId;
      if (isForApi) return accountId;
      return createHmac('sha256', key).update(`${client.sectorIdentifier}\n${accountId}`).digest('base64url');
    },
  };
}
