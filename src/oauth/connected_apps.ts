/**
 * Connected apps: the apps that a user has granted access, one entry per app regardless of its number of grants. The server's
 * own apps are not listed: they are parts of this server, and their grants end when the user signs out.
 */

import { sql } from 'kysely';
import { ownClientIds } from '../clients/own_clients.ts';
import type { Database, Transaction } from '../database/database.ts';

export interface ConnectedApp {
  clientId: string;
  name: string;
  /** Path of its logo; null if there is none. */
  logo: string | null;
  /** Whether the operator marked it to have own subscriptions. */
  maySubscribe: boolean;
  /** Union of the scopes of all its grants, sorted. */
  scopes: string[];
  since: Date;
  /** When a token was last issued to it. */
  lastUsedAt: Date;
}

/** Lists the connected apps of an account, most recently used first. */
export async function listConnectedApps(
  db: Database | Transaction,
  accountId: string,
): Promise<ConnectedApp[]> {
  const { rows } = await sql<ConnectedApp>`
    select g.client_id as "clientId", coalesce(max(c.name), g.client_id) as name,
      '/logos/' || max(c.logo) filter (where not c.is_stopped) as logo,
      coalesce(bool_or(c.may_subscribe), false) as "maySubscribe",
      array(select distinct unnest(string_to_array(string_agg(array_to_string(g.scopes, ' '), ' '), ' ')) order by 1)
        as scopes,
      min(g.created_at) as since,
      greatest(max(g.created_at), max(t.created_at)) as "lastUsedAt"
    from grants g
    left join clients c on c.id = g.client_id
    left join lateral (
      select max(created_at) as created_at from refresh_tokens where grant_id = g.id) t on true
    where g.account_id = ${accountId} and g.withdrawn_at is null and g.client_id <> all(${ownClientIds}::text[])
    group by g.client_id
    order by "lastUsedAt" desc`.execute(db);
  return rows;
}

/** The name of an app whose grants are all withdrawn; undefined for all other apps. */
export async function findWithdrawnApp(
  db: Database,
  accountId: string,
  clientId: string,
): Promise<string | undefined> {
  const { rows } = await sql<{ name: string }>`
    select coalesce(max(c.name), g.client_id) as name
    from grants g
    left join clients c on c.id = g.client_id
    where g.account_id = ${accountId} and g.client_id = ${clientId}
    group by g.client_id
    having bool_and(g.withdrawn_at is not null)`.execute(db);
  return rows[0]?.name;
}
