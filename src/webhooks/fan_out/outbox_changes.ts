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

/** Rows of a restored dump that one statement adopts. */
const adoptedMax = 20_000;

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
  let count: bigint | undefined;
  do {
    // In parts: a large backlog would take longer than a statement may.
    const { numAffectedRows } = await sql`
      update outbox set added_by = pg_current_xact_id()
      where ctid = any(array(
        select ctid from outbox where added_by >= pg_snapshot_xmax(pg_current_snapshot()) limit ${adoptedMax}::int
      ))`.execute(db);
    count = numAffectedRows;
  } while (count === BigInt(adoptedMax));
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

/** The number of blocks of the outbox. */
export async function countBlocks(db: Database): Promise<number> {
  const { rows } = await sql<{ blocks: number }>`
    select (pg_relation_size('outbox'::regclass) / current_setting('block_size')::int)::int as blocks`.execute(
    db,
  );
  return rows[0]?.blocks ?? 0;
}

/**
 * Reads the accounts with rows in some blocks of the outbox. Rows that are dead but not vacuumed count towards the blocks, so
 * however many there are, a step is short. A look-up by an index would walk over all of them.
 */
export async function scanBlocks(db: Database, first: number, end: number): Promise<WaitingAccount[]> {
  const { rows } = await sql<{ account: string; after: string; day: string }>`
    select turn as account, min(id) - 1 as after, min(day)::text as day from outbox
    where ctid >= ${`(${first},0)`}::text::tid and ctid < ${`(${end},0)`}::text::tid
    group by turn order by min(id)`.execute(db);
  return rows.map((row) => ({ ...row, after: Number(row.after) }));
}
