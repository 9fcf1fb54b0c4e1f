/**
 * Apps as their members and administrators see them: rows of `clients`, with the actor's role. Owns the table `app_creators`, and writes
 * `clients`, as src/clients does.
 *
 *   created → unverified ⇄ verified;   either ⇄ suspended;   any → deleted
 */

import { sql } from 'kysely';
import {
  type Client,
  type Created,
  clientColumns,
  createClient,
  creatorColumn,
  verifiedAt,
} from '../clients/client.ts';
import { fittingClients, lastOfPage } from '../clients/client_page.ts';
import { ownClientIds } from '../clients/own_clients.ts';
import type { SelfDescription } from '../clients/self_registered.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Actor } from '../grants/actor.ts';

export const roles = ['owner', 'developer'] as const;
export type Role = (typeof roles)[number];

export interface App extends Created {
  client: Client;
  /** `admin` for an administrator who is not a member. */
  role: Role | 'admin';
  /** Changes with every change of the row. */
  version: string;
}

/** Maximum apps that an account may own when it creates one. Others can make it an owner of more. */
export const appsMax = 50;

type AppRow = Client & Created & { role: Role | null; version: string };

const columns = sql`${clientColumns('c')}, ${creatorColumn('c')}, c.xmin::text as version`;

/** Finds an app that the actor may see, as a member or as an administrator. */
export async function findApp(
  db: Database | Transaction,
  actor: Actor,
  id: string,
): Promise<App | undefined> {
  // Other strings cannot be ids.
  if (!/^[\x21-\x7e]{1,2048}$/.test(id)) return undefined;
  const { rows } = await sql<AppRow>`
    select ${columns}, m.role from clients c
    left join app_members m on m.client_id = c.id and m.account_id = ${actor.accountId}::uuid
    where c.id = ${id} and c.id <> all(${ownClientIds}::text[])
      and (m.role is not null or ${actor.isAdmin})`.execute(db);
  return rows[0] && toApp(rows[0]);
}

/**
 * Lists the apps that an account is a member of, by id.
 * @param after the last id of the previous page
 * @returns a page, which is short if its apps are large, and the id that the next page follows; null if there is none
 */
export async function listApps(
  db: Database,
  accountId: string,
  limit: number,
  after: string | null,
): Promise<{ found: App[]; next: string | null }> {
  const { rows: heads } = await sql<{ id: string }>`
    select client_id as id from app_members
    where account_id = ${accountId} and (${after}::text is null or client_id > ${after})
    order by client_id limit ${limit + 1}`.execute(db);
  const ids = heads.slice(0, limit).map(({ id }) => id);
  const { rows } = await sql<AppRow>`
    select ${columns}, m.role from ${fittingClients(ids)} as fitting
    join clients c on c.id = fitting.id
    join app_members m on m.client_id = c.id and m.account_id = ${accountId}
    order by fitting.position`.execute(db);
  return { found: rows.map(toApp), next: lastOfPage(heads, rows, limit)?.id ?? null };
}

/**
 * @param actor the first owner; without an account, the app has no members. An app of an administrator has no creator: it is the operator's
 * @returns undefined if the account owns the maximum number of apps
 */
export async function createApp(
  tx: Transaction,
  id: string,
  { accountId, isAdmin }: Pick<Actor, 'accountId' | 'isAdmin'>,
  description: SelfDescription,
): Promise<{ app: App; secret: string | null } | undefined> {
  if (accountId !== null) {
    // Serializes creation per account, so that the count is exact.
    await sql`select from accounts where id = ${accountId} for no key update`.execute(tx);
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from app_members where account_id = ${accountId} and role = 'owner'`.execute(
      tx,
    );
    if ((rows[0]?.count ?? 0) >= appsMax) return undefined;
  }
  const { secret } = await createClient(tx, { ...description, id, origin: 'account' });
  if (accountId !== null) {
    await sql`
      insert into app_members (client_id, account_id, role) values (${id}, ${accountId}, 'owner')`.execute(
      tx,
    );
    if (!isAdmin)
      await sql`insert into app_creators (client_id, account_id) values (${id}, ${accountId})`.execute(tx);
    await sql`update client_secrets set created_by = ${accountId} where client_id = ${id}`.execute(tx);
  }
  const { rows } = await sql<AppRow>`
    select ${columns}, ${accountId === null ? null : 'owner'}::text as role from clients c where c.id = ${id}`.execute(
    tx,
  );
  return { app: toApp(rows[0] as AppRow), secret };
}

/**
 * Changes an app, unless it has changed since it was read.
 * @param isVerifying true for administrators, who verify what they change. Any other change ends the verification.
 * @returns false if the app has changed concurrently
 */
export async function changeApp(
  tx: Transaction,
  { client, version }: App,
  description: SelfDescription,
  isVerifying: boolean,
): Promise<boolean> {
  const { name, redirectUris, grantTypes, scopes, authMethod, metadata } = description;
  const { rows } = await sql`
    update clients set
      name = ${name}, redirect_uris = ${redirectUris}, grant_types = ${grantTypes}, scopes = ${scopes},
      auth_method = ${authMethod}, metadata = ${JSON.stringify(metadata)}, updated_at = now(),
      verified_at = ${verifiedAt(isVerifying)}
    where id = ${client.id} and origin = 'account' and xmin::text = ${version}
    returning id`.execute(tx);
  if (rows.length === 0) return false;
  if (!authMethod.startsWith('client_secret_')) {
    await sql`delete from client_secrets where client_id = ${client.id}`.execute(tx);
  }
  return true;
}

/** Serializes changes of an app's members and secrets, so that counts are exact. */
export async function lockApp(tx: Transaction, id: string): Promise<void> {
  await sql`select from clients where id = ${id} for no key update`.execute(tx);
}

/** Whether an account is a member of an app. Members may authorize an unverified app. */
export async function isMember(
  db: Database | Transaction,
  clientId: string,
  accountId: string,
): Promise<boolean> {
  const { rows } = await sql`
    select from app_members where client_id = ${clientId} and account_id = ${accountId}`.execute(db);
  return rows.length > 0;
}

function toApp({ role, version, creatorId, ...client }: AppRow): App {
  return { client, creatorId, role: role ?? 'admin', version };
}
