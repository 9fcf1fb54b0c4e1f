/**
 * Clients that nobody of the operator registered: the app itself did (RFC 7591), or it is known by its metadata
 * document. Writes the table `clients` beside client.ts.
 *
 *   registered → replaced (RFC 7592) … → deleted by the app | removed, unused for 30 days
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../database/database.ts';
import { type Client, type ClientRow, type NewClient, toClient } from './client.ts';
import { addClientSecret } from './client_secret.ts';

/** Days after which one that nobody uses is removed. */
export const unusedDays = 30;

/** What an app says of itself; the rest is the operator's. */
export type SelfDescription = Required<
  Pick<NewClient, 'name' | 'redirectUris' | 'grantTypes' | 'scopes' | 'authMethod' | 'metadata'>
>;

/**
 * RFC 7592 section 2.2: the new description takes the place of the whole old one.
 * @param secret a new one, undefined where the old one stays; a method without a secret ends all of them
 * @returns undefined when it is not there, or not the app's own
 */
export async function replaceRegisteredClient(
  tx: Transaction,
  id: string,
  description: SelfDescription,
  secret: string | undefined,
): Promise<Client | undefined> {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = description;
  const { rows } = await sql<ClientRow>`
    update clients set
      name = ${name}, redirect_uris = ${redirectUris}, grant_types = ${grantTypes}, scopes = ${scopes},
      auth_method = ${authMethod}, metadata = ${JSON.stringify(metadata)}, updated_at = now()
    where id = ${id} and origin = 'registration'
    returning *`.execute(tx);
  if (rows[0] === undefined) return undefined;
  if (!authMethod.startsWith('client_secret_')) {
    await sql`delete from client_secrets where client_id = ${id}`.execute(tx);
  } else if (secret !== undefined) {
    await addClientSecret(tx, id, secret);
  }
  return toClient(rows[0]);
}

/**
 * Keeps what a metadata document says, so that everything else finds the client like any other.
 * @returns undefined when the operator disabled it, or has a client of his own by that id
 */
export async function saveDocumentClient(
  db: Database | Transaction,
  id: string,
  description: SelfDescription,
): Promise<Client | undefined> {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = description;
  const { rows } = await sql<ClientRow>`
    insert into clients as c (id, origin, name, redirect_uris, grant_types, scopes, auth_method, metadata)
    values (${id}, 'document', ${name}, ${redirectUris}, ${grantTypes}, ${scopes}, ${authMethod},
      ${JSON.stringify(metadata)})
    on conflict (id) do update set
      name = excluded.name, redirect_uris = excluded.redirect_uris, grant_types = excluded.grant_types,
      scopes = excluded.scopes, auth_method = excluded.auth_method, metadata = excluded.metadata,
      updated_at = now()
    where c.origin = 'document' and not c.is_stopped
    returning *`.execute(db);
  return rows[0] && toClient(rows[0]);
}

/**
 * Removes those that no user has allowed anything for 30 days. One that a user still allows something stays,
 * however long ago it was last seen.
 * @param max removed at most
 * @returns how many were removed
 */
export async function removeUnusedClients(db: Database | Transaction, max: number): Promise<number> {
  const { rows } = await sql`
    delete from clients where id in (
      select c.id from clients c
      where c.origin in ('registration', 'document')
        and c.disabled_at is null
        and c.updated_at < now() - ${unusedDays} * interval '1 day'
        and not exists (
          select from grants g
          where g.client_id = c.id
            and (g.withdrawn_at is null or g.withdrawn_at > now() - ${unusedDays} * interval '1 day'))
      order by c.created_at
      limit ${max}
      for update skip locked)
    returning id`.execute(db);
  return rows.length;
}
