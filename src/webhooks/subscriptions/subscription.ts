/**
 * Subscriptions: a subscriber's URL with the kinds it wants. Owns the table `subscriptions` and makes the two rows of
 * its lane.
 *
 *   active ⇄ disabled;   either → ended (deleted, or its grant withdrawn: by the database itself, see the migration)
 */

import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { newLane } from './delivery_id.ts';
import type { Owner } from './owner.ts';
import { defaultQuotas, type Quotas } from './quotas.ts';
import type { SignatureShape } from './signature.ts';
import { type StaticHeaders, sealHeaders } from './static_headers.ts';
import { lockQuotas, requireQuota } from './subscription_quotas.ts';

export type { Owner } from './owner.ts';

export const formats = ['json', 'cloudevents'] as const;
export type Format = (typeof formats)[number];

/** What its owner may set. */
export interface SubscriptionFields {
  url: string;
  kinds: string[];
  signature: SignatureShape;
  format: Format;
  ordered: boolean;
  /** Attempts a second; null for no limit. */
  rateLimit: number | null;
  description: string;
  /** Seconds; null for the deployment's own. */
  retrySchedule: number[] | null;
}

export type SubscriptionState = 'active' | 'disabled';

export interface Subscription extends SubscriptionFields {
  id: string;
  lane: number;
  grantId: string | null;
  /** Null where the owner is a client. */
  accountId: string | null;
  /** Null where the owner is a user. */
  clientId: string | null;
  state: SubscriptionState;
  /** Names of its static headers. */
  headerNames: readonly string[];
  disabledReason: string | null;
  /** Since when none of its deliveries has succeeded; null where the last one did. */
  failingSince: Date | null;
  /** When it will be disabled for that; null before the first warning. */
  disablesAt: Date | null;
  createdAt: Date;
  updatedAt: Date;
}

export interface SubscriptionRow {
  id: string;
  lane: string;
  grant_id: string | null;
  account_id: string | null;
  client_id: string | null;
  url: string;
  kinds: string[];
  signature: SignatureShape;
  format: Format;
  ordered: boolean;
  rate_limit: number | null;
  description: string;
  retry_schedule: number[] | null;
  header_names: string[];
  state: SubscriptionState;
  disabled_reason: string | null;
  created_at: Date;
  updated_at: Date;
  /** Where they were asked for. */
  failing_since?: Date | null;
  disables_at?: Date | null;
}

/** Columns and tables by which a subscription also says how it fails. */
export const withFailing = sql`
  subscriptions.*, p.failing_since, w.disables_at
  from subscriptions
  join lane_progress p on p.lane = subscriptions.lane
  left join failing_warnings w on w.lane = p.lane and w.failing_since = p.failing_since`;

/** Those of one owner that have not ended; to be part of a `where`. */
function belongsTo(owner: Owner) {
  switch (owner.kind) {
    case 'grant':
      // Whichever of its grants an app made it with: each sign-in has a grant of its own.
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

/** Own subscriptions of the apps that an account is a member of at this moment; of users' grants there is none. */
function isOfAppOf(memberId: string) {
  return sql`(subscriptions.owner = 'client' and subscriptions.state <> 'ended' and exists (
    select from app_members m where m.client_id = subscriptions.client_id and m.account_id = ${memberId}))`;
}

function memberOf(owner: Owner): string | null {
  return owner.kind === 'client' ? null : (owner.memberId ?? null);
}

/** Those that an owner may change, by id; to be part of a `where`. */
export function ownedBy(owner: Owner) {
  const memberId = memberOf(owner);
  return memberId === null ? belongsTo(owner) : sql`(${belongsTo(owner)} or ${isOfAppOf(memberId)})`;
}

/** Those that are listed for an owner: their own; for a user also those of the apps that act for them. */
function listedFor(owner: Owner) {
  if (owner.kind !== 'user') return belongsTo(owner);
  return sql`(subscriptions.account_id = ${owner.accountId} and subscriptions.state <> 'ended')`;
}

/** Those that an owner may see and end, by id; to be part of a `where`. */
export function seenBy(owner: Owner) {
  const memberId = memberOf(owner);
  return memberId === null ? listedFor(owner) : sql`(${listedFor(owner)} or ${isOfAppOf(memberId)})`;
}

/**
 * @param secret as its owner sees it
 * @returns undefined where the owner is gone: the grant was withdrawn meanwhile
 * @throws QuotaExceeded
 */
export async function createSubscription(
  db: Database | Transaction,
  owner: Owner,
  fields: SubscriptionFields,
  secret: string,
  sealer: Sealer,
  headers: StaticHeaders = {},
  quotas: Quotas = defaultQuotas,
): Promise<Subscription | undefined> {
  const id = newId();
  return inTransaction(db, async (tx) => {
    await lockQuotas(tx, owner);
    // The lock makes a withdrawal wait, or makes us see it: no subscription outlives its grant.
    if (owner.kind === 'grant') {
      const { rows } = await sql`
        select from grants where id = ${owner.grantId} and withdrawn_at is null for share`.execute(tx);
      if (rows.length === 0) return undefined;
    } else if (owner.kind === 'user') {
      // Likewise for the end of the account.
      const { rows } = await sql`
        select from accounts where id = ${owner.accountId} and disabled_at is null for key share`.execute(tx);
      if (rows.length === 0) return undefined;
    } else {
      // Likewise for the end of the app.
      const { rows } = await sql`
        select from clients where id = ${owner.clientId} and not is_stopped for key share`.execute(tx);
      if (rows.length === 0) return undefined;
    }
    await requireQuota(tx, owner, quotas);
    const { rows } = await sql<SubscriptionRow>`
      insert into subscriptions (
        id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, format, ordered, rate_limit,
        description, retry_schedule, secret, headers, header_names)
      values (${id}, ${newLane()}, ${owner.kind}, ${owner.kind === 'grant' ? owner.grantId : null}::uuid,
        ${owner.kind === 'client' ? null : owner.accountId}::uuid,
        ${owner.kind === 'user' ? null : owner.clientId}::text,
        ${fields.url}, ${fields.kinds}::text[], ${fields.signature}, ${fields.format}, ${fields.ordered},
        ${fields.rateLimit}::int, ${fields.description}, ${fields.retrySchedule}::int[], ${sealer.seal(secret, id)},
        ${sealHeaders(headers, id, sealer)}::bytea, ${Object.keys(headers)}::text[])
      returning *`.execute(tx);
    const row = rows[0] as SubscriptionRow;
    await sql`
      with head as (insert into lanes (id) values (${row.lane}))
      insert into lane_progress (lane) values (${row.lane})`.execute(tx);
    return toSubscription(row);
  });
}

/** Entries that the transaction writes to the audit log name whose token it was. */
export async function actAsOwner(tx: Transaction, owner: Owner): Promise<void> {
  const actor = owner.kind === 'user' ? owner.accountId : `client:${owner.clientId}`;
  await sql`select set_config('nuncio.actor', ${actor}, true)`.execute(tx);
}

/** One that the owner may see. */
export async function findSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Subscription | undefined> {
  const { rows } = await sql<SubscriptionRow>`
    select ${withFailing} where id = ${id} and ${seenBy(owner)}`.execute(db);
  return rows[0] && toSubscription(rows[0]);
}

/** Keeps others from changing it until the transaction ends: what is changed is what was read. */
export async function lockSubscription(tx: Transaction, owner: Owner, id: string): Promise<void> {
  await sql`select from subscriptions where id = ${id} and ${ownedBy(owner)} for update`.execute(tx);
}

/** Those that the owner may see, the oldest first. @param after the id of the last one seen */
export async function listSubscriptions(
  db: Database,
  owner: Owner,
  limit: number,
  after: string | null,
): Promise<Subscription[]> {
  const { rows } = await sql<SubscriptionRow>`
    select ${withFailing}
    where ${listedFor(owner)} and (${after}::uuid is null or id > ${after}::uuid)
    order by id limit ${limit}`.execute(db);
  return rows.map(toSubscription);
}

/** @returns undefined where there is none (any more) */
export async function changeSubscription(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  fields: SubscriptionFields,
): Promise<Subscription | undefined> {
  const { rows } = await sql<SubscriptionRow>`
    update subscriptions set
      url = ${fields.url}, kinds = ${fields.kinds}::text[], signature = ${fields.signature},
      format = ${fields.format}, ordered = ${fields.ordered}, rate_limit = ${fields.rateLimit}::int,
      description = ${fields.description}, retry_schedule = ${fields.retrySchedule}::int[],
      revision = revision + 1, updated_at = now()
    where id = ${id} and ${ownedBy(owner)}
    returning *`.execute(db);
  return rows[0] && toSubscription(rows[0]);
}

/** Ends a subscription: what has not been started is cancelled. @returns whether there was one */
export async function endSubscription(tx: Transaction, owner: Owner, id: string): Promise<boolean> {
  const { rows } = await sql`
    update subscriptions set state = 'ended', ended_at = now(), updated_at = now()
    where id = ${id} and ${seenBy(owner)} returning id`.execute(tx);
  return rows.length > 0;
}

export interface Secrets {
  secret: string;
  /** The one before it, while it still signs. */
  previous: { secret: string; until: Date } | null;
}

export async function readSecrets(
  db: Database,
  owner: Owner,
  id: string,
  sealer: Sealer,
): Promise<Secrets | undefined> {
  const { rows } = await sql<SecretRow>`
    select id, secret, previous_secret, previous_secret_until from subscriptions
    where id = ${id} and ${ownedBy(owner)}`.execute(db);
  return rows[0] && openSecrets(rows[0], sealer);
}

/**
 * Puts a new secret in front; the one before signs beside it for a while.
 * @param overlapSeconds 0 to drop the old one at once
 */
export async function rotateSecret(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  secret: string,
  overlapSeconds: number,
  sealer: Sealer,
): Promise<Secrets | undefined> {
  const { rows } = await sql<SecretRow>`
    update subscriptions set
      previous_secret = case when ${overlapSeconds}::int > 0 then secret end,
      previous_secret_until = case when ${overlapSeconds}::int > 0 then now() + make_interval(secs => ${overlapSeconds}) end,
      secret = ${sealer.seal(secret, id)}, revision = revision + 1, updated_at = now()
    where id = ${id} and ${ownedBy(owner)}
    returning id, secret, previous_secret, previous_secret_until`.execute(db);
  return rows[0] && openSecrets(rows[0], sealer);
}

export interface SecretRow {
  id: string;
  secret: Buffer;
  previous_secret: Buffer | null;
  previous_secret_until: Date | null;
}

export function openSecrets(row: SecretRow, sealer: Sealer): Secrets {
  const until = row.previous_secret_until;
  const previous =
    row.previous_secret !== null && until !== null
      ? { secret: sealer.open(row.previous_secret, row.id).toString(), until }
      : null;
  return { secret: sealer.open(row.secret, row.id).toString(), previous };
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
    ordered: row.ordered,
    rateLimit: row.rate_limit,
    description: row.description,
    retrySchedule: row.retry_schedule,
    state: row.state,
    headerNames: row.header_names,
    disabledReason: row.disabled_reason,
    failingSince: row.failing_since ?? null,
    disablesAt: row.disables_at ?? null,
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  };
}
