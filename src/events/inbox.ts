/**
 * The inbox: events that an application published with the SQL function `publish`, until a server takes them in. This file and the
 * function own the tables `inbox` and `intake`.
 *
 *   published → (commit) → in the inbox → (ingested) → event | rejected event
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database, Transaction } from '../database/database.ts';

/** A published event. */
export interface InboxRow {
  id: string;
  /** An account id or an external id. */
  account: string;
  eventId: string;
  /** Whether the publisher chose the id. */
  isChosen: boolean;
  kind: string;
  /** JSON. */
  body: string;
  publishedAt: Date;
}

export interface ReadRow extends InboxRow {
  /** Where the row is in the table. */
  place: string;
}

/** Milliseconds after which PostgreSQL ends the transaction of a server that is paused or cut off. */
const idleMsMax = 3_000;
/** Milliseconds after which PostgreSQL cancels a later statement of the transaction. */
const statementMsMax = 8_000;
/** Maximum number of accounts, and of bytes, in a batch. Events of others wait for the batch, and a large body can take 100 ms. */
const batchAccountsMax = 250;
const batchBytesMax = 524_288;
/** The lower bound of ids is updated after this many new ids (KiB). Dead versions of the `intake` row slow publishers down. */
const firstIdStep = 65_536;

export interface InboxBatch {
  rows: ReadRow[];
  /** The last account that had a turn. Empty if turns start over. */
  lastAccount: string;
}

/** Whether the inbox holds rows. */
export async function isWaiting(db: Database): Promise<boolean> {
  const { rows } = await sql<{ is_waiting: boolean }>`
    select exists (select from inbox) as is_waiting`.execute(db);
  return rows[0]?.is_waiting ?? false;
}

/**
 * Reads a batch of rows. Accounts take turns and get equal shares. Rows of one account stay in order. A batch has more bytes than the
 * buffers of a connection. So it is read without a lock: a server that is paused would keep it.
 * @param after the account after which turns begin
 * @param limit maximum number of rows
 */
export async function readBatch(db: Database, after: string, limit: number): Promise<InboxBatch> {
  const { rows } = await sql<ReadRow & { lastAccount: string }>`
    with recursive turn as (
      (select account from inbox where account > ${after} order by account limit 1)
      union all
      select next.account
      from turn, lateral (
        select account from inbox where inbox.account > turn.account order by account limit 1
      ) as next
    ),
    turns as materialized (select account from turn limit ${batchAccountsMax}),
    counted as materialized (select count(*)::int as accounts, max(account) as last_account from turns),
    shares as (
      select row.ctid, row.size, row.place, turns.account
      from turns, counted, lateral (
        select first.ctid, size, row_number() over (order by id) as place
        from (
          select inbox.ctid, id, size from inbox where inbox.account = turns.account
          order by id limit greatest(1, ${limit}::int / counted.accounts)
        ) as first
      ) as row
    ),
    sums as (
      select ctid, sum(size) over (order by place, account rows unbounded preceding) - size as before,
        row_number() over (order by place, account) as number
      from shares
    ),
    found as materialized (
      select ctid as place, * from inbox
      where ctid = any(array(select sums.ctid from sums where before < ${batchBytesMax}::bigint and number <= ${limit}::int))
    )
    select found.id, account, event_id as "eventId", is_chosen as "isChosen", kind, body,
      published_at as "publishedAt", place::text,
      case
        -- There was no room for the others. The first rows of accounts are read in their order.
        when (select count(distinct account) from found) < accounts then (select max(account) from found)
        when accounts < ${batchAccountsMax}::int then ''
        else last_account
      end as "lastAccount"
    from found, counted`.execute(db);
  return {
    lastAccount: rows[0]?.lastAccount ?? '',
    rows: rows.sort((a, b) => Number(a.id) - Number(b.id)),
  };
}

/**
 * Deletes rows that were read, if this server still holds the lease and all of them still exist. Bounds the rest of the transaction, which
 * keeps others from the lease.
 * @param held selects a row while this server holds the lease
 * @returns false if another server has the lease or has taken rows. The caller must then roll back
 */
export async function takeRows(
  tx: Transaction,
  held: RawBuilder<unknown>,
  rows: readonly ReadRow[],
): Promise<boolean> {
  const { rows: taken } = await sql<{ ids: string[] }>`
    with lease as materialized (${held}),
    taken as (
      delete from inbox where ctid = any(${rows.map(({ place }) => place)}::tid[]) and exists (select from lease)
      returning id
    )
    select array(select id::text from taken) as ids,
      set_config('idle_in_transaction_session_timeout', ${String(idleMsMax)}, true),
      set_config('statement_timeout', ${String(statementMsMax)}, true)`.execute(tx);
  // Another row may be at the place of one that was taken.
  const ids = new Set(taken[0]?.ids);
  return ids.size === rows.length && rows.every(({ id }) => ids.has(id));
}

/** @returns the age of the oldest row, in seconds */
export async function readInboxAge(db: Database): Promise<number> {
  const { rows } = await sql<{ age: number }>`
    select coalesce(extract(epoch from clock_timestamp() - min(published_at)), 0)::float8 as age
    from inbox`.execute(db);
  return Math.max(rows[0]?.age ?? 0, 0);
}

/** Announces that this server polls for the given time. Publishers send no notifications until then. */
export async function announcePolling(db: Database, milliseconds: number): Promise<void> {
  await sql`
    update intake set polls_until = clock_timestamp() + ${milliseconds}::float8 * interval '1 ms'
    where polls_until < clock_timestamp() + ${milliseconds / 2}::float8 * interval '1 ms'`.execute(db);
}

/**
 * Updates the lower bound of the ids in the inbox, with which `publish` limits the size of the inbox. Until then, rows that were
 * rolled back count as waiting. Reads the whole inbox if the bound can move far.
 */
export async function updateFirstId(db: Database): Promise<void> {
  await sql`
    update intake set first_id = greatest(
      first_id, coalesce((select min(id) from inbox), (select last_value from inbox_ids)))
    where first_id + ${firstIdStep}::bigint <= (select last_value from inbox_ids)`.execute(db);
}
