/**
 * Connected apps: the apps that a user has granted access, one entry per app regardless of its number of grants. The server's
 * own apps are not listed: they are parts of this server, and their grants end when the user signs out.
 */

import { sql } from 'kysely';
import { readAuditPage } from '../audit/audit_page.ts';
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
  /** When a token was last issued to it, to the hour. */
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
      greatest(max(g.created_at), max(g.last_used_at)) as "lastUsedAt"
    from grants g
    left join clients c on c.id = g.client_id
    where g.account_id = ${accountId} and g.withdrawn_at is null and g.client_id <> all(${ownClientIds}::text[])
    group by g.client_id
    order by "lastUsedAt" desc`.execute(db);
  return rows;
}

/** Latest entries of the audit log that are searched for a withdrawal: more than the grants that a user ends at once. */
const searchedEntries = 200;

/**
 * The name of an app whose grants the account has withdrawn lately, all of them; undefined for all other apps. Grants have no index of
 * those that are withdrawn.
 */
export async function findWithdrawnApp(
  db: Database,
  accountId: string,
  clientId: string,
): Promise<string | undefined> {
  const of = { account: accountId, client: null, withTokens: false, until: null };
  const entries = await readAuditPage(db, of, null, searchedEntries);
  if (!entries.some((entry) => entry.kind === 'grant.withdrawn' && entry.clientId === clientId))
    return undefined;
  const { rows } = await sql<{ name: string }>`
    select coalesce((select name from clients where id = ${clientId}), ${clientId}::text) as name
    where not exists (
      select from grants where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null)`.execute(
    db,
  );
  return rows[0]?.name;
}
