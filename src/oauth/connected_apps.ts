/**
 * Connected apps: the apps that a user has granted access, one entry per app regardless of its number of grants. The server's
 * own apps are not listed: they are parts of this server, and their grants end when the user signs out.
 *
 * A user can have thousands of apps, so they are read in pages, and a page costs the same whatever the user has. Ids of grants are the cursors: they
 * are short, and a grant that was withdrawn meanwhile keeps its place.
 */

import { sql } from 'kysely';
import { readAuditPage } from '../audit/audit_page.ts';
import { ownClientIds } from '../clients/own_clients.ts';
import type { Database, Transaction } from '../database/database.ts';
import { grantsMax } from '../grants/grant_limit.ts';

export interface ConnectedApp {
  /** One of its grants, the newest in a list. */
  grantId: string;
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

/** Where a page of apps begins. */
export interface AppsPlace {
  /** A grant of the last app before those that are sorted; null for the first ones. */
  from: string | null;
  /** A grant of the last app that is sorted with them, so that these stay the same when one is disconnected; null for as many as are sorted. */
  to: string | null;
  /** The newest grant of the last app of the page before, among those that are sorted; null for the first page. */
  after: string | null;
}

export const firstApps: AppsPlace = { from: null, to: null, after: null };

export interface AppsPage {
  apps: ConnectedApp[];
  /** @param shown how many of the apps are shown @returns where the next page begins; null if there is none */
  nextAfter: (shown: number) => AppsPlace | null;
}

/** Apps that are sorted at once. A user with more than these sees these first, then as many others. */
const sortedMax = 100;
/** Grants of an app that are read, the newest: more than there are, except in a database of an earlier version. */
const readGrantsMax = 2 * grantsMax;

/** Lists connected apps of an account, the one that the user allowed last first. */
export async function listConnectedApps(
  db: Database | Transaction,
  accountId: string,
  { from, to, after }: AppsPlace,
  limit: number,
): Promise<AppsPage> {
  const known = await readNewestGrants(db, accountId, { from, to });
  const sorted = known.slice(0, sortedMax);
  const end = known.length > sortedMax ? (sorted.at(-1)?.id ?? null) : to;
  const ids = sorted
    .filter(({ id, isOwn }) => !isOwn && (after === null || id < after))
    .map(({ id }) => id)
    .sort()
    .reverse();
  const apps = await describeApps(db, accountId, ids.slice(0, limit));
  return {
    apps,
    nextAfter(shown) {
      const last = shown < apps.length ? apps[shown - 1]?.grantId : ids[limit - 1];
      const isMore = last !== undefined && last !== ids.at(-1);
      if (isMore) return { from, to: end, after: last };
      return end === null ? null : { ...firstApps, from: end };
    },
  };
}

/** Lists all connected apps of an account, for the operator. */
export async function listAllConnectedApps(tx: Transaction, accountId: string): Promise<ConnectedApp[]> {
  const all: ConnectedApp[] = [];
  for (let place: AppsPlace | null = firstApps; place !== null; ) {
    const { apps, nextAfter } = await listConnectedApps(tx, accountId, place, sortedMax);
    all.push(...apps);
    place = nextAfter(apps.length);
  }
  return all;
}

/** @param grantId any grant of the app, also one that was withdrawn @returns undefined if the app is not connected */
export async function findConnectedApp(
  db: Database,
  accountId: string,
  grantId: string,
): Promise<ConnectedApp | undefined> {
  return (await describeApps(db, accountId, [grantId]))[0];
}

/**
 * Reads the newest grant of each app in the order of the ids of apps, one more than are sorted. Each app is one look-up in the index
 * `grants_of_account_and_client`, however many grants it has.
 */
async function readNewestGrants(
  db: Database | Transaction,
  accountId: string,
  { from, to }: Pick<AppsPlace, 'from' | 'to'>,
): Promise<{ id: string; isOwn: boolean }[]> {
  const { rows } = await sql<{ id: string; isOwn: boolean }>`
    with recursive known as (
      (
        select client_id, id, 1 as number from grants
        where account_id = ${accountId} and withdrawn_at is null and client_id > coalesce(
          (select client_id from grants where id = ${from}::uuid and account_id = ${accountId}), '')
        order by client_id, id desc limit 1
      )
      union all
      select n.client_id, n.id, k.number + 1
      from known k
      cross join lateral (
        select client_id, id from grants
        where account_id = ${accountId} and withdrawn_at is null and client_id > k.client_id
        order by client_id, id desc limit 1
      ) as n
      where k.number <= ${sortedMax}
    )
    select id, client_id = any(${ownClientIds}::text[]) as "isOwn" from known
    where client_id > (select client_id from grants where id = ${to}::uuid and account_id = ${accountId}) is not true
    order by number`.execute(db);
  return rows;
}

/** Describes the apps of the grants, in the order of the ids of these, the newest first. Leaves out apps that are not connected. */
async function describeApps(
  db: Database | Transaction,
  accountId: string,
  grantIds: readonly string[],
): Promise<ConnectedApp[]> {
  if (grantIds.length === 0) return [];
  const { rows } = await sql<ConnectedApp>`
    select of.id as "grantId", of.client_id as "clientId", coalesce(c.name, of.client_id) as name,
      case when not c.is_stopped then '/logos/' || c.logo end as logo,
      coalesce(c.may_subscribe, false) as "maySubscribe",
      array(select distinct unnest(string_to_array(used.scopes, ' ')) order by 1) as scopes,
      used.since, used.last_used_at as "lastUsedAt"
    from grants of
    left join clients c on c.id = of.client_id
    cross join lateral (
      select count(*) as count, string_agg(distinct array_to_string(g.scopes, ' '), ' ') as scopes, min(g.created_at) as since,
        greatest(max(g.created_at), max(g.last_used_at)) as last_used_at
      from (
        select scopes, created_at, last_used_at from grants
        where account_id = ${accountId} and client_id = of.client_id and withdrawn_at is null
        order by id desc limit ${readGrantsMax}
      ) as g
    ) as used
    where of.id = any(${[...grantIds]}::uuid[]) and of.account_id = ${accountId} and used.count > 0
      and of.client_id <> all(${ownClientIds}::text[])
    order by of.id desc`.execute(db);
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
