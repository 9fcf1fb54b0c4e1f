/**
 * Rejected events: events that were published by SQL and failed validation. They are kept until an operator retries or discards
 * them. While an account has too many, `publish` fails for that account (migrations/0024_rejected_events.sql). Owns the table
 * `rejected_events`.
 *
 *   rejected → (retried with a valid body) → event
 *            → (discarded, or older than `retention.rejectedDays`)
 */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { textArray } from '../database/arrays.ts';
import { deleteBatches } from '../database/batches.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { ValidationError } from '../http/problem.ts';
import type { InboxRow } from './inbox.ts';

/**
 * Number of rejected events, and of bytes in their bodies, at which `publish` begins to fail for accounts with a rejected event. With
 * twice as many, it fails for all. Of an account, no more than its own limits count, so that one account reaches neither.
 */
const rejectedMax = 100_000;
const rejectedBytesMax = 1_073_741_824;
/** The limits of an account, as in `publish`. */
const accountMax = 1_000;
const accountBytesMax = 10_485_760;

/** Why the intake refused an event. */
export interface Rejection {
  /** One sentence. */
  reason: string;
  errors: ValidationError[];
}

export interface RejectedEvent extends Omit<InboxRow, 'id'>, Rejection {
  id: string;
  rejectedAt: Date;
}

export async function keepRejected(
  tx: Transaction,
  rejected: readonly { row: InboxRow; rejection: Rejection }[],
): Promise<void> {
  const text = (read: (each: (typeof rejected)[number]) => string) => textArray(rejected.map(read));
  await sql`
    insert into rejected_events
      (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
    select id::uuid, account, event_id, is_chosen::boolean, kind, body, octet_length(body), reason, errors::jsonb,
      published_at::timestamptz
    from unnest(
      ${text(() => newId())}::text[], ${text(({ row }) => row.account)}::text[], ${text(({ row }) => row.eventId)}::text[],
      ${text(({ row }) => String(row.isChosen))}::text[], ${text(({ row }) => row.kind)}::text[],
      ${text(({ row }) => row.body)}::text[], ${text(({ rejection }) => rejection.reason)}::text[],
      ${text(({ rejection }) => JSON.stringify(rejection.errors))}::text[],
      ${text(({ row }) => row.publishedAt.toISOString())}::text[]
    ) as given (id, account, event_id, is_chosen, kind, body, reason, errors, published_at)`.execute(tx);
}

/** Blocks publishers while there are too many rejected events, and unblocks them otherwise. Reads the sizes of all rejected events. */
export async function limitRejected(tx: Database | Transaction): Promise<void> {
  await sql`
    update intake set is_blocked = used.part >= 1, is_full = used.part >= 2
    from (
      select greatest(
        sum(least(count, ${accountMax}::int))::float8 / ${rejectedMax}::int,
        sum(least(bytes, ${accountBytesMax}::bigint))::float8 / ${rejectedBytesMax}::bigint, 0) as part
      from (select count(*) as count, sum(size) as bytes from rejected_events group by account) as kept
    ) as used
    where is_blocked <> (used.part >= 1) or is_full <> (used.part >= 2)`.execute(tx);
}

/** The same after events were deleted: without effect unless publishers are blocked. */
async function unblock(tx: Database | Transaction): Promise<void> {
  const { rows } = await sql`select from intake where is_blocked or is_full`.execute(tx);
  if (rows.length > 0) await limitRejected(tx);
}

/** Deletes those that are older than the operator wants to keep them. @param now the time that counts as now */
export async function expireRejected(db: Database, now: RawBuilder<unknown>): Promise<void> {
  const isExpired = sql`rejected_at < ${now} - (select make_interval(days => rejected_days) from retention)`;
  if ((await deleteBatches(db, 'rejected_events', isExpired)) > 0) await unblock(db);
}

const columns = sql.raw(
  `id, account, event_id as "eventId", is_chosen as "isChosen", kind, body, reason, errors,
    published_at as "publishedAt", rejected_at as "rejectedAt"`,
);

/** Lists the newest first. @param after the last id of the previous page */
export async function listRejected(
  db: Database,
  limit: number,
  after: string | null = null,
): Promise<RejectedEvent[]> {
  const next = after === null ? sql`` : sql`where id < ${after}`;
  const { rows } = await sql<RejectedEvent>`
    select ${columns} from rejected_events ${next} order by id desc limit ${limit}`.execute(db);
  return rows;
}

export async function findRejected(db: Database, id: string): Promise<RejectedEvent | undefined> {
  const { rows } = await sql<RejectedEvent>`select ${columns} from rejected_events where id = ${id}`.execute(
    db,
  );
  return rows[0];
}

/** Deletes a rejected event, and unblocks publishers if the limit allows. @returns undefined if there is no such event */
export async function takeRejected(tx: Transaction, id: string): Promise<RejectedEvent | undefined> {
  const { rows } = await sql<RejectedEvent>`
    delete from rejected_events where id = ${id} returning ${columns}`.execute(tx);
  if (rows[0] === undefined) return undefined;
  await unblock(tx);
  return rows[0];
}

export async function countRejected(db: Database): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*)::int as count from rejected_events`.execute(
    db,
  );
  return rows[0]?.count ?? 0;
}

/**
 * Moves every event of the inbox to the rejected ones, which an operator can retry. Only while no server runs.
 * @param reason one sentence
 * @returns the number of events
 */
export async function rejectInbox(tx: Transaction, reason: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    with waiting as (delete from inbox returning *),
    added as (
      insert into rejected_events
        (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
      select gen_random_uuid(), account, event_id, is_chosen, kind, body, size, ${reason}, '[]', published_at from waiting
      returning 1
    )
    select count(*)::int as count from added`.execute(tx);
  await limitRejected(tx);
  return rows[0]?.count ?? 0;
}
