/**
 * The withdrawal list: access tokens whose signature and time are good and that must be refused all the same.
 * Kept in memory, so that the API asks the database nothing for a request; fed at once by the database's
 * notifications, and besides never trusted for longer than a second without a look at the database. A node that
 * cannot look refuses to answer instead of trusting what it has. Owns the table `withdrawals` (the database's
 * own triggers write it too).
 */

import { sql } from 'kysely';
import { type Database, type Transaction, within } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';

/** Milliseconds after a look at the database when the next one begins, and when a request must wait for it. */
const lookAgainMs = 400;
const trustMs = 900;
/** Milliseconds that a look may take: a database that says nothing is one that cannot be asked. */
const lookMs = 5_000;
/** Milliseconds between sweeps of what no longer matters. */
const sweepMs = 60_000;

/** What a token says of itself, as far as a withdrawal can concern it. */
export interface Withdrawable {
  readonly tokenId: string;
  readonly grantId: string | null;
  readonly clientId: string;
  /** Seconds since the epoch. */
  readonly issuedAt: number;
}

interface WithdrawalRow {
  kind: string;
  subject: string;
  created_at: Date;
  left_ms: number;
}

/**
 * `createdAt` in milliseconds since the epoch; `until` by the monotonic clock: the other one may be set forward for a
 * while, and what was forgotten in that time would be good again after it.
 */
interface Entry {
  createdAt: number;
  until: number;
}

/** Milliseconds that is kept what a notification told of, until the look after it knows better. */
const toldMs = 3_600_000;

export class WithdrawalList {
  readonly #db: Database;
  /** By kind and subject. */
  readonly #entries = new Map<string, Entry>();
  /** Every transaction before this one has been seen. */
  #cursor = '0';
  #lookedAt = Number.NEGATIVE_INFINITY;
  #look: Promise<void> | undefined;
  #sweptAt = performance.now();

  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    notifications.listen('nuncio_withdrawal', {
      onNotification: (payload) => {
        this.#entries.set(payload, { createdAt: Date.now(), until: performance.now() + toldMs });
      },
    });
  }

  /**
   * Resolves once the list is fresh enough to be trusted: at once under steady use.
   * @throws Error of the database when it cannot be asked
   */
  fresh(): Promise<void> | undefined {
    const age = performance.now() - this.#lookedAt;
    if (age < lookAgainMs) return undefined;
    this.#look ??= this.#lookAgain();
    if (age >= trustMs) return this.#look;
    // Begun early: nobody waits for it, and whoever comes too late sees its failure.
    this.#look.catch(() => {});
    return undefined;
  }

  has(token: Withdrawable): boolean {
    if (this.#entries.size === 0) return false;
    if (this.#entries.has(`token:${token.tokenId}`)) return true;
    if (token.grantId !== null && this.#entries.has(`grant:${token.grantId}`)) return true;
    const client = this.#entries.get(`client:${token.clientId}`);
    // A client may be registered again under its old id: only what was issued before is dead.
    return client !== undefined && token.issuedAt * 1_000 <= client.createdAt;
  }

  async #lookAgain(): Promise<void> {
    const startedAt = performance.now();
    try {
      // Cursor by transaction ids: of everything older than the oldest one that is still open, all is visible.
      const { rows } = await within(
        lookMs,
        sql<WithdrawalRow & { cursor: string }>`
        select w.kind, w.subject, w.created_at, s.cursor,
          extract(epoch from w.until - now())::float8 * 1000 as left_ms
        from (select pg_snapshot_xmin(pg_current_snapshot())::text as cursor) s
        left join withdrawals w on w.transaction_id >= ${this.#cursor}::xid8 and w.until > now()`.execute(
          this.#db,
        ),
      );
      for (const row of rows) {
        if (row.subject === null) continue;
        this.#entries.set(`${row.kind}:${row.subject}`, {
          createdAt: row.created_at.getTime(),
          until: startedAt + row.left_ms,
        });
      }
      this.#cursor = rows[0]?.cursor ?? this.#cursor;
      this.#lookedAt = startedAt;
      if (startedAt - this.#sweptAt > sweepMs) this.#sweep(startedAt);
    } finally {
      this.#look = undefined;
    }
  }

  #sweep(at: number): void {
    this.#sweptAt = at;
    for (const [key, { until }] of this.#entries) if (until < at) this.#entries.delete(key);
  }
}

/**
 * Stops one access token, and no other of its grant.
 * @param tokenId its `jti`
 * @param expiresAt after which it is of no use anyway
 */
export async function withdrawToken(
  db: Database | Transaction,
  tokenId: string,
  expiresAt: Date,
): Promise<void> {
  await sql`
    insert into withdrawals (subject, kind, until)
    values (${tokenId}, 'token', ${expiresAt}::timestamptz + interval '1 minute')
    on conflict (kind, subject) do nothing`.execute(db);
}
