/**
 * A lease is a row that one node at a time holds, until a time on the database's clock. The holder renews it. Any role that may
 * connect can hold an advisory lock, but only Nuncio can change a row. Owns the table `leases`.
 *
 *   free → (acquired: a higher fence) held → renewed → … → released
 *                                          → not renewed in time → expired → acquired by another node
 *
 * A holder that could not renew stops before the lease expires. It may also be paused and notice too late. Each statement
 * that acts for the holder is therefore fenced (`held`): it does nothing if another node has acquired the lease, and while it
 * runs no other node can acquire it. If the database's clock is set forward, another node acquires the lease too early, which
 * the fence makes harmless. If it is set back, the lease seems to last for too long, and is free at once.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';

/** Milliseconds that a lease lasts without a renewal: how long the work of a killed holder waits. */
const leaseMs = 3_000;
const renewPauseMs = 750;
/** Milliseconds before the expiry at which the holder stops. */
const marginMs = 500;

/** Another node holds the lease, or may soon. */
export class LeaseLostError extends Error {
  override readonly name = 'LeaseLostError';

  constructor() {
    super('the lease is lost');
  }
}

export interface LeaseOptions {
  db: Database;
  /** A row of the table. */
  name: string;
  /** This process, by an id that no other process has. */
  holder: string;
  /** Whether the holder's work makes progress. Otherwise the lease is not renewed, so that another node can do the work. */
  mayRenew?: () => boolean;
  onError: (error: Error) => void;
}

export class Lease {
  readonly #options: LeaseOptions;
  #fence = '0';
  /** On the monotonic clock. */
  #heldUntil = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;

  constructor(options: LeaseOptions) {
    this.#options = options;
  }

  /** Whether this process may act as the holder. */
  get isHeld(): boolean {
    return performance.now() < this.#heldUntil;
  }

  /**
   * Acquires the lease if nobody holds it.
   * @returns who holds it now; `nobody` if it is expired and could not be acquired, because a statement of its holder runs
   */
  async acquire(): Promise<'self' | 'other' | 'nobody'> {
    const { db, name, holder } = this.#options;
    const askedAt = performance.now();
    const { rows } = await sql<{ fence: string | null; is_held: boolean }>`
      with free as materialized (
        select name from leases
        where name = ${name} and (holder is null or holder = ${holder} or expires_at <= clock_timestamp()
          -- The clock was set back.
          or expires_at > clock_timestamp() + ${2 * leaseMs}::int * interval '1 millisecond')
        for update skip locked
      ),
      acquired as (
        update leases set holder = ${holder}, fence = fence + 1, expires_at = ${expiry}
        from free where leases.name = free.name
        returning fence
      )
      select (select fence from acquired), expires_at > clock_timestamp() as is_held
      from leases where name = ${name}`.execute(db);
    const [row] = rows as [(typeof rows)[number]];
    if (row.fence === null) return row.is_held ? 'other' : 'nobody';
    this.#fence = row.fence;
    // Counted from before the statement: the database starts counting later.
    this.#heldUntil = askedAt + leaseMs - marginMs;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => void this.#renew(), renewPauseMs);
    this.#timer.unref();
    return 'self';
  }

  /** Selects a row while this process holds the lease, and keeps others from acquiring it until the end of the transaction. */
  get held(): RawBuilder<unknown> {
    const { name, holder } = this.#options;
    // Compatible with a renewal, which does not change the key.
    return sql`
      select from leases where name = ${name} and holder = ${holder} and fence = ${this.#fence}::bigint for key share`;
  }

  /** Ends the lease, so that another node can acquire it at once. Reports errors: then it expires. */
  async release(): Promise<void> {
    const { db, name, holder, onError } = this.#options;
    this.forget();
    await sql`
      update leases set holder = null, expires_at = '-infinity'
      where name = ${name} and holder = ${holder} and fence = ${this.#fence}::bigint`
      .execute(db)
      .catch(onError);
  }

  /** Stops acting as the holder, without accessing the database. */
  forget(): void {
    clearInterval(this.#timer);
    this.#heldUntil = Number.NEGATIVE_INFINITY;
  }

  /** Does not wait for an earlier renewal: its connection may be frozen, and the next one takes another. Few can overlap. */
  async #renew(): Promise<void> {
    const { db, name, holder, mayRenew = () => true, onError } = this.#options;
    if (!this.isHeld || !mayRenew()) return;
    const fence = this.#fence;
    const askedAt = performance.now();
    try {
      const { rows } = await sql`
        update leases set expires_at = ${expiry}
        where name = ${name} and holder = ${holder} and fence = ${fence}::bigint returning name`.execute(db);
      if (fence !== this.#fence || !this.isHeld) return;
      if (rows.length === 0) this.forget();
      // A later renewal may have finished first.
      else this.#heldUntil = Math.max(this.#heldUntil, askedAt + leaseMs - marginMs);
    } catch (error) {
      onError(error as Error);
    }
  }
}

const expiry = sql`clock_timestamp() + ${sql.lit(leaseMs)} * interval '1 millisecond'`;

/** Ends the leases of processes that are gone. */
export async function releaseLeasesOf(db: Database, holders: readonly string[]): Promise<void> {
  await sql`
    update leases set holder = null, expires_at = '-infinity' where holder = any(${holders}::text[])`.execute(
    db,
  );
}
