/**
 * Quotas on the subscriptions of an account, an app and a grant, and on the deliveries that one event of an account
 * can become. Counting happens under locks, so two concurrent creations cannot exceed a quota together. Lowering a
 * quota does not affect existing subscriptions.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { freeOf } from '../../shared/share.ts';
import { appSubscriptionsMax } from './app_subscriptions.ts';
import type { Owner } from './owner.ts';
import type { Quotas } from './quotas.ts';

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

/** Locks the account and the client, which serializes creations for an owner. Always in the same order. */
export async function lockQuotas(tx: Transaction, owner: Owner): Promise<void> {
  if (owner.kind !== 'client')
    await sql`select from accounts where id = ${owner.accountId} for no key update`.execute(tx);
  if (owner.kind !== 'user')
    await sql`select from clients where id = ${owner.clientId} for no key update`.execute(tx);
}

/** @throws QuotaExceeded for the first quota that is used up */
export async function requireQuota(tx: Transaction, owner: Owner, quotas: Quotas): Promise<void> {
  const full = (await readQuotaUse(tx, owner, quotas)).find(({ left }) => left === 0);
  if (full !== undefined) throw new QuotaExceeded(full);
}

/**
 * Reads how much is left of each quota that applies to the owner's creations. Counting stops at the quota. The users of an app have shares of
 * its quota (shared/share.ts), so that a hundred of them do not use up all of it, and so have the apps of a user.
 */
export async function readQuotaUse(
  db: Database | Transaction,
  owner: Owner,
  quotas: Quotas,
): Promise<QuotaUse[]> {
  const ofAccount = (accountId: string) => sql`subscriptions.account_id = ${accountId}`;
  const counted: { name: QuotaUse['name']; limit: number; rows: RawBuilder<unknown> }[] = [];
  const count = (name: QuotaUse['name'], limit: number, which: RawBuilder<unknown>) => {
    const rows = sql`select from subscriptions where ${which} and subscriptions.state <> 'ended'`;
    counted.push({ name, limit, rows });
  };
  if (owner.kind === 'grant') {
    const ofApp = sql`subscriptions.owner = 'grant' and ${ofAccount(owner.accountId)}
      and subscriptions.client_id = ${owner.clientId}`;
    count('grant_subscriptions', quotas.subscriptionsPerGrant, ofApp);
  } else if (owner.kind === 'user') {
    const own = sql`subscriptions.owner = 'user' and ${ofAccount(owner.accountId)}`;
    count('own_subscriptions', quotas.subscriptionsPerGrant, own);
  } else {
    const own = sql`subscriptions.owner = 'client' and subscriptions.client_id = ${owner.clientId}`;
    count('own_subscriptions', await ownLimit(db, owner.clientId, quotas), own);
  }
  if (owner.kind !== 'client') {
    count('account_subscriptions', quotas.subscriptionsPerAccount, ofAccount(owner.accountId));
    counted.push({
      name: 'event_deliveries',
      limit: quotas.deliveriesPerEvent,
      rows: sql`
        (select from subscriptions where ${ofAccount(owner.accountId)} and subscriptions.state <> 'ended')
        union all
        (select from subscriptions where subscriptions.owner = 'client' and subscriptions.state <> 'ended'
          and subscriptions.client_id in (
            select client_id from grants where account_id = ${owner.accountId} and withdrawn_at is null))`,
    });
  }
  if (owner.kind !== 'user') {
    const ofClient = sql`subscriptions.client_id = ${owner.clientId}`;
    count('client_subscriptions', quotas.subscriptionsPerClient, ofClient);
  }
  const counts = counted.map(
    ({ rows, limit }) =>
      sql`(select count(*)::int from (select from (${rows}) as found limit ${limit}::int) as counted)`,
  );
  const { rows } = await sql<{ used: number[] }>`select array[${sql.join(counts)}] as used`.execute(db);
  const used = rows[0]?.used ?? [];
  // The first quota counts the owner's own subscriptions.
  const [own = 0] = used;
  return counted.map(({ name, limit }, index) => {
    const usedByAll = used[index] ?? 0;
    const isShared =
      name === 'client_subscriptions' || (name === 'account_subscriptions' && owner.kind === 'grant');
    const left = isShared ? freeOf(limit, usedByAll, own) : limit - usedByAll;
    return { name, limit, left: Math.max(left, 0) };
  });
}

/** The limit of a client's own subscriptions. Clients that the operator marked use the quota per grant. */
async function ownLimit(db: Database | Transaction, clientId: string, quotas: Quotas): Promise<number> {
  const { rows } = await sql<{ may_subscribe: boolean }>`
    select may_subscribe from clients where id = ${clientId}`.execute(db);
  return rows[0]?.may_subscribe ? quotas.subscriptionsPerGrant : appSubscriptionsMax;
}

/**
 * Reads how many response bytes attempts may still store today, for the account or for the app's own subscriptions.
 */
export async function readResponseUse(
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
