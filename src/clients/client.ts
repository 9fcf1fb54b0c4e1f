/**
 * Clients: the apps (RFC 6749 section 2), with the metadata of RFC 7591 that Nuncio acts on in columns of their
 * own and the rest as it was registered. Owns the table `clients`; secrets are in client_secret.ts.
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import { addClientSecret } from './client_secret.ts';
import { isOwnClient } from './own_clients.ts';
import { redirectUriFault } from './redirect_uri.ts';

/** RFC 7591 section 2 and RFC 8705 section 2. */
export const authMethods = [
  'client_secret_basic',
  'client_secret_post',
  'private_key_jwt',
  'tls_client_auth',
  'self_signed_tls_client_auth',
  'none',
] as const;
export type AuthMethod = (typeof authMethods)[number];

export const deviceCodeGrantType = 'urn:ietf:params:oauth:grant-type:device_code';

/**
 * Who brought it in: the operator, the app itself (RFC 7591), the document that its id is the URL of, or an account
 * (src/apps).
 */
export type ClientOrigin = 'operator' | 'registration' | 'document' | 'account';

/** Whether an administrator has looked at it. Apps that the operator registered count as verified. */
export type ClientState = 'unverified' | 'verified' | 'suspended';

export interface Client {
  id: string;
  origin: ClientOrigin;
  name: string;
  redirectUris: readonly string[];
  /** Values of `grant_type`. */
  grantTypes: readonly string[];
  /** Scopes that it may ask for, and its default where it asks for none. */
  scopes: readonly string[];
  authMethod: AuthMethod;
  requirePkce: boolean;
  /** Whether its own token may subscribe to the events of every account that granted it. */
  maySubscribe: boolean;
  /** Further metadata in the names of RFC 7591. */
  metadata: Readonly<Record<string, unknown>>;
  /** Digest of the uploaded logo, which it is served under (src/apps/logo.ts); null without one. */
  logo: string | null;
  state: ClientState;
  createdAt: Date;
  updatedAt: Date;
  disabledAt: Date | null;
  /** Ends when the client is deleted or disabled; access tokens name the epoch that they were issued in. */
  epoch: string;
}

export interface NewClient {
  id?: string;
  /** By default the operator. */
  origin?: ClientOrigin;
  name: string;
  redirectUris?: readonly string[];
  grantTypes?: readonly string[];
  scopes?: readonly string[];
  authMethod?: AuthMethod;
  requirePkce?: boolean;
  maySubscribe?: boolean;
  metadata?: Readonly<Record<string, unknown>>;
  /** Made by default; whoever gives one answers for its 256 random bits. */
  secret?: string;
}

/** What was asked for is not a client; the message says what is wrong. */
export class ClientError extends Error {
  override readonly name = 'ClientError';
}

/**
 * Registers a client as the operator says; what an app developer may register is decided by the registration
 * endpoint.
 * @returns the client and its secret, which is shown this once (null for methods without a secret)
 * @throws ClientError when the id is taken or a field is not valid
 */
export async function createClient(
  db: Database | Transaction,
  client: NewClient,
): Promise<{ client: Client; secret: string | null }> {
  const authMethod = client.authMethod ?? 'client_secret_basic';
  const requirePkce = client.requirePkce ?? true;
  const id = client.id ?? newId();
  if (!/^[\x21-\x7e]{1,2048}$/.test(id))
    throw new ClientError('the id must be 1 to 2048 visible ASCII characters');
  if (client.name.trim() === '') throw new ClientError('the name must not be empty');
  if (authMethod === 'none' && !requirePkce) {
    throw new ClientError('a public client (method "none") cannot do without PKCE');
  }
  // RFC 6749 section 4.4: nobody proves to be a public client, so everybody would get its tokens.
  if (authMethod === 'none' && client.grantTypes?.includes('client_credentials') === true) {
    throw new ClientError('a public client (method "none") cannot have the grant type client_credentials');
  }
  if (isOwnClient(id)) throw new ClientError(`the id ${id} is that of an app of the server’s own`);
  for (const uri of client.redirectUris ?? []) {
    const fault = redirectUriFault(uri);
    if (fault !== undefined) throw new ClientError(`the redirect URI ${JSON.stringify(uri)} ${fault}`);
  }
  const { rows } = await sql<ClientRow>`
    insert into clients (
      id, origin, name, redirect_uris, grant_types, scopes, auth_method, require_pkce, may_subscribe, metadata)
    values (
      ${id}, ${client.origin ?? 'operator'}, ${client.name}, ${client.redirectUris ?? []},
      ${client.grantTypes ?? ['authorization_code', 'refresh_token']}, ${client.scopes ?? []}, ${authMethod},
      ${requirePkce}, ${client.maySubscribe ?? false}, ${JSON.stringify(client.metadata ?? {})})
    on conflict (id) do nothing
    returning *`.execute(db);
  if (rows[0] === undefined) throw new ClientError(`there is already a client ${JSON.stringify(id)}`);
  const secret = authMethod.startsWith('client_secret_')
    ? await addClientSecret(db, id, client.secret)
    : null;
  return { client: toClient(rows[0]), secret };
}

/** A client, also a disabled one. */
export async function findClient(db: Database | Transaction, id: string): Promise<Client | undefined> {
  const { rows } = await sql<ClientRow>`select * from clients where id = ${id}`.execute(db);
  return rows[0] && toClient(rows[0]);
}

/** All clients, the oldest first. */
export async function listClients(db: Database | Transaction): Promise<Client[]> {
  const { rows } = await sql<ClientRow>`select * from clients order by created_at, id`.execute(db);
  return rows.map(toClient);
}

/**
 * Deletes a client; the database withdraws its grants and the tokens it holds with it. Part of `endClient` (see
 * src/grants/grant.ts), which stops its deliveries first.
 * @returns whether there was one
 */
export async function deleteClient(tx: Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`delete from clients where id = ${id} returning id`.execute(tx);
  return rows.length > 0;
}

export interface ClientRow {
  id: string;
  origin: ClientOrigin;
  name: string;
  redirect_uris: string[];
  grant_types: string[];
  scopes: string[];
  auth_method: AuthMethod;
  require_pkce: boolean;
  may_subscribe: boolean;
  metadata: Record<string, unknown>;
  logo: string | null;
  created_at: Date;
  updated_at: Date;
  disabled_at: Date | null;
  epoch: string;
  verified_at: Date | null;
  suspended_at: Date | null;
}

export function toClient(row: ClientRow): Client {
  return {
    id: row.id,
    origin: row.origin,
    name: row.name,
    redirectUris: row.redirect_uris,
    grantTypes: row.grant_types,
    scopes: row.scopes,
    authMethod: row.auth_method,
    requirePkce: row.require_pkce,
    maySubscribe: row.may_subscribe,
    metadata: row.metadata,
    logo: row.logo,
    state: stateOf(row),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
    disabledAt: row.disabled_at,
    epoch: row.epoch,
  };
}

/** Where the uploaded logo of an app is found, on this server's own origin; null where there is none to show. */
export function logoPath(client: Pick<Client, 'logo' | 'state' | 'disabledAt'>): string | null {
  const { logo, state, disabledAt } = client;
  return logo === null || state === 'suspended' || disabledAt !== null ? null : `/logos/${logo}`;
}

function stateOf(row: Pick<ClientRow, 'origin' | 'verified_at' | 'suspended_at'>): ClientState {
  if (row.suspended_at !== null) return 'suspended';
  return row.verified_at !== null || row.origin === 'operator' ? 'verified' : 'unverified';
}
