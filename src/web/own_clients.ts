/** Creates the server's own apps at start (clients/own_clients.ts). Also writes the table `clients` (clients/client.ts). */

import { sql } from 'kysely';
import { ownClients } from '../clients/own_clients.ts';
import type { Database } from '../database/database.ts';
import { endClient } from '../grants/grant.ts';

/**
 * Creates missing apps, and updates redirect URIs and scopes. An app that the operator disabled stays disabled. A different app
 * with such an id is deleted with its grants.
 * @param scopes all scopes that users can grant
 */
export async function ensureOwnClients(
  db: Database,
  baseUrl: string,
  scopes: readonly string[],
): Promise<void> {
  for (const { id, name, redirectUri, grantTypes, scopes: own } of ownClients(baseUrl, scopes)) {
    const { rows } = await sql`
      select id from clients
      where id = ${id} and (origin, name, auth_method) is distinct from ('operator', ${name}, 'none')`.execute(
      db,
    );
    if (rows.length > 0) await endClient(db, id);
    await sql`
      insert into clients as c (id, origin, name, redirect_uris, grant_types, scopes, auth_method)
      values (${id}, 'operator', ${name}, ${redirectUri === null ? [] : [redirectUri]}::text[], ${grantTypes}::text[], ${own}::text[], 'none')
      on conflict (id) do update set
        redirect_uris = excluded.redirect_uris, grant_types = excluded.grant_types, scopes = excluded.scopes,
        require_pkce = true, may_subscribe = false, metadata = '{}', updated_at = now()
      where (c.redirect_uris, c.grant_types, c.scopes, c.require_pkce, c.may_subscribe, c.metadata)
        is distinct from (excluded.redirect_uris, excluded.grant_types, excluded.scopes, true, false, '{}'::jsonb)`.execute(
      db,
    );
  }
}
