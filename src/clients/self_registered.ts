/**
 * Clients that the operator did not register: self-registered apps (RFC 7591) and apps with a metadata document. Writes
 * the table `clients`, as client.ts does.
 *
 *   registered → replaced (RFC 7592) … → deleted by the app | removed after 30 days without use, unless suspended
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../database/database.ts';
import { steadyNow } from '../database/steady_clock.ts';
import { type Client, clientColumns, type NewClient } from './client.ts';
import { addClientSecret } from './client_secret.ts';

/** Days without use after which a client is removed. */
const unusedDays = 30;

/** Whether anybody could have registered the client. */
export function isSelfRegistered({ origin }: Pick<Client, 'origin'>): boolean {
  return origin === 'registration' || origin === 'document';
}

/** The properties that an app describes itself; the operator controls the others. */
export type SelfDescription = Required<
  Pick<NewClient, 'name' | 'redirectUris' | 'grantTypes' | 'scopes' | 'authMethod' | 'metadata'>
>;

/**
 * Replaces the whole description of a registered client (RFC 7592 section 2.2).
 * @param secret a new secret; undefined to keep the current one. Methods without a secret delete all secrets.
 * @returns undefined if there is no self-registered client with the id
 */
export async function replaceRegisteredClient(
  tx: Transaction,
  id: string,
  description: SelfDescription,
  secret: string | undefined,
): Promise<Client | undefined> {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = description;
  const { rows } = await sql<Client>`
    update clients set
      name = ${name}, redirect_uris = ${redirectUris}, grant_types = ${grantTypes}, scopes = ${scopes},
      auth_method = ${authMethod}, metadata = ${JSON.stringify(metadata)}, updated_at = now()
    where id = ${id} and origin = 'registration'
    returning ${clientColumns()}`.execute(tx);
  if (rows[0] === undefined) return undefined;
  if (!authMethod.startsWith('client_secret_')) {
    await sql`delete from client_secrets where client_id = ${id}`.execute(tx);
  } else if (secret !== undefined) {
    await addClientSecret(tx, id, secret);
  }
  return rows[0];
}

/**
 * Stores the content of a metadata document as a client, so that other code finds it like any other.
 * @returns undefined if the operator disabled the client or has registered another one with the id
 */
export async function saveDocumentClient(
  db: Database | Transaction,
  id: string,
  description: SelfDescription,
): Promise<Client | undefined> {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = description;
  const { rows } = await sql<Client>`
    insert into clients as c (id, origin, name, redirect_uris, grant_types, scopes, auth_method, metadata)
    values (${id}, 'document', ${name}, ${redirectUris}, ${grantTypes}, ${scopes}, ${authMethod},
      ${JSON.stringify(metadata)})
    on conflict (id) do update set
      name = excluded.name, redirect_uris = excluded.redirect_uris, grant_types = excluded.grant_types,
      scopes = excluded.scopes, auth_method = excluded.auth_method, metadata = excluded.metadata,
      updated_at = now()
    where c.origin = 'document' and not c.is_stopped
    returning ${clientColumns('c')}`.execute(db);
  return rows[0];
}

/**
 * Removes self-registered clients to which no user has granted access for 30 days, except suspended ones.
 * @param max maximum number to remove
 * @returns the number removed
 */
export async function removeUnusedClients(db: Database | Transaction, max: number): Promise<number> {
  const { rows } = await sql`
    delete from clients where id in (
      select c.id from clients c
      where c.origin in ('registration', 'document')
        -- A suspended client would return without its suspension.
        and not c.is_stopped
        and c.updated_at < ${steadyNow()} - ${unusedDays} * interval '1 day'
        -- Each condition has an index of its own, in which it looks for one client (offset 0): there can be millions of withdrawn grants.
        and not exists (select from grants g where g.client_id = c.id and g.withdrawn_at is null offset 0)
        and not exists (
          select from grants g
          where g.client_id = c.id and g.withdrawn_at > ${steadyNow()} - ${unusedDays} * interval '1 day' offset 0)
      order by c.created_at
      limit ${max}
      for update skip locked)
    returning id`.execute(db);
  return rows.length;
}
