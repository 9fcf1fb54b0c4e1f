/**
 * The audit log: tokens, grants, withdrawals, registrations, key rotations. Owns the table `audit_entries`. Triggers write
 * the entries for changes of rows, in the same transaction. Issued tokens have no row; their entries are collected here
 * and written in batches.
 */
import { sql } from 'kysely';
import { doubleArray, textArray } from '../database/arrays.ts';
import { asServer } from '../database/connection_user.ts';
import { type Database, isDatabaseUnavailable } from '../database/database.ts';

export interface AuditEntry {
  /** For example `token.issued`. */
  kind: string;
  accountId: string | null;
  clientId: string | null;
  grantId: string | null;
  details: Readonly<Record<string, unknown>>;
}

type PendingEntry = AuditEntry & { at: number };

/** Milliseconds until a flush, and maximum number of pending entries. Further entries are lost. */
const flushMs = 500;
const pendingMax = 10_000;

export class AuditLog {
  readonly #db: Database;
  readonly #onError: (error: unknown, lost: number) => void;
  #pending: PendingEntry[] = [];
  #timer: NodeJS.Timeout | undefined;
  #flushing: Promise<void> | undefined;
  #isStopped = false;

  /** @param onError called with the error and the number of lost entries */
  constructor(db: Database, onError: (error: unknown, lost: number) => void) {
    this.#db = db;
    this.#onError = onError;
  }

  add(entry: AuditEntry): void {
    if (this.#pending.length >= pendingMax) {
      this.#onError(new Error('too many pending audit entries'), 1);
      return;
    }
    this.#pending.push({ ...entry, at: Date.now() });
    this.#flushSoon();
  }

  /** Writes pending entries. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    this.#isStopped = true;
    await this.#flushing;
    await this.#flush();
  }

  #flushSoon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void asServer(() => this.#flush());
    }, flushMs);
  }

  /**
   * Puts entries back during a database outage, in front of newer ones. If the database had written them before the
   * connection was lost, they are written twice, which is better than losing them.
   */
  #requeue(entries: PendingEntry[], error: unknown): void {
    const requeued = entries.slice(0, Math.max(0, pendingMax - this.#pending.length));
    this.#pending = [...requeued, ...this.#pending];
    if (requeued.length < entries.length) this.#onError(error, entries.length - requeued.length);
    this.#flushSoon();
  }

  async #flush(): Promise<void> {
    if (this.#pending.length === 0) return;
    const entries = this.#pending;
    this.#pending = [];
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
          if (isDatabaseUnavailable(error) && !this.#isStopped) this.#requeue(entries, error);
          else this.#onError(error, entries.length);
        },
      );
    await this.#flushing;
  }
}

export interface AuditRow extends AuditEntry {
  at: Date;
  /** The e-mail address of the account. */
  email: string | null;
}

/**
 * The latest entries, oldest first.
 * @param filter client, account (id or address), or prefix of the kind
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
  const { rows } = await sql<AuditRow>`
    select e.at, e.kind, e.account_id as "accountId", e.client_id as "clientId", e.grant_id as "grantId",
      e.details, a.email
    from audit_entries e
    left join accounts a on a.id = e.account_id
    where (${filter.clientId ?? null}::text is null or e.client_id = ${filter.clientId ?? null})
      and (${filter.account ?? null}::text is null or e.account_id in (
        select id from accounts where id::text = ${filter.account ?? null} or email = lower(${filter.account ?? null})))
      and (${filter.kind ?? null}::text is null or starts_with(e.kind, ${filter.kind ?? null}))
    order by e.id desc
    limit ${filter.limit}`.execute(db);
  return rows.reverse();
}
