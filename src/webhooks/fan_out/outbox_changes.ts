/**
 * Finds the accounts with new rows in the outbox: rows that a snapshot of the database sees and an earlier one did not. Ids are
 * assigned before the commit, so they do not tell. Snapshots do: what an earlier one did not see was added by a transaction that
 * ran then, or that began later.
 */

import { type RawBuilder, sql } from 'kysely';
import { textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';

/** What a statement saw: PostgreSQL's `pg_snapshot`, as text. */
export interface Snapshot {
  text: string;
  /** Transactions from this one on had not begun, or not taken an id. */
  end: string;
  /** Earlier transactions that still ran. */
  running: string[];
}

/** An account with rows in the outbox. */
export interface WaitingAccount {
  account: string;
  /** Its rows have higher ids. */
  after: number;
  /** The UTC day of the first of them; null if it is not known. */
  day: string | null;
}

/** Before the first reading. Every row is new to it. */
export const nothingSeen: Snapshot = { text: '1:1:', end: '1', running: [] };

export function parseSnapshot(text: string): Snapshot {
  const [, end = '1', running = ''] = text.split(':');
  return { text, end, running: running === '' ? [] : running.split(',') };
}

/**
 * Gives rows of a restored dump an id of this database. Theirs may be ids that it has not reached yet, and no snapshot would see them.
 */
export async function adoptRestored(db: Database): Promise<void> {
  await sql`
    update outbox set added_by = pg_current_xact_id()
    where added_by >= pg_snapshot_xmax(pg_current_snapshot())`.execute(db);
}

export async function readSnapshot(db: Database): Promise<Snapshot> {
  const { rows } = await sql<{ text: string }>`select pg_current_snapshot()::text as text`.execute(db);
  return parseSnapshot((rows[0] as { text: string }).text);
}

/**
 * Common table expression `found`: accounts with rows that the snapshot did not see (`account`, `after`, `day`).
 */
export function findNew({ end, running }: Snapshot): RawBuilder<unknown> {
  return sql`
    found as materialized (
      select turn as account, min(id) - 1 as after, min(day) as day
      from (
        select turn, id, day from outbox where added_by >= ${end}::text::xid8
        union all
        select turn, id, day from outbox
        where added_by = any(${textArray(running)}::text[]::xid8[]) and added_by < ${end}::text::xid8
      ) as each
      group by turn
      -- Neighbours share blocks of indexes and tables.
      order by turn
    )`;
}

/** Columns with the rows of `found`, for `readFound`. */
export const foundColumns = sql`
  (select array_to_string(array_agg(account), ',') from found) as accounts,
  (select array_to_string(array_agg(after), ',') from found) as afters,
  (select case when min(day) = max(day) then min(day)::text end from found) as found_day,
  pg_current_snapshot()::text as snapshot`;

export interface FoundRow {
  accounts: string | null;
  afters: string | null;
  /** The day of all accounts; null if there are several. */
  found_day: string | null;
  snapshot: string;
}

/** New rows in the outbox. */
export interface Found {
  snapshot: Snapshot;
  /** In the order of `found`. */
  accounts: WaitingAccount[];
}

export function readFound({ accounts, afters, found_day: day, snapshot }: FoundRow): Found {
  const after = afters?.split(',') ?? [];
  return {
    snapshot: parseSnapshot(snapshot),
    accounts: (accounts?.split(',') ?? []).map((account, index) => ({
      account,
      after: Number(after[index]),
      day,
    })),
  };
}

/** Finds the rows that a snapshot of now sees and `since` does not. */
export async function findChanges(db: Database, since: Snapshot): Promise<Found> {
  const { rows } = await sql<FoundRow>`with ${findNew(since)} select ${foundColumns}`.execute(db);
  return readFound(rows[0] as FoundRow);
}

/**
 * Reads accounts with rows in the outbox, in the order of their ids.
 * @param after the account that the list continues after; the empty string for the beginning
 */
export async function scanOutbox(db: Database, after: string, max: number): Promise<WaitingAccount[]> {
  const { rows } = await sql<{ account: string; after: string; day: string }>`
    with recursive each as (
      (
        select turn, id, day, 1 as number from outbox
        where turn > coalesce(nullif(${after}, ''), '00000000-0000-0000-0000-000000000000')::uuid
        order by turn, id limit 1
      )
      union all
      select next.turn, next.id, next.day, each.number + 1
      from each
      cross join lateral (
        select turn, id, day from outbox where turn > each.turn order by turn, id limit 1
      ) as next
      where each.number < ${max}::int
    )
    select turn as account, id - 1 as after, day::text from each`.execute(db);
  return rows.map((row) => ({ ...row, after: Number(row.after) }));
}
