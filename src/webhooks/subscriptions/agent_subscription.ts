/**
 * Subscriptions that agents make over the Model Context Protocol: ordinary subscriptions of a grant with an expiry, one for each
 * grant, URL, kind and arguments. An agent that polls or streams has one without a URL, which lives while it is used. Owns the table
 * `agent_subscriptions`.
 *
 *   live → (refreshed or used) → live → expired, unsubscribed, or its kind is removed | ended with its subscription, by whatever ends
 *   that (revoked)
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import type { Filter } from '../../events/filter.ts';
import { freeOf } from '../../shared/share.ts';
import type { Owner } from './owner.ts';
import { createSubscription, type Format } from './subscription.ts';
import { lockQuotas, QuotaExceeded, type SubscriptionQuotas } from './subscription_quotas.ts';

/** `poll` is for `events/poll` and `events/stream`. */
export type AgentMode = 'webhook' | 'poll';

/** Limits of the live subscriptions of one mode. */
export interface AgentQuotas {
  readonly subscriptionsPerGrant: number;
  readonly subscriptionsPerAccount: number;
}

export interface AgentSubscription {
  id: string;
  lane: number;
  grantId: string;
  accountId: string;
  mode: AgentMode;
  /** The id that the agent sees. */
  key: string;
  /** The kind. */
  name: string;
  /** Canonical JSON. */
  arguments: string;
  expiresAt: Date;
  /** When its URL last echoed a challenge. */
  verifiedAt: Date | null;
  /** Since when deliveries are held because most failed. */
  heldAt: Date | null;
  createdAt: Date;
}

interface Row {
  id: string;
  lane: string;
  grant_id: string;
  account_id: string;
  mode: AgentMode;
  key: string;
  name: string;
  arguments: string;
  expires_at: Date;
  verified_at: Date | null;
  held_at: Date | null;
  created_at: Date;
}

export interface NewAgentSubscription {
  owner: Extract<Owner, { kind: 'grant' }>;
  mode: AgentMode;
  key: string;
  name: string;
  arguments: string;
  /** Null if the kind requires none. */
  scope: string | null;
  filter: Filter | null;
  /** Null for `poll`. */
  url: string | null;
  /** In the form that its owner sees. */
  secret: string;
  format: Format;
  /** The newest version of the deployment's kinds. */
  version: string | null;
  /** Shown to the owner in lists of subscriptions. */
  description: string;
  /** Pauses between attempts in seconds; null for the deployment's. */
  retrySchedule: number[] | null;
  lifetimeMs: number;
  isVerified: boolean;
}

/**
 * Creates a subscription, unless a live one has the key. Concurrent calls with one key create one. Use it in a transaction that does
 * nothing slow: it locks the account.
 * @param quotas of all subscriptions @param agentQuotas of those of agents, besides
 * @returns undefined if the grant was withdrawn
 * @throws QuotaExceeded
 */
export async function createAgentSubscription(
  db: Database | Transaction,
  wanted: NewAgentSubscription,
  sealer: Sealer,
  quotas: SubscriptionQuotas,
  agentQuotas: AgentQuotas,
): Promise<{ subscription: AgentSubscription; isNew: boolean } | undefined> {
  return inTransaction(db, async (tx) => {
    const { owner, mode, key, name, url, secret, format, version, description, retrySchedule, filter } =
      wanted;
    // From here on, no other transaction creates a subscription of the account.
    await lockQuotas(tx, owner);
    // Before any subscription, as withdrawals do.
    const { rows: grants } = await sql`
      select from grants where id = ${owner.grantId} and withdrawn_at is null for share`.execute(tx);
    if (grants.length === 0) return undefined;
    await endIfExpired(tx, key, mode);
    const existing = await findAgentSubscription(tx, key, mode);
    if (existing !== undefined) return { subscription: existing, isNew: false };
    await requireAgentQuota(tx, wanted, agentQuotas);
    const fields = {
      ...{
        url,
        kinds: [name],
        signature: 'standard' as const,
        format,
        version,
        filter,
        description,
        retrySchedule,
      },
      ...{ ordered: false, rateLimit: null, handshake: false },
    };
    const created = await createSubscription(tx, owner, fields, secret, sealer, quotas);
    if (created === undefined) return undefined;
    const { rows } = await sql<Row>`
      insert into agent_subscriptions (id, lane, grant_id, account_id, mode, key, name, arguments, scope, expires_at, verified_at)
      values (${created.id}, ${created.lane}, ${owner.grantId}, ${owner.accountId}, ${mode}, ${key}, ${name},
        ${wanted.arguments}, ${wanted.scope}, ${after(wanted.lifetimeMs)},
        case when ${wanted.isVerified}::boolean then clock_timestamp() end)
      returning *`.execute(tx);
    return { subscription: toAgentSubscription(rows[0] as Row), isNew: true };
  });
}

/** Finds the live subscription of a key. Its subscription may be disabled. */
export async function findAgentSubscription(
  db: Database | Transaction,
  key: string,
  mode: AgentMode,
): Promise<AgentSubscription | undefined> {
  const { rows } = await sql<Row>`
    select * from agent_subscriptions
    where key = ${key} and mode = ${mode} and ended_at is null and expires_at > clock_timestamp()`.execute(
    db,
  );
  return rows[0] && toAgentSubscription(rows[0]);
}

export interface AgentSubscriptionOfAccount extends AgentSubscription {
  clientId: string;
  /** How many subscriptions its app has, from the cursor on. */
  count: number;
}

export interface AgentsOfApps {
  clientIds: readonly string[];
  /** Maximum for each app. */
  limit: number;
  /** The id of the last subscription of the page before. Default: none. */
  after?: string | null;
}

/** Lists what agents of some apps of an account are told of, oldest first. Reads the arguments of these only. */
export async function listAgentSubscriptions(
  db: Database,
  accountId: string,
  { clientIds, limit, after = null }: AgentsOfApps,
): Promise<AgentSubscriptionOfAccount[]> {
  const { rows } = await sql<Row & { client_id: string; count: number }>`
    select a.*, n.client_id, n.count::int as count
    from (
      select a.id, s.client_id, row_number() over (partition by s.client_id order by a.id) as number,
        count(*) over (partition by s.client_id) as count
      from agent_subscriptions a join subscriptions s on s.id = a.id
      where a.account_id = ${accountId} and a.ended_at is null and a.expires_at > clock_timestamp()
        and s.client_id = any(${[...clientIds]}::text[]) and (${after}::uuid is null or a.id > ${after}::uuid)
    ) as n
    join agent_subscriptions a on a.id = n.id
    where n.number <= ${limit}
    order by a.id`.execute(db);
  return rows.map((row) => ({ ...toAgentSubscription(row), clientId: row.client_id, count: row.count }));
}

/** @returns the lane of a live subscription of the account */
export async function findLaneOfAgent(
  db: Database,
  accountId: string,
  id: string,
): Promise<number | undefined> {
  const { rows } = await sql<{ lane: string }>`
    select lane from agent_subscriptions
    where id = ${id} and account_id = ${accountId} and ended_at is null and expires_at > clock_timestamp()`.execute(
    db,
  );
  return rows[0] && Number(rows[0].lane);
}

/**
 * Lets a live subscription live on. Deliveries that are held continue.
 * @param lifetimeMs milliseconds from now
 * @returns the new expiry; undefined if it has ended or expired meanwhile
 */
export async function renewAgentSubscription(
  db: Database | Transaction,
  id: string,
  lifetimeMs: number,
): Promise<Date | undefined> {
  const { rows } = await sql<{ expires_at: Date }>`
    update agent_subscriptions set expires_at = ${after(lifetimeMs)}, held_at = null
    where id = ${id} and ended_at is null and expires_at > clock_timestamp()
    returning expires_at`.execute(db);
  return rows[0]?.expires_at;
}

/** Ends the live subscription of a key at the request of its agent, which is told nothing more. @returns whether there was one */
export async function unsubscribeAgent(tx: Transaction, key: string, mode: AgentMode): Promise<boolean> {
  return (await endAgents(tx, sql`key = ${key} and mode = ${mode}`, 'unsubscribed')) > 0;
}

/** Maximum subscriptions that one sweep ends. */
const sweepMax = 500;

/** Ends subscriptions that have expired, at most 500. Several nodes can sweep at once. @returns how many ended */
export async function endExpiredAgents(db: Database): Promise<number> {
  return db.transaction().execute((tx) => endAgents(tx, isExpired, 'expired', sql`skip locked`));
}

const isExpired = sql`expires_at <= clock_timestamp()`;

async function endIfExpired(tx: Transaction, key: string, mode: AgentMode): Promise<void> {
  await endAgents(tx, sql`key = ${key} and mode = ${mode} and ${isExpired}`, 'expired');
}

/**
 * Ends live subscriptions, at most 500. Ends this row before its subscription, so that the trigger of the subscription finds nothing
 * to tell. Only agents whose kind was removed are told.
 * @param which a condition of `agent_subscriptions` @returns how many ended
 */
export async function endAgents(
  tx: Transaction,
  which: ReturnType<typeof sql>,
  reason: 'expired' | 'unsubscribed' | 'removed',
  ifLocked = sql``,
): Promise<number> {
  const { rows } = await sql<{ id: string }>`
    update agent_subscriptions set ended_at = now(), end_reason = ${reason},
      last_secret = case when ${reason} = 'removed' and mode = 'webhook' and expires_at > now()
        then (select secret from subscriptions s where s.id = agent_subscriptions.id) end
    where id = any(array(
      select a.id from agent_subscriptions a join subscriptions s on s.id = a.id
      where a.ended_at is null and ${which}
      -- Whatever ends a subscription locks it before this row.
      order by a.id limit ${sweepMax}::int for update of s ${ifLocked}))
      -- Again, because it may have changed while this statement waited.
      and ended_at is null and ${which}
    returning id`.execute(tx);
  if (rows.length > 0) {
    await sql`
      update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
      where id = any(${rows.map(({ id }) => id)}::uuid[]) and state <> 'ended'`.execute(tx);
    if (reason === 'removed') await sql`select announce('agent_ended', '')`.execute(tx);
  }
  return rows.length;
}

/**
 * The apps of an account have shares of what it may have (shared/share.ts): one with a few grants could use up all of it.
 * @throws QuotaExceeded
 */
async function requireAgentQuota(
  tx: Transaction,
  { owner, mode }: NewAgentSubscription,
  { subscriptionsPerGrant, subscriptionsPerAccount }: AgentQuotas,
): Promise<void> {
  const { rows } = await sql<{ of_grant: number; of_app: number; of_account: number }>`
    select
      (select count(*)::int from agent_subscriptions
        where grant_id = ${owner.grantId} and mode = ${mode} and ended_at is null) as of_grant,
      (select count(*)::int from agent_subscriptions a join subscriptions s on s.id = a.id
        where a.account_id = ${owner.accountId} and a.mode = ${mode} and a.ended_at is null
          and s.client_id = ${owner.clientId}) as of_app,
      (select count(*)::int from agent_subscriptions
        where account_id = ${owner.accountId} and mode = ${mode} and ended_at is null) as of_account`.execute(
    tx,
  );
  const { of_grant: ofGrant, of_app: ofApp, of_account: ofAccount } = rows[0] as (typeof rows)[number];
  if (ofGrant >= subscriptionsPerGrant) {
    throw new QuotaExceeded({ name: 'grant_subscriptions', limit: subscriptionsPerGrant });
  }
  if (freeOf(subscriptionsPerAccount, ofAccount, ofApp) <= 0) {
    throw new QuotaExceeded({ name: 'account_subscriptions', limit: subscriptionsPerAccount });
  }
}

/** A time this many milliseconds from now, in whole seconds: agents see it. */
function after(ms: number) {
  return sql`date_trunc('second', clock_timestamp() + make_interval(secs => ${ms / 1_000}::float8))`;
}

function toAgentSubscription(row: Row): AgentSubscription {
  return {
    id: row.id,
    lane: Number(row.lane),
    grantId: row.grant_id,
    accountId: row.account_id,
    mode: row.mode,
    key: row.key,
    name: row.name,
    arguments: row.arguments,
    expiresAt: row.expires_at,
    verifiedAt: row.verified_at,
    heldAt: row.held_at,
    createdAt: row.created_at,
  };
}
