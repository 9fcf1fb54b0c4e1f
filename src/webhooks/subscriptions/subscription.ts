/**
 * Subscriptions: a subscriber's URL with the kinds it wants. Owns the table `subscriptions`, and creates the two rows of a
 * subscription's lane in `lanes` and `lane_progress`.
 *
 *   active ⇄ disabled
 *   active, disabled → ended, by deletion or by a database trigger when the grant is withdrawn
 */

import { hash } from 'node:crypto';
import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { type Filter, filterPath } from '../../events/filter.ts';
import { Problem } from '../../http/problem.ts';
import { newLane } from './delivery_id.ts';
import { laneTenant } from './lane_tenant.ts';
import type { Owner } from './owner.ts';
import type { SignatureShape } from './signature.ts';
import { type StaticHeaders, sealHeaders } from './static_headers.ts';
import { type GivenAuth, type ShownAuth, storedAuth } from './subscriber_auth.ts';
import { lockQuotas, type SubscriptionQuotas } from './subscription_quotas.ts';

export type { Owner } from './owner.ts';

/** Formats that owners can choose. */
export const formats = ['json', 'cloudevents', 'thin'] as const;
/** `agent`: of subscriptions that agents make (agent_subscription.ts). */
export type Format = (typeof formats)[number] | 'agent';

/** Fields that the owner can set. */
export interface SubscriptionFields {
  /** Null if the subscriber only pulls. */
  url: string | null;
  kinds: string[];
  signature: SignatureShape;
  format: Format;
  /** The date by which the version of each kind's body is chosen; null for the oldest versions. */
  version: string | null;
  ordered: boolean;
  /** Attempts per second; null for no limit. */
  rateLimit: number | null;
  description: string;
  /** Pauses in seconds; null for the deployment's schedule. */
  retrySchedule: number[] | null;
  /** Conditions on the body of an event; null for all events. */
  filter: Filter | null;
  /** Whether each new URL must echo a challenge. */
  handshake: boolean;
}

/** A filter as its owner gave it, and as fan-out evaluates it. */
function storedFilter(filter: Filter | null) {
  if (filter === null) return { given: null, path: null, digest: null };
  const path = filterPath(filter);
  return { given: JSON.stringify(filter), path, digest: hash('sha256', path, 'buffer') };
}

export type SubscriptionState = 'active' | 'disabled';

export interface Subscription extends SubscriptionFields {
  id: string;
  lane: number;
  grantId: string | null;
  /** Null if the owner is a client. */
  accountId: string | null;
  /** Null if the owner is a user. */
  clientId: string | null;
  state: SubscriptionState;
  /** Names of the static headers. */
  headerNames: readonly string[];
  /** How deliveries authenticate, without secrets. */
  auth: ShownAuth | null;
  disabledReason: string | null;
  /** Time of the first failure since the last success; null if the last attempt succeeded. */
  failingSince: Date | null;
  /** When the subscription will be disabled for failing; null before the first warning. */
  disablesAt: Date | null;
  /** The last delivery that the subscriber says to have read, and when it said so; null if it never did. */
  acknowledged: { sequence: number; at: Date } | null;
  /** Null if no agent made it (agent_subscription.ts). */
  agent: { mode: 'webhook' | 'poll'; expiresAt: Date } | null;
  createdAt: Date;
  updatedAt: Date;
}

export interface SubscriptionRow {
  id: string;
  lane: string;
  grant_id: string | null;
  account_id: string | null;
  client_id: string | null;
  url: string | null;
  kinds: string[];
  signature: SignatureShape;
  format: Format;
  version: string | null;
  ordered: boolean;
  rate_limit: number | null;
  description: string;
  retry_schedule: number[] | null;
  filter: Filter | null;
  handshake: boolean;
  header_names: string[];
  auth: ShownAuth | null;
  state: SubscriptionState;
  disabled_reason: string | null;
  created_at: Date;
  updated_at: Date;
  /** Present only if the query selected them. */
  failing_since?: Date | null;
  disables_at?: Date | null;
  acknowledged?: string | null;
  acknowledged_at?: Date | null;
  agent_mode?: 'webhook' | 'poll' | null;
  agent_expires_at?: Date | null;
}

const columns =
  'id lane grant_id account_id client_id url kinds signature format version ordered rate_limit description retry_schedule ' +
  'handshake header_names auth state disabled_reason created_at updated_at';

/**
 * The columns of a subscription that are neither secret nor large. Its filter may have 64 KiB, and `filter_path`, which only fan-out
 * needs, five times as much.
 * @param table its name in the query
 */
export function columnsOf(table: 'subscriptions' | 's') {
  return sql.raw(columns.replaceAll(/\w+/g, `${table}.$&,`).slice(0, -1));
}

export const withFilter = sql`${columnsOf('subscriptions')}, subscriptions.filter`;

/** Selects a subscription together with how long it has been failing, and what an agent needs of it. */
export const withFailing = sql`
  ${withFilter}, p.failing_since, w.disables_at, a.sequence as acknowledged, a.at as acknowledged_at,
  agent.agent_mode, agent.agent_expires_at
  from subscriptions
  join lane_progress p on p.lane = subscriptions.lane
  left join failing_warnings w on w.lane = p.lane and w.failing_since = p.failing_since
  left join acknowledgements a on a.lane = subscriptions.lane
  -- Under other names, because conditions on subscriptions do not name the table.
  left join (
    select id as agent_id, mode as agent_mode, expires_at as agent_expires_at from agent_subscriptions
  ) as agent on agent.agent_id = subscriptions.id`;

/** A condition for `where`: subscriptions of one owner that have not ended. */
function belongsTo(owner: Owner) {
  switch (owner.kind) {
    case 'grant':
      // An app gets a new grant at each sign-in. It owns the subscriptions of all its grants for the account.
      return sql`(subscriptions.owner = 'grant' and subscriptions.account_id = ${owner.accountId}
        and subscriptions.client_id = ${owner.clientId} and subscriptions.state <> 'ended')`;
    case 'user':
      return sql`(subscriptions.owner = 'user' and subscriptions.account_id = ${owner.accountId}
        and subscriptions.state <> 'ended')`;
    case 'client':
      return sql`(subscriptions.owner = 'client' and subscriptions.client_id = ${owner.clientId}
        and subscriptions.state <> 'ended')`;
  }
}

/**
 * A condition for `where`: own subscriptions of apps that the account is a member of. Excludes the subscriptions of
 * users' grants.
 */
function isOfAppOf(memberId: string) {
  return sql`(subscriptions.owner = 'client' and subscriptions.state <> 'ended' and exists (
    select from app_members m where m.client_id = subscriptions.client_id and m.account_id = ${memberId}))`;
}

function memberOf(owner: Owner): string | null {
  return owner.kind === 'client' ? null : (owner.memberId ?? null);
}

/** A condition for `where`: subscriptions that the owner may change, when selected by id. */
export function ownedBy(owner: Owner) {
  const memberId = memberOf(owner);
  return memberId === null ? belongsTo(owner) : sql`(${belongsTo(owner)} or ${isOfAppOf(memberId)})`;
}

/**
 * A condition for `where`: subscriptions in the owner's list. A user's list includes subscriptions of apps that act
 * for them.
 */
export function listedFor(owner: Owner) {
  if (owner.kind !== 'user') return belongsTo(owner);
  return sql`(subscriptions.account_id = ${owner.accountId} and subscriptions.state <> 'ended')`;
}

/** A condition for `where`: subscriptions that the owner may see and delete, when selected by id. */
export function visibleTo(owner: Owner) {
  const memberId = memberOf(owner);
  return memberId === null ? listedFor(owner) : sql`(${listedFor(owner)} or ${isOfAppOf(memberId)})`;
}

/** What deliveries carry besides their signature. */
export interface SentBesides {
  headers?: StaticHeaders;
  /** Has passed the checks. */
  auth?: GivenAuth | null;
}

/**
 * @param secret in the form that its owner sees
 * @returns undefined if the owner is gone, for example because the grant was withdrawn
 * @throws QuotaExceeded
 */
export async function createSubscription(
  db: Database | Transaction,
  owner: Owner,
  fields: SubscriptionFields,
  secret: string,
  sealer: Sealer,
  quotas: SubscriptionQuotas,
  { headers = {}, auth = null }: SentBesides = {},
): Promise<Subscription | undefined> {
  const id = newId();
  return inTransaction(db, async (tx) => {
    await lockQuotas(tx, owner);
    // Either the withdrawal waits for this lock, or this statement sees the withdrawal. No subscription outlives its
    // grant.
    if (owner.kind === 'grant') {
      const { rows } = await sql`
        select from grants where id = ${owner.grantId} and withdrawn_at is null for share`.execute(tx);
      if (rows.length === 0) return undefined;
    } else if (owner.kind === 'user') {
      // The same protection against the end of the account.
      const { rows } = await sql`
        select from accounts where id = ${owner.accountId} and disabled_at is null for key share`.execute(tx);
      if (rows.length === 0) return undefined;
    } else {
      // The same protection against the end of the app.
      const { rows } = await sql`
        select from clients where id = ${owner.clientId} and not is_stopped for key share`.execute(tx);
      if (rows.length === 0) return undefined;
    }
    await quotas.require(tx, owner);
    const filter = storedFilter(fields.filter);
    const authStored = storedAuth(auth, id, sealer);
    const { rows } = await sql<SubscriptionRow>`
      insert into subscriptions (
        id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, format, ordered, rate_limit,
        description, retry_schedule, version, secret, headers, header_names, filter, filter_path, filter_digest, auth, auth_secret, handshake)
      values (${id}, ${newLane()}, ${owner.kind}, ${owner.kind === 'grant' ? owner.grantId : null}::uuid,
        ${owner.kind === 'client' ? null : owner.accountId}::uuid,
        ${owner.kind === 'user' ? null : owner.clientId}::text,
        ${fields.url}, ${fields.kinds}::text[], ${fields.signature}, ${fields.format}, ${fields.ordered},
        ${fields.rateLimit}::int, ${fields.description}, ${fields.retrySchedule}::int[], ${fields.version}, ${sealer.seal(secret, id)},
        ${sealHeaders(headers, id, sealer)}::bytea, ${Object.keys(headers)}::text[],
        ${filter.given}::json, ${filter.path}::jsonpath, ${filter.digest}::bytea,
        ${authStored.shown}::jsonb, ${authStored.sealed}::bytea, ${fields.handshake})
      returning ${withFilter}`.execute(tx);
    const row = rows[0] as SubscriptionRow;
    await sql`
      with head as (insert into lanes (id) values (${row.lane}))
      insert into lane_progress (lane, is_pulled, tenant)
      select ${row.lane}, ${fields.url === null}, tenant from ${laneTenant(sql`${row.lane}::bigint`)} as of`.execute(
      tx,
    );
    return toSubscription(row);
  });
}

/**
 * Sets the actor that the transaction's audit log entries name. Call it first: a user's change through the console is either
 * seen by the transaction that ends their sessions, or refused.
 * @throws Problem 409 if the console's grant is withdrawn
 */
export async function actAsOwner(tx: Transaction, owner: Owner): Promise<void> {
  if (owner.kind === 'user' && owner.grantId != null) {
    const { rows } = await sql`
      select from grants where id = ${owner.grantId} and withdrawn_at is null for share`.execute(tx);
    if (rows.length === 0) throw ownerGone();
  }
  const actor = owner.kind === 'user' ? owner.accountId : `client:${owner.clientId}`;
  await sql`select set_config('nuncio.actor', ${actor}, true)`.execute(tx);
}

export function ownerGone(): Problem {
  return new Problem(409, 'The grant, account or app no longer exists.', { code: 'owner-gone' });
}

/** Finds a subscription that the owner may see. */
export async function findSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Subscription | undefined> {
  const { rows } = await sql<SubscriptionRow>`
    select ${withFailing} where id = ${id} and ${visibleTo(owner)}`.execute(db);
  return rows[0] && toSubscription(rows[0]);
}

/**
 * Locks the subscription until the transaction ends, so that the change applies to the values that were read.
 */
export async function lockSubscription(tx: Transaction, owner: Owner, id: string): Promise<void> {
  await sql`select from subscriptions where id = ${id} and ${ownedBy(owner)} for update`.execute(tx);
}

/** Changes nothing if the subscription does not exist. */
export async function changeSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  fields: SubscriptionFields,
): Promise<void> {
  const filter = storedFilter(fields.filter);
  await sql`
    update subscriptions set
      url = ${fields.url}, kinds = ${fields.kinds}::text[], signature = ${fields.signature},
      format = ${fields.format}, ordered = ${fields.ordered}, rate_limit = ${fields.rateLimit}::int,
      description = ${fields.description}, retry_schedule = ${fields.retrySchedule}::int[],
      filter = ${filter.given}::json, filter_path = ${filter.path}::jsonpath, filter_digest = ${filter.digest}::bytea,
      version = ${fields.version}, handshake = ${fields.handshake},
      revision = revision + 1, updated_at = now()
    where id = ${id} and ${ownedBy(owner)}`.execute(db);
}

/** Changes the version of the bodies that a subscription gets. */
export async function setVersion(db: Database | Transaction, id: string, version: string): Promise<void> {
  await sql`
    update subscriptions set version = ${version}, revision = revision + 1, updated_at = now()
    where id = ${id} and state <> 'ended' and version is distinct from ${version}`.execute(db);
}

/**
 * Ends a subscription. Deliveries that have not started are cancelled.
 * @returns whether the subscription existed
 */
export async function endSubscription(tx: Transaction, owner: Owner, id: string): Promise<boolean> {
  const { rows } = await sql`
    update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
    where id = ${id} and ${visibleTo(owner)} returning id`.execute(tx);
  return rows.length > 0;
}

export function toSubscription(row: SubscriptionRow): Subscription {
  return {
    id: row.id,
    lane: Number(row.lane),
    grantId: row.grant_id,
    accountId: row.account_id,
    clientId: row.client_id,
    url: row.url,
    kinds: row.kinds,
    signature: row.signature,
    format: row.format,
    version: row.version,
    ordered: row.ordered,
    rateLimit: row.rate_limit,
    description: row.description,
    retrySchedule: row.retry_schedule,
    filter: row.filter,
    handshake: row.handshake,
    state: row.state,
    headerNames: row.header_names,
    auth: row.auth,
    disabledReason: row.disabled_reason,
    failingSince: row.failing_since ?? null,
    disablesAt: row.disables_at ?? null,
    acknowledged: row.acknowledged_at
      ? { sequence: Number(row.acknowledged), at: row.acknowledged_at }
      : null,
    agent:
      row.agent_mode && row.agent_expires_at
        ? { mode: row.agent_mode, expiresAt: row.agent_expires_at }
        : null,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
}
