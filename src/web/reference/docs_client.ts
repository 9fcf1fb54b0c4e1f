/** The app as which the reference page signs its reader in: public, with PKCE, for whatever a user can allow. */

import { ClientError, createClient, findClient } from '../../clients/client.ts';
import type { Database } from '../../database/database.ts';
import { endClient } from '../../grants/grant.ts';
import type { Scope } from '../../grants/scopes.ts';
import { docsClientId, docsRedirectUri } from './page.ts';

/** Makes it where it is not there, and anew where the server's own address or scopes have changed. */
export async function ensureDocsClient(
  db: Database,
  baseUrl: string,
  scopes: Iterable<Scope>,
): Promise<void> {
  const wanted = {
    id: docsClientId,
    name: 'API reference',
    redirectUris: [docsRedirectUri(baseUrl)],
    grantTypes: ['authorization_code'],
    scopes: [...scopes].filter((scope) => scope.isForUsers).map((scope) => scope.name),
    authMethod: 'none' as const,
  };
  const client = await findClient(db, docsClientId);
  if (client !== undefined) {
    const isSame =
      client.redirectUris.join(' ') === wanted.redirectUris.join(' ') &&
      wanted.scopes.every((scope) => client.scopes.includes(scope));
    if (isSame) return;
    await endClient(db, docsClientId);
  }
  try {
    await createClient(db, wanted);
  } catch (error) {
    // Another node was faster.
    if (!(error instanceof ClientError)) throw error;
  }
}
