/**
 * Pairwise subject identifiers (OpenID Connect Core section 8.1): a client registered with `subject_type: pairwise` gets its own
 * `sub` for each user. Clients of other hosts get another one. The identifier is a keyed hash, so nothing is stored. A client
 * without a host of its own, such as a native app, shares its identifiers with no other client. Neither does a client that the
 * operator did not register: it may name any host, and needs no redirect there to refresh a token or to connect a device.
 *
 * Pairwise identifiers concern what clients read. Access tokens are for APIs, which must know whose resources they serve. So
 * `sub` is the account id in tokens, and in introspection responses to an API. Such a client gets opaque tokens, which it cannot
 * read (features.ts). `GET /api` returns the client's identifier, because it requires no scope. Other data that the user lets the
 * client read (authors, the account of a delivery) contains the account id, and a delivery the external id.
 */

import { createHmac } from 'node:crypto';
import type { Configuration, Provider } from 'oidc-provider';
import type { ClientCache } from '../clients/client_cache.ts';
import { isLoopbackHost } from '../config/config.ts';
import { deriveKey } from '../crypto/sealing.ts';
import type { Principal } from '../grants/principal.ts';
import { isOfOperator } from './provider_client.ts';

export function pairwiseSubjects(
  secret: Buffer,
): Required<Pick<Configuration, 'subjectTypes' | 'pairwiseIdentifier'>> {
  const subjectFor = createPairwiseSubjects(secret);
  return {
    subjectTypes: ['public', 'pairwise'],
    async pairwiseIdentifier(ctx, accountId, client) {
      // Logout tokens are made outside of a request, without a context.
      const oidc = ctx?.oidc;
      const isForApi = oidc?.route === 'introspection' && oidc.client?.clientId !== client.clientId;
      return isForApi ? accountId : subjectFor(client, accountId);
    },
  };
}

/** Returns the subject identifier that the client of a token knows its user by; null for a token without a user. */
export type SubjectOf = (principal: Pick<Principal, 'accountId' | 'clientId'>) => Promise<string | null>;

export function createSubjects(secret: Buffer, clients: ClientCache, provider: () => Provider): SubjectOf {
  const subjectFor = createPairwiseSubjects(secret);
  return async ({ accountId, clientId }) => {
    if (accountId === null) return null;
    const cached = await clients.find(clientId);
    if (cached !== undefined && cached.client.metadata.subject_type !== 'pairwise') return accountId;
    const client = await provider().Client.find(clientId);
    return client === undefined ? null : subjectFor(client, accountId);
  };
}

function createPairwiseSubjects(secret: Buffer): (client: ProviderClient, accountId: string) => string {
  const key = deriveKey(secret, 'pairwise-subject');
  return (client, accountId) =>
    createHmac('sha256', key)
      .update(`${sectorOf(client)}\n${accountId}`)
      .digest('base64url');
}

type ProviderClient = InstanceType<Provider['Client']>;

/** The sector identifier of a client: its host, or a value of its own if it has no host or nobody vouches for it. */
function sectorOf(client: ProviderClient): string {
  if (!isOfOperator(client)) return `client ${client.clientId}`;
  const host = String(client.sectorIdentifier ?? '');
  if (client.sectorIdentifierUri !== undefined) return host;
  // Private-use schemes have no host, and every device has a loopback address.
  return host === '' || isLoopbackHost(host.replace(/:\d+$/, '')) ? `client ${client.clientId}` : host;
}
