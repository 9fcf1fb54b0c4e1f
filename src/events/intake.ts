/**
 * The intake takes events out of the inbox in passes. One server at a time does, which keeps events in order: it holds a lease
 * (database/lease.ts), and each pass is fenced by it. A publisher's commit wakes it by a notification.
 * Notifications serialize commits. Under load the intake therefore polls every few milliseconds and announces that in the
 * database, and publishers send no notifications.
 *
 *   idle (polls every second) → (woken) → passes while rows wait → busy (polls every few ms) → idle
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { newId } from '../crypto/ids.ts';
import { isRejection } from '../database/batcher.ts';
import { type Database, withResultsWithin } from '../database/database.ts';
import { countNonempty } from '../database/hints.ts';
import { Lease, LeaseLostError } from '../database/lease.ts';
import type { Notifications } from '../database/notifications.ts';
import { QueueVacuum } from '../database/queue_vacuum.ts';
import type { Catalogue } from './catalogue.ts';
import { announcePolling, type InboxBatch, isWaiting, readBatch, takeRows, updateFirstId } from './inbox.ts';
import { type Checked, checkRows, type Ingested, rejectionOf, storeChecked } from './ingest.ts';
import { keepRejected, limitRejected } from './rejected_events.ts';
import type { StoredEvent } from './store.ts';

/** Poll intervals when idle and under load. Fewer passes are cheaper, because a pass costs more than a few rows. */
const pollMs = 1_000;
const busyPollMs = 15;
/** Pause after a pass that failed. */
const failurePauseMs = 250;
/** Milliseconds without progress after which the intake counts as down. */
const downAfterMs = 10_000;
/** Milliseconds without progress after which the lease is not renewed: the server is stuck, or the inbox is empty. */
const renewMsMax = 20_000;
/** Milliseconds that the intake waits for a result. Events of all accounts wait for it. */
const resultMs = 10_000;
/** Maximum number of rows in a pass. */
const lotRowsMax = 1_000;
/** This many rows within `loadWindowMs` count as load. The intake then polls for `busyMs`. */
const loadRows = 20;
const loadWindowMs = 100;
const busyMs = 2_000;
/** SQLSTATE of a statement that exceeded `statement_timeout`. */
const queryCanceled = '57014';
/** Minimum time between two announcements to publishers. */
const announcePauseMs = 100;
/** Share of the time that updating the limits may take. */
const limitShareMax = 0.05;

export interface IntakeOptions {
  db: Database;
  notifications: Notifications;
  catalogue: Catalogue;
  /** Called after each commit with the stored events. */
  onPublished: (events: StoredEvent[]) => void;
  /** Called after each commit with the results of the pass. */
  onTaken: (taken: Ingested) => void;
  onError: (error: Error) => void;
}

export class Intake {
  readonly #options: IntakeOptions;
  readonly #db: Database;
  readonly #lease: Lease;
  readonly #vacuum: QueueVacuum;
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  /** Ends the current wait. */
  #wake = () => {};
  #isWoken = false;
  /** The account that had the last turn. */
  #after = '';
  /** Maximum number of rows in the next pass: lower after a pass that the database refused. */
  #lotRows = lotRowsMax;
  /** Decaying number of recently taken rows, and when it was updated. */
  #load = { rows: 0, at: 0 };
  #pollsUntil = Number.NEGATIVE_INFINITY;
  #announcedAt = Number.NEGATIVE_INFINITY;
  #updateLimitAt = Number.NEGATIVE_INFINITY;
  /** Whether events were rejected since the limits were updated, perhaps by a server that stopped. */
  #hasRejected = true;
  /** When the inbox was last found empty or another server held the lease, or a pass was committed. */
  #aliveAt = Number.NEGATIVE_INFINITY;
  /** When this server acquired the lease, unless its last pass has failed, or last took rows. */
  #progressAt = Number.NEGATIVE_INFINITY;
  /** Whether the last pass has failed. To acquire the lease again is no progress then: with a slow connection to the database, this server would keep it from the others for ever. */
  #hasFailed = false;
  /** Whether the last pass took rows: more may wait. */
  #hasTaken = false;

  /** @param options its `notifications` must not be started yet */
  constructor(options: IntakeOptions) {
    this.#options = options;
    this.#db = withResultsWithin(resultMs, options.db);
    const mayRenew = () => performance.now() - this.#progressAt < renewMsMax;
    const { onError } = options;
    this.#lease = new Lease({ db: this.#db, name: 'intake', holder: newId(), mayRenew, onError });
    this.#vacuum = new QueueVacuum(options.db, 'inbox');
    options.notifications.listen('inbox', {
      onHints: (hints) => {
        this.wake();
        return countNonempty(hints);
      },
      onListening: () => this.wake(),
    });
  }

  start(): void {
    this.#aliveAt = performance.now();
    this.#running = this.#run();
  }

  /** Whether the inbox is empty or makes progress here, or this server is ready to take over. */
  get isUp(): boolean {
    return performance.now() - this.#aliveAt < downAfterMs;
  }

  /** Starts a pass soon. */
  wake(): void {
    this.#isWoken = true;
    this.#wake();
  }

  /** Stops after the current pass. */
  async stop(): Promise<void> {
    this.#stop.abort();
    this.#wake();
    await this.#running;
    if (this.#lease.isHeld) await this.#lease.release();
  }

  async #run(): Promise<void> {
    const { onError } = this.#options;
    while (!this.#stop.signal.aborted) {
      this.#isWoken = false;
      this.#hasTaken = false;
      let isDrained = true;
      try {
        if (!(await isWaiting(this.#db))) this.#aliveAt = performance.now();
        else if (await this.#mayPass()) isDrained = !(await this.#pass());
        await this.#updateLimits();
        this.#vacuum.start(isDrained);
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (error instanceof LeaseLostError) {
          this.#lease.forget();
          continue;
        }
        this.#hasFailed = true;
        onError(error as Error);
        await sleep(failurePauseMs);
      }
      if (isDrained) await this.#wait();
    }
  }

  /** Whether this server holds the lease. */
  async #mayPass(): Promise<boolean> {
    if (this.#lease.isHeld) return true;
    if (!this.#hasFailed) this.#progressAt = performance.now();
    const holder = await this.#lease.acquire();
    // Another server takes rows. If that is stuck, its lease expires.
    if (holder === 'other') this.#aliveAt = performance.now();
    return holder === 'self';
  }

  /** @returns whether many rows may still wait */
  async #pass(): Promise<boolean> {
    const { catalogue, onPublished, onTaken } = this.#options;
    const lotRows = this.#lotRows;
    const lot = await readBatch(this.#db, this.#after, lotRows);
    try {
      const taken = await this.#take(lot, await checkRows(this.#db, lot.rows, catalogue));
      this.#aliveAt = performance.now();
      this.#progressAt = performance.now();
      this.#hasFailed = false;
      this.#after = lot.lastAccount;
      this.#lotRows = Math.min(lotRowsMax, this.#lotRows * 2);
      if (taken.rejected.length > 0) this.#hasRejected = true;
      onPublished(taken.stored);
      onTaken(taken);
    } catch (error) {
      const isTooLong = (error as { code?: unknown }).code === queryCanceled;
      if (!(isRejection(error) || isTooLong)) throw error;
      if (lot.rows.length > 1) this.#lotRows = Math.max(1, lot.rows.length >> 1);
      else if (isTooLong) throw error;
      else await this.#reject(lot, error);
      // A smaller pass, or a rejected row, is progress.
      this.#aliveAt = performance.now();
      this.#progressAt = performance.now();
      this.#hasFailed = false;
      return true;
    }
    this.#hasTaken = lot.rows.length > 0;
    await this.#count(lot.rows.length);
    return lot.rows.length >= lotRows / 4;
  }

  /** @throws LeaseLostError if another server has the lease or has taken rows */
  #take({ rows }: InboxBatch, checked: Checked): Promise<Ingested> {
    return this.#db.transaction().execute(async (tx) => {
      if (!(await takeRows(tx, this.#lease.held, rows))) throw new LeaseLostError();
      const taken = await storeChecked(tx, checked);
      if (taken.rejected.length > 0) await keepRejected(tx, taken.rejected);
      return taken;
    });
  }

  /**
   * Updates the limits of the inbox and of rejected events. This can read the whole inbox and all sizes, so it takes a bounded share of
   * the time.
   */
  async #updateLimits(): Promise<void> {
    const begunAt = performance.now();
    if (begunAt < this.#updateLimitAt) return;
    try {
      await updateFirstId(this.#options.db);
      if (this.#hasRejected) await limitRejected(this.#options.db);
      this.#hasRejected = false;
    } finally {
      const endedAt = performance.now();
      this.#updateLimitAt = endedAt + Math.max(pollMs, (endedAt - begunAt) / limitShareMax);
    }
  }

  /** Rejects a row that the database refuses even on its own, so that others do not wait for it. */
  async #reject(lot: InboxBatch, reason: unknown): Promise<void> {
    const rejected = lot.rows.map((row) => ({ row, rejection: rejectionOf(reason) }));
    this.#options.onTaken(await this.#take(lot, { good: [], rejected }));
    this.#hasRejected = true;
  }

  /** Counts rows. Under load, announces to publishers that they need not notify. */
  async #count(rows: number): Promise<void> {
    this.#vacuum.count(rows);
    const now = performance.now();
    this.#load.rows = this.#load.rows * 0.5 ** ((now - this.#load.at) / loadWindowMs) + rows;
    this.#load.at = now;
    if (this.#load.rows < loadRows || now < this.#announcedAt + announcePauseMs) return;
    this.#announcedAt = now;
    await announcePolling(this.#db, busyMs);
    // Polls at least as long as announced to publishers.
    this.#pollsUntil = performance.now() + busyMs;
  }

  async #wait(): Promise<void> {
    if (this.#isWoken || this.#stop.signal.aborted) return;
    const ms = this.#hasTaken || performance.now() < this.#pollsUntil ? busyPollMs : pollMs;
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, ms);
    this.#wake = resolve;
    await promise;
    clearTimeout(timer);
    this.#wake = () => {};
  }
}
