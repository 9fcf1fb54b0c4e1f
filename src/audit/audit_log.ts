/**
 * The audit log: tokens, grants, withdrawals, registrations, key rotations. Owns the table `audit_entries`. What
 * changes a row of a table is written by the database's triggers, in the same transaction; tokens, of which there
 * is no row, are gathered here and written many at once.
 */

import { sql } from 'kysely';
import { doubleArray, textArray } from '../database/arrays.ts';
import { type Database, isDatabaseUnavailable } from '../database/database.ts';

export interface AuditEntry {
  /** Like `token.issued`. */
  kind: string;
  accountId: string | null;
  clientId: string | null;
  grantId: string | null;
  details: Readonly<Record<string, unknown>>;
}

type WaitingEntry = AuditEntry & { at: number };

/** Milliseconds that an entry waits for others, and how many may wait; past that they are counted as lost. */
const flushMs = 500;
const waitingMax = 10_000;

export class AuditLog {
  readonly #db: Database;
  readonly #onError: (error: unknown, lost: number) => void;
  #waiting: WaitingEntry[] = [];
  #timer: NodeJS.Timeout | undefined;
  #flushing: Promise<void> | undefined;
  #isStopped = false;

  /** @param onError told of entries that could not be written */
  constructor(db: Database, onError: (error: unknown, lost: number) => void) {
    this.#db = db;
    this.#onError = onError;
  }

  add(entry: AuditEntry): void {
    if (this.#waiting.length >= waitingMax) {
      this.#onError(new Error('too many entries wait'), 1);
      return;
    }
    this.#waiting.push({ ...entry, at: Date.now() });
    this.#flushSoon();
  }

  /** Writes what still waits. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    this.#isStopped = true;
    await this.#flushing;
    await this.#flush();
  }

  #flushSoon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.#flush();
    }, flushMs);
  }

  /**
   * The database is away: they wait for it, before what came after them. Those that it had written when it went are
   * written twice: rather that than not at all.
   */
  #keep(entries: WaitingEntry[], error: unknown): void {
    const kept = entries.slice(0, Math.max(0, waitingMax - this.#waiting.length));
    this.#waiting = [...kept, ...this.#waiting];
    if (kept.length < entries.length) this.#onError(error, entries.length - kept.length);
    this.#flushSoon();
  }

  async #flush(): Promise<void> {
    if (this.#waiting.length === 0) return;
    const entries = this.#waiting;
    this.#waiting = [];
    this.#flushing = sql`
      insert into audit_entries (at, kind, account_id, client_id, grant_id, details)
      select to_timestamp(at), kind, account_id::uuid, client_id, grant_id::uuid, details::jsonb
      from unnest(
        ${doubleArray(entries.map((entry) => entry.at / 1_000))}::float8[],
        ${textArray(entries.map((entry) => entry.kind))}::text[],
        ${textArray(entries.map((entry) => entry.accountId))}::text[],
        ${textArray(entries.map((entry) => entry.clientId))}::text[],
        ${textArray(entries.map((entry) => entry.grantId))}::text[],
        ${textArray(entries.map((entry) => JSON.stringify(entry.details)))}::text[])
        as entry (at, kind, account_id, client_id, grant_id, details)`
      .execute(this.#db)
      .then(
        () => {},
        (error: unknown) => {
          if (isDatabaseUnavailable(error) && !this.#isStopped) this.#keep(entries, error);
          else this.#onError(error, entries.length);
        },
      );
    await this.#flushing;
  }
}

export interface AuditRow extends AuditEntry {
  at: Date;
  /** The user's address. */
  email: string | null;
}

/**
 * The last entries, the oldest of them first.
 * @param filter by client, account (its id or its address) or the beginning of the kind
 */
export async function readAuditLog(
  db: Database,
  filter: {
    clientId?: string | undefined;
    account?: string | undefined;
    kind?: string | undefined;
    limit: number;
  },
): Promise<AuditRow[]> {
  const { rows } = await sql<{
    at: Date;
    kind: string;
    account_id: string | null;
    client_id: string | null;
    grant_id: string | null;
    details: Record<string, unknown>;
    email: string | null;
  }>`
    select e.at, e.kind, e.account_id, e.client_id, e.grant_id, e.details, a.email
    from audit_entries e
    left join accounts a on a.id = e.account_id
    where (${filter.clientId ?? null}::text is null or e.client_id = ${filter.clientId ?? null})
      and (${filter.account ?? null}::text is null or e.account_id in (
        select id from accounts where id::text = ${filter.account ?? null} or email = lower(${filter.account ?? null})))
      and (${filter.kind ?? null}::text is null or starts_with(e.kind, ${filter.kind ?? null}))
    order by e.id desc
    limit ${filter.limit}`.execute(db);
  return rows.reverse().map((row) => ({
    at: row.at,
    kind: row.kind,
    accountId: row.account_id,
    clientId: row.client_id,
    grantId: row.grant_id,
    details: row.details,
    email: row.email,
  }));
}
