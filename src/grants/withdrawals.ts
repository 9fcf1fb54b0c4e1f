/**
 * The withdrawal list: access tokens that are valid by signature and expiry but must be refused. It is kept in memory, so the API
 * runs no query per request. A notification makes a node read it at once. A node trusts the list for at most a second after a
 * read. A node that cannot read the database responds 503. Owns the table `withdrawals`, which database triggers also write.
 */

import { sql } from 'kysely';
import { asServer } from '../database/connection_user.ts';
import { type Database, type Transaction, withTimeout } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';

/** Milliseconds since the last read of the database after which the next one starts, and after which requests wait for it. */
const refreshAfterMs = 400;
const trustMs = 900;
/** Milliseconds that a read may take. After that the database counts as unavailable. */
const readTimeoutMs = 5_000;
/** Milliseconds between removals of expired entries. */
const sweepMs = 60_000;

/** The parts of a token that a withdrawal can match. */
export interface Withdrawable {
  readonly tokenId: string;
  readonly grantId: string | null;
  /** How often the grant had been narrowed when the token was issued. */
  readonly grantRevision: number;
  /** The client's epoch when the token was issued. */
  readonly clientEpoch: string;
}

/**
 * The list entries that stop a token, as `kind:subject`. None depends on a time in the token, because the clock of
 * the node that issued it may be wrong.
 */
function withdrawalKeys(token: Withdrawable): string[] {
  const { tokenId, grantId, grantRevision, clientEpoch } = token;
  return [
    `token:${tokenId}`,
    ...(grantId === null ? [] : [`grant:${grantId}`, `grant_revision:${grantId}:${grantRevision}`]),
    `client_epoch:${clientEpoch}`,
  ];
}

interface WithdrawalRow {
  kind: string;
  subject: string;
  left_ms: number;
}

/**
 * Minimum milliseconds to keep an entry: as long as an access token lives. If the database's clock is ahead when this node reads
 * the entry, its time seems to be over.
 */
const entryMsMin = 3_600_000;

export class WithdrawalList {
  readonly #db: Database;
  /**
   * Expiry of each entry by `kind:subject`, on the monotonic clock. The wall clock may be set forward for a while; an
   * entry that expired in that time would make its token valid again.
   */
  readonly #entries = new Map<string, number>();
  /** All transactions before this one have been read. */
  #cursor = '0';
  /** The database's epoch. A new epoch numbers transactions differently, so everything is read again. */
  #epoch = '';
  #readAt = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | undefined;
  #sweptAt = performance.now();

  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    notifications.listen('withdrawal', {
      onHints: async ({ payloads }) => {
        // A read that is running may have begun before the withdrawal.
        await this.#reading?.catch(() => {});
        this.#reading ??= asServer(() => this.#read());
        await this.#reading;
        return [...payloads].filter((key) => !this.#entries.has(key)).length;
      },
    });
  }

  /**
   * Resolves once the list is recent enough to be trusted. Returns undefined if it is.
   * @throws Error of the database if it cannot be read
   */
  fresh(): Promise<void> | undefined {
    const age = performance.now() - this.#readAt;
    if (age < refreshAfterMs) return undefined;
    this.#reading ??= asServer(() => this.#read());
    if (age >= trustMs) return this.#reading;
    // This read starts early and no request waits for it. If it fails, a later request starts another one and sees the
    // error.
    this.#reading.catch(() => {});
    return undefined;
  }

  has(token: Withdrawable): boolean {
    return this.#entries.size > 0 && withdrawalKeys(token).some((key) => this.#entries.has(key));
  }

  async #read(): Promise<void> {
    const startedAt = performance.now();
    try {
      // The cursor is a transaction id: every transaction older than the oldest running one is visible.
      const { rows } = await withTimeout(
        readTimeoutMs,
        sql<WithdrawalRow & { cursor: string; epoch: string }>`
        select w.kind, w.subject, s.cursor, s.epoch,
          extract(epoch from w.until - now())::float8 * 1000 as left_ms
        from (select pg_snapshot_xmin(pg_current_snapshot())::text as cursor, current_epoch()::text as epoch) s
        left join withdrawals w
          on w.transaction_id >= case when s.epoch = ${this.#epoch} then ${this.#cursor}::xid8 else '0'::xid8 end`.execute(
          this.#db,
        ),
      );
      for (const row of rows) {
        if (row.subject === null) continue;
        this.#entries.set(`${row.kind}:${row.subject}`, startedAt + Math.max(row.left_ms, entryMsMin));
      }
      this.#cursor = rows[0]?.cursor ?? this.#cursor;
      this.#epoch = rows[0]?.epoch ?? this.#epoch;
      this.#readAt = startedAt;
      if (startedAt - this.#sweptAt > sweepMs) this.#sweep(startedAt);
    } finally {
      this.#reading = undefined;
    }
  }

  #sweep(at: number): void {
    this.#sweptAt = at;
    for (const [key, until] of this.#entries) if (until < at) this.#entries.delete(key);
  }
}

/** Whether the database lists the token now. */
export async function isWithdrawn(db: Database | Transaction, token: Withdrawable): Promise<boolean> {
  const { rows } = await sql`
    select from unnest(${withdrawalKeys(token)}::text[]) as k (key)
    join withdrawals on kind = split_part(key, ':', 1) and subject = substr(key, strpos(key, ':') + 1)`.execute(
    db,
  );
  return rows.length > 0;
}

/**
 * Revokes one access token without affecting others of its grant.
 * @param tokenId its `jti`
 * @param expiresAt the token's expiry by the clock of some node. The list keeps the entry for another hour, because
 *   clocks of nodes and database may differ.
 */
export async function withdrawToken(
  db: Database | Transaction,
  tokenId: string,
  expiresAt: Date,
): Promise<void> {
  await sql`
    insert into withdrawals (subject, kind, until)
    values (${tokenId}, 'token', greatest(${expiresAt}::timestamptz, now()) + interval '1 hour')
    on conflict (kind, subject) do nothing`.execute(db);
}
