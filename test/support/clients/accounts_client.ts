/** An application that keeps its own users and manages their accounts by their external ids. */

import type { ReachableServer } from '../servers/server.ts';
import { type ApiResponse, requester } from './api_client.ts';
import { clientToken, createTestClient } from './oauth.ts';

/** Creates a machine client that manages accounts and publishes events. */
export async function createAccountsClient(server: ReachableServer) {
  const scopes = ['read:accounts', 'write:accounts', 'write:logins', 'write:events'];
  const client = await createTestClient(server, { scopes });
  const request = requester(server, await clientToken(server, client, scopes));
  return {
    client,
    scopes,
    request,
    /** Returns the accounts with the external id. */
    async find(externalId: string): Promise<ApiResponse['body']> {
      return (await request('GET', `/accounts?${new URLSearchParams({ external_id: externalId })}`)).body
        .items;
    },
  };
}

/** The path of an account by its external id. */
export function externalPath(externalId: string): string {
  return `/accounts/external/${encodeURIComponent(externalId)}`;
}
