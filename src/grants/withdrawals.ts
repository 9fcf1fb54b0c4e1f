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
  /** How often its grant had been narrowed when it was issued. */
  readonly grantRevision: number;
  readonly clientId: string;
  /** The client's epoch in which it was issued; null for tokens of a version that knew none. */
  readonly clientEpoch: string | null;
}

/**
 * The rows of the list that stop a token, as `kind:subject`. None of them depends on a time that the token states: the
 * clock of the node that issued it may be wrong.
 */
export function withdrawalKeys(token: Withdrawable): string[] {
  const { tokenId, grantId, grantRevision, clientId, clientEpoch } = token;
  return [
    `token:${tokenId}`,
    ...(grantId === null ? [] : [`grant:${grantId}`, `grant_revision:${grantId}:${grantRevision}`]),
    clientEpoch === null ? `client:${clientId}` : `client_epoch:${clientEpoch}`,
  ];
}

interface WithdrawalRow {
  kind: string;
  subject: string;
  left_ms: number;
}

/** Milliseconds that is kept what a notification told of, until the look after it knows better. */
const toldMs = 3_600_000;

export class WithdrawalList {
  readonly #db: Database;
  /**
   * By kind and subject, the time until which an entry counts. That is a time of the monotonic clock: the other one may be
   * set forward for a while, and what was forgotten in that time would be good again after it.
   */
  readonly #entries = new Map<string, number>();
  /** Every transaction before this one has been seen. */
  #cursor = '0';
  /** In which epoch of the database: in another one transactions are numbered otherwise, and all are looked at. */
  #epoch = '';
  #lookedAt = Number.NEGATIVE_INFINITY;
  #look: Promise<void> | undefined;
  #sweptAt = performance.now();

  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    notifications.listen('withdrawal', {
      onNotification: (payload) => {
        this.#entries.set(payload, performance.now() + toldMs);
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
    return this.#entries.size > 0 && withdrawalKeys(token).some((key) => this.#entries.has(key));
  }

  async #lookAgain(): Promise<void> {
    const startedAt = performance.now();
    try {
      // Cursor by transaction ids: of everything older than the oldest one that is still open, all is visible.
      const { rows } = await within(
        lookMs,
        sql<WithdrawalRow & { cursor: string; epoch: string }>`
        select w.kind, w.subject, s.cursor, s.epoch,
          extract(epoch from w.until - now())::float8 * 1000 as left_ms
        from (select pg_snapshot_xmin(pg_current_snapshot())::text as cursor, current_epoch()::text as epoch) s
        left join withdrawals w on w.until > now()
          and w.transaction_id >= case when s.epoch = ${this.#epoch} then ${this.#cursor}::xid8 else '0'::xid8 end`.execute(
          this.#db,
        ),
      );
      for (const row of rows) {
        if (row.subject === null) continue;
        this.#entries.set(`${row.kind}:${row.subject}`, startedAt + row.left_ms);
      }
      this.#cursor = rows[0]?.cursor ?? this.#cursor;
      this.#epoch = rows[0]?.epoch ?? this.#epoch;
      this.#lookedAt = startedAt;
      if (startedAt - this.#sweptAt > sweepMs) this.#sweep(startedAt);
    } finally {
      this.#look = undefined;
    }
  }

  #sweep(at: number): void {
    this.#sweptAt = at;
    for (const [key, until] of this.#entries) if (until < at) this.#entries.delete(key);
  }
}

/** Whether the database lists a token at this moment. */
export async function isWithdrawn(db: Database | Transaction, token: Withdrawable): Promise<boolean> {
  const { rows } = await sql`
    select from unnest(${withdrawalKeys(token)}::text[]) as k (key)
    join withdrawals on kind = split_part(key, ':', 1) and subject = substr(key, strpos(key, ':') + 1)`.execute(
    db,
  );
  return rows.length > 0;
}

/**
 * Stops one access token, and no other of its grant.
 * @param tokenId its `jti`
 * @param expiresAt after which it is of no use anyway, by the clock of some node; the list keeps it for an hour longer,
 *   because the clocks of the nodes and of the database may differ
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
