/**
 * Pairwise subjects (OpenID Connect Core section 8.1): a client registered with `subject_type: pairwise` knows each user
 * by a name that no client of another host knows. It is a keyed hash, so nothing is stored for it. A client that has
 * no host to be its own, as an installed app, shares its names with no other client.
 *
 * That is about what clients read. Access tokens are for APIs, which must know whose resources they serve: there, and
 * in what an API is told by introspection, the user goes by the account's own id. The tokens of such a client are
 * opaque, so that it cannot read them (features.ts). `GET /api` says the client's name, for it needs no scope; what else the
 * user lets the client read here (authors, sources of CloudEvents) has the account's id in it.
 */

import { createHmac } from 'node:crypto';
import type { Configuration, Provider } from 'oidc-provider';
import type { ClientCache } from '../clients/client_cache.ts';
import { isLoopbackHost } from '../config/config.ts';
import { deriveKey } from '../crypto/sealing.ts';
import type { Principal } from '../grants/principal.ts';

export function pairwiseSubjects(
  secret: Buffer,
): Required<Pick<Configuration, 'subjectTypes' | 'pairwiseIdentifier'>> {
  const nameAt = pairwiseNames(secret);
  return {
    subjectTypes: ['public', 'pairwise'],
    async pairwiseIdentifier(ctx, accountId, client) {
      // Logout tokens are made outside of a request.
      const oidc = ctx?.oidc;
      const isForApi = oidc?.route === 'introspection' && oidc.client?.clientId !== client.clientId;
      return isForApi ? accountId : nameAt(client, accountId);
    },
  };
}

/** Whom a token's client knows its user as; null where it has none. */
export type SubjectOf = (principal: Pick<Principal, 'accountId' | 'clientId'>) => Promise<string | null>;

export function createSubjects(secret: Buffer, clients: ClientCache, provider: () => Provider): SubjectOf {
  const nameAt = pairwiseNames(secret);
  return async ({ accountId, clientId }) => {
    if (accountId === null) return null;
    const cached = await clients.find(clientId);
    if (cached !== undefined && cached.client.metadata.subject_type !== 'pairwise') return accountId;
    const client = await provider().Client.find(clientId);
    return client === undefined ? null : nameAt(client, accountId);
  };
}

function pairwiseNames(secret: Buffer): (client: EngineClient, accountId: string) => string {
  const key = deriveKey(secret, 'pairwise-subject');
  return (client, accountId) =>
    createHmac('sha256', key)
      .update(`${sectorOf(client)}\n${accountId}`)
      .digest('base64url');
}

type EngineClient = InstanceType<Provider['Client']>;

/** The host that a client is known to be of, or else what is the client's alone. */
function sectorOf(client: EngineClient): string {
  const host = String(client.sectorIdentifier ?? '');
  if (client.sectorIdentifierUri !== undefined) return host;
  // Private-use schemes have no host, and every device has a loopback.
  return host === '' || isLoopbackHost(host.replace(/:\d+$/, '')) ? `client ${client.clientId}` : host;
}
