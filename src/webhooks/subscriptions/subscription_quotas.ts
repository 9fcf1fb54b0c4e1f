/**
 * Quotas on the subscriptions of an account, an app and a grant, and on the deliveries that one event of an account
 * can become. Lowering a quota does not affect existing subscriptions.
 *
 * What one account has, and the own subscriptions of an app, are counted under a lock, so that concurrent creations cannot exceed a quota
 * together. Creations of an app's users do not wait for each other: those that run at the same time can exceed the app's quota.
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { freeOf } from '../../shared/share.ts';
import { AppCounts } from './app_counts.ts';
import { appSubscriptionsMax } from './app_subscriptions.ts';
import type { Owner } from './owner.ts';
import { defaultQuotas, type Quotas } from './quotas.ts';

/** Subscriptions of an app that are counted each time. Counts of more are remembered (app_counts.ts). */
const countedMax = 100;

export interface QuotaUse {
  /** The name in the API. */
  name:
    | 'account_subscriptions'
    | 'client_subscriptions'
    | 'grant_subscriptions'
    | 'own_subscriptions'
    | 'event_deliveries';
  limit: number;
  /** How many more the owner may have. */
  left: number;
}

/** A quota leaves no room for another subscription. */
export class QuotaExceeded extends Error {
  override readonly name = 'QuotaExceeded';
  readonly quota: Pick<QuotaUse, 'name' | 'limit'>;

  constructor(quota: Pick<QuotaUse, 'name' | 'limit'>) {
    super(`the quota ${quota.name} is ${quota.limit}`);
    this.quota = quota;
  }
}

/** Locks the account, or the client for its own subscriptions, which serializes creations for it. */
export async function lockQuotas(tx: Transaction, owner: Owner): Promise<void> {
  if (owner.kind === 'client')
    await sql`select from clients where id = ${owner.clientId} for no key update`.execute(tx);
  else await sql`select from accounts where id = ${owner.accountId} for no key update`.execute(tx);
}

export class SubscriptionQuotas {
  readonly #db: Database;
  readonly #quotas: Quotas;
  readonly #ofApps: AppCounts;

  constructor(db: Database, quotas: Quotas = defaultQuotas) {
    this.#db = db;
    this.#quotas = quotas;
    this.#ofApps = new AppCounts(db, quotas.subscriptionsPerClient);
  }

  /**
   * Call it after `lockQuotas`. Does not wait for the count of a large app, so the first creations after the start can exceed its quota.
   * @throws QuotaExceeded for the first quota that is used up
   */
  async require(tx: Transaction, owner: Owner): Promise<void> {
    const uses = await readUses(tx, owner, this.#quotas, (clientId) => this.#ofApps.latest(clientId));
    const full = uses.find(({ left }) => left === 0);
    if (full !== undefined) throw new QuotaExceeded(full);
  }

  /** Reads how much is left of each quota that applies to the owner's creations. */
  readUses(owner: Owner): Promise<QuotaUse[]> {
    return readUses(this.#db, owner, this.#quotas, (clientId) => this.#ofApps.read(clientId));
  }

  readResponseUse(owner: Owner): ReturnType<typeof readResponseUse> {
    return readResponseUse(this.#db, owner, this.#quotas);
  }
}

interface Counts {
  /** Of the grant's app and account, the user's own, or the app's own. */
  own: number;
  /** Of the app, at most `countedMax`. */
  of_app: number;
}

/**
 * The users of an app have shares of its quota (shared/share.ts), so that a hundred of them do not use up all of it, and so have the apps of a
 * user.
 * @param countOfApp of a large app
 */
async function readUses(
  db: Database | Transaction,
  owner: Owner,
  quotas: Quotas,
  countOfApp: (clientId: string) => Promise<number> | number | undefined,
): Promise<QuotaUse[]> {
  const uses: QuotaUse[] = [];
  const add = (name: QuotaUse['name'], limit: number, left: number) =>
    uses.push({ name, limit, left: Math.max(left, 0) });
  let counts: Counts;
  if (owner.kind === 'client') {
    const counted = await countOfClient(db, owner.clientId);
    const limit = counted.may_subscribe ? quotas.subscriptionsPerGrant : appSubscriptionsMax;
    add('own_subscriptions', limit, limit - counted.own);
    counts = counted;
  } else {
    const { subscriptionsPerGrant, subscriptionsPerAccount, deliveriesPerEvent } = quotas;
    const counted = await countOfAccount(db, owner, deliveriesPerEvent);
    const { own, of_account: ofAccount, of_apps: ofApps } = counted;
    const isOfApp = owner.kind === 'grant';
    const name = isOfApp ? 'grant_subscriptions' : 'own_subscriptions';
    add(name, subscriptionsPerGrant, subscriptionsPerGrant - own);
    const left = isOfApp
      ? freeOf(subscriptionsPerAccount, ofAccount, own)
      : subscriptionsPerAccount - ofAccount;
    add('account_subscriptions', subscriptionsPerAccount, left);
    add('event_deliveries', deliveriesPerEvent, deliveriesPerEvent - ofAccount - ofApps);
    counts = counted;
  }
  if (owner.kind !== 'user') {
    const limit = quotas.subscriptionsPerClient;
    const { own, of_app: counted } = counts;
    const isLarge = counted === countedMax && limit > countedMax;
    const ofApp = isLarge ? ((await countOfApp(owner.clientId)) ?? counted) : counted;
    add('client_subscriptions', limit, freeOf(limit, ofApp, own));
  }
  return uses;
}

function liveOfApp(clientId: string | null) {
  return sql`(select count(*)::int from (
    select from subscriptions where client_id = ${clientId} and state <> 'ended' limit ${countedMax}::int) as live)`;
}

/**
 * The statement leaves PostgreSQL no choice but to read the account's subscriptions, and then those of each connected app itself. A join had
 * generic plans that read the subscriptions of everybody.
 * @param ofAppsMax where counting those of apps themselves stops
 */
async function countOfAccount(
  db: Database | Transaction,
  owner: Exclude<Owner, { kind: 'client' }>,
  ofAppsMax: number,
): Promise<Counts & { of_account: number; of_apps: number }> {
  const { accountId } = owner;
  const clientId = owner.kind === 'user' ? null : owner.clientId;
  const { rows } = await sql<Counts & { of_account: number; of_apps: number }>`
    with live as materialized (
      select owner, client_id from subscriptions where account_id = ${accountId} and state <> 'ended'
    )
    select
      (select count(*)::int from live
        where owner = ${owner.kind} and (${clientId}::text is null or client_id = ${clientId})) as own,
      (select count(*)::int from live) as of_account,
      (select count(*)::int from (
        select from (
          select distinct client_id from (
            select client_id from grants where account_id = ${accountId} and withdrawn_at is null offset 0
          ) as grants_of_account
        ) as app
        cross join lateral (
          select from subscriptions
          where client_id = app.client_id and owner = 'client' and state <> 'ended'
          offset 0
        ) as own
        limit ${ofAppsMax}::int
      ) as found) as of_apps,
      ${liveOfApp(clientId)} as of_app`.execute(db);
  return rows[0] as (typeof rows)[number];
}

/** Clients that the operator marked may have as many as a grant. */
async function countOfClient(
  db: Database | Transaction,
  clientId: string,
): Promise<Counts & { may_subscribe: boolean }> {
  const { rows } = await sql<Counts & { may_subscribe: boolean }>`
    select
      (select count(*)::int from subscriptions
        where client_id = ${clientId} and owner = 'client' and state <> 'ended') as own,
      ${liveOfApp(clientId)} as of_app,
      coalesce((select may_subscribe from clients where id = ${clientId}), false) as may_subscribe`.execute(
    db,
  );
  return rows[0] as (typeof rows)[number];
}

/**
 * Reads how many response bytes attempts may still store today, for the account or for the app's own subscriptions.
 */
async function readResponseUse(
  db: Database,
  owner: Owner,
  { responseBytesPerDay }: Quotas,
): Promise<{ name: 'response_bytes'; limit: number; left: number }> {
  const tenant = owner.kind === 'client' ? `client:${owner.clientId}` : owner.accountId;
  const { rows } = await sql<{ bytes: string }>`
    select bytes from attempt_bytes where day = (now() at time zone 'utc')::date and tenant = ${tenant}`.execute(
    db,
  );
  const left = Math.max(responseBytesPerDay - Number(rows[0]?.bytes ?? 0), 0);
  return { name: 'response_bytes', limit: responseBytesPerDay, left };
}
