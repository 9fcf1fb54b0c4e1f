/**
 * The withdrawal list: access tokens that are valid by signature and expiry but must be refused. It is kept in memory, so the API
 * runs no query per request. A notification makes a node read what is new, in pages. A node trusts the list for at most a second after a
 * read. While it reads very many entries, such as at its start, it asks the database for each token. A node that cannot read the database
 * responds 503. Owns the table `withdrawals`, which database triggers also write.
 */

import { sql } from 'kysely';
import { asServer } from '../database/connection_user.ts';
import { type Database, type Transaction, withResultsWithin, withTimeout } from '../database/database.ts';
import { countNonempty } from '../database/hints.ts';
import type { Notifications } from '../database/notifications.ts';
import { RevokedTokens } from './revoked_tokens.ts';

/** Milliseconds since the last read of the database after which the next one starts, and after which requests wait for it. */
const refreshAfterMs = 400;
const trustMs = 900;
/** Entries in a page, and the milliseconds that its read may take. After that the database counts as unavailable. */
const pageRows = 1_000;
const readTimeoutMs = 5_000;
/** The same for a connection without a result, so that it is closed before another one is asked for. */
const resultMsMax = readTimeoutMs - 500;
/** Minimum milliseconds between removals of expired entries, of a part of the tokens each. */
const sweepMs = 400;

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
function withdrawalKeys({ tokenId, ...rights }: Withdrawable): string[] {
  return [`token:${tokenId}`, ...keysOfRights(rights)];
}

/** Those that stop all tokens of a grant or a client. */
function keysOfRights({ grantId, grantRevision, clientEpoch }: Omit<Withdrawable, 'tokenId'>): string[] {
  return [
    ...(grantId === null ? [] : [`grant:${grantId}`, `grant_revision:${grantId}:${grantRevision}`]),
    `client_epoch:${clientEpoch}`,
  ];
}

interface WithdrawalRow {
  transaction_id: string;
  kind: string;
  subject: string;
  left_ms: number;
}

/** A page of entries. Without any, the other columns of its only row are null. */
type PageRow = { snapshot: string; epoch: string } & (WithdrawalRow | { transaction_id: null });

/**
 * A read of all entries that the last complete read did not see, in the order of their transactions. If a page fails, the next
 * read continues after the last page that succeeded: so a read gets through, however slow the database is.
 */
interface Scan {
  /** When the first page was asked for. Whatever was committed before that is in one of the pages. */
  startedAt: number;
  /** What the first page saw; undefined before it. */
  snapshot: string | undefined;
  /** Transaction, kind and subject of the last entry that was read. */
  position: readonly [transactionId: string, kind: string, subject: string];
}

/** A snapshot (`pg_snapshot`) that saw nothing. */
const emptySnapshot = '1:1:';

/**
 * Minimum milliseconds to keep an entry: as long as an access token lives. If the database's clock is ahead when this node reads
 * the entry, its time seems to be over.
 */
const entryMsMin = 3_600_000;

export class WithdrawalList {
  readonly #db: Database;
  readonly #tokens = new RevokedTokens();
  /**
   * Expiry of each other entry by `kind:subject`, on the monotonic clock. The wall clock may be set forward for a while; an
   * entry that expired in that time would make its token valid again.
   */
  readonly #entries = new Map<string, number>();
  /** What the last complete read saw. Other transactions may commit in any order, so a transaction id does not say it. */
  #snapshot = emptySnapshot;
  /** The read that a failure has interrupted. */
  #scan: Scan | undefined;
  /** The database's epoch. A new epoch numbers transactions differently, so everything is read again. */
  #epoch = '';
  #readAt = Number.NEGATIVE_INFINITY;
  #reading: Promise<void> | undefined;
  /** Resolves when a read turns out to have more than one page. Each read that is complete leaves another one. */
  #isLong = Promise.withResolvers<void>();
  #sweptAt = performance.now();

  constructor(db: Database, notifications: Notifications) {
    this.#db = withResultsWithin(resultMsMax, db);
    notifications.listen('withdrawal', {
      onHints: async (batch) => {
        // A read that is running may have begun before the withdrawal.
        await this.#reading?.catch(() => {});
        this.#reading ??= asServer(() => this.#read());
        await this.#reading;
        return countNonempty(batch);
      },
    });
  }

  /**
   * Resolves once the list is recent enough to be trusted. Returns undefined if it is.
   * @throws Error of the database if it cannot be read
   */
  fresh(): Promise<void> | undefined {
    const now = performance.now();
    const age = now - this.#readAt;
    if (age < refreshAfterMs) return undefined;
    if (age >= trustMs) return this.#readSince(now - trustMs);
    this.#reading ??= asServer(() => this.#read());
    // This read starts early and no request waits for it. If it fails, a later request starts another one and sees the
    // error.
    this.#reading.catch(() => {});
    return undefined;
  }

  /**
   * Whether a token is withdrawn, by this list or, while it is read for long, by the database.
   * @throws Error of the database if neither can be read
   */
  async includes(token: Withdrawable): Promise<boolean> {
    const reading = this.fresh();
    if (reading === undefined) return this.has(token);
    const isRead = await Promise.race([reading.then(() => true), this.#isLong.promise.then(() => false)]);
    return isRead ? this.has(token) : isWithdrawn(this.#db, token);
  }

  has(token: Withdrawable): boolean {
    if (this.#tokens.has(token.tokenId)) return true;
    return this.#entries.size > 0 && keysOfRights(token).some((key) => this.#entries.has(key));
  }

  /** Resolves once a read has begun after the given time and is complete. One that is running may have begun earlier. */
  async #readSince(at: number): Promise<void> {
    while (this.#readAt < at) {
      this.#reading ??= asServer(() => this.#read());
      await this.#reading;
    }
  }

  async #read(): Promise<void> {
    try {
      // What a failure has interrupted says nothing about the time since then.
      if (this.#scan !== undefined) await this.#complete(this.#scan);
      const startedAt = performance.now();
      await this.#complete({ startedAt, ...this.#start() });
      if (startedAt - this.#sweptAt >= sweepMs) this.#sweep(startedAt);
    } finally {
      this.#reading = undefined;
    }
  }

  #start(): Pick<Scan, 'snapshot' | 'position'> {
    return { snapshot: undefined, position: [this.#snapshot.split(':', 1)[0] as string, '', ''] };
  }

  async #complete(scan: Scan): Promise<void> {
    this.#scan = scan;
    for (;;) {
      const askedAt = performance.now();
      const rows = await this.#readPage(scan.position);
      const { snapshot, epoch } = rows[0] as PageRow;
      if (epoch !== this.#epoch) {
        this.#epoch = epoch;
        this.#snapshot = emptySnapshot;
        Object.assign(scan, this.#start());
        continue;
      }
      scan.snapshot ??= snapshot;
      for (const row of rows) {
        if (row.transaction_id === null) break;
        const { transaction_id: id, kind, subject, left_ms: leftMs } = row;
        const until = askedAt + Math.max(leftMs, entryMsMin);
        if (kind === 'token') this.#tokens.add(subject, until, askedAt);
        else this.#entries.set(`${kind}:${subject}`, until);
        scan.position = [id, kind, subject];
      }
      if (rows.length < pageRows) break;
      this.#isLong.resolve();
    }
    this.#isLong = Promise.withResolvers();
    this.#snapshot = scan.snapshot;
    this.#scan = undefined;
    this.#readAt = scan.startedAt;
  }

  /** Reads the entries after a position that the last complete read did not see. */
  async #readPage([transactionId, kind, subject]: Scan['position']): Promise<PageRow[]> {
    const isAfter = sql`(transaction_id, kind, subject) > (${transactionId}::xid8, ${kind}, ${subject})`;
    // The snapshot of the statement itself: it tells which entries the statement could see.
    const { rows } = await withTimeout(
      readTimeoutMs,
      sql<PageRow>`
        select s.snapshot, s.epoch, w.transaction_id::text, w.kind, w.subject,
          extract(epoch from w.until - now())::float8 * 1000 as left_ms
        from (select pg_current_snapshot()::text as snapshot, current_epoch()::text as epoch) s
        left join (
          (select transaction_id, kind, subject, until from withdrawals
          where transaction_id >= pg_snapshot_xmax(${this.#snapshot}::pg_snapshot) and ${isAfter}
          order by transaction_id, kind, subject
          limit ${pageRows})
          union all
          -- Each by the index: where one of these is open for long, very many others have ended since it began.
          select late.* from pg_snapshot_xip(${this.#snapshot}::pg_snapshot) as open (id)
          cross join lateral (
            select transaction_id, kind, subject, until from withdrawals
            where transaction_id = open.id and ${isAfter}
            order by transaction_id, kind, subject
            limit ${pageRows}) late
          order by transaction_id, kind, subject
          limit ${pageRows}) w on true
        order by w.transaction_id, w.kind, w.subject`.execute(this.#db),
    );
    return rows;
  }

  #sweep(at: number): void {
    this.#sweptAt = at;
    if (!this.#tokens.sweepPart(at)) return;
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
