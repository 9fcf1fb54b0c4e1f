/**
 * The intake takes events out of the inbox in passes, one server at a time. A publisher's commit wakes it by a notification.
 * Notifications serialize commits. Under load the intake therefore polls every few milliseconds and announces that in the
 * database, and publishers send no notifications.
 *
 *   idle (polls every second) → (woken) → passes while rows wait → busy (polls every few ms) → idle
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { isRejection } from '../database/batcher.ts';
import type { Database } from '../database/database.ts';
import { countNonempty } from '../database/hints.ts';
import type { Notifications } from '../database/notifications.ts';
import { QueueVacuum } from '../database/queue_vacuum.ts';
import type { Catalogue } from './catalogue.ts';
import {
  announcePolling,
  claimInbox,
  type InboxBatch,
  type InboxRow,
  isWaiting,
  takeBatch,
  takeRow,
  updateFirstId,
} from './inbox.ts';
import { type Ingested, ingest, rejectionOf } from './ingest.ts';
import { keepRejected, limitRejected } from './rejected_events.ts';
import type { StoredEvent } from './store.ts';

/** Poll intervals when idle and under load. Fewer passes are cheaper, because a pass costs more than a few rows. */
const pollMs = 1_000;
const busyPollMs = 15;
/** Pause after a pass that failed. */
const failurePauseMs = 250;
/** Milliseconds without progress after which the intake counts as down. */
const downAfterMs = 10_000;
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
  /** When the inbox was last found empty or claimed by another server, or a pass was committed. */
  #aliveAt = Number.NEGATIVE_INFINITY;
  /** Whether the last pass took rows: more may wait. */
  #hasTaken = false;

  /** @param options its `notifications` must not be started yet */
  constructor(options: IntakeOptions) {
    this.#options = options;
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
  }

  async #run(): Promise<void> {
    const { db, onError } = this.#options;
    while (!this.#stop.signal.aborted) {
      this.#isWoken = false;
      this.#hasTaken = false;
      let isDrained = true;
      try {
        if (await isWaiting(db)) isDrained = !(await this.#pass());
        else this.#aliveAt = performance.now();
        await this.#updateLimits();
        this.#vacuum.start(isDrained);
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        onError(error as Error);
        await sleep(failurePauseMs);
      }
      if (isDrained) await this.#wait();
    }
  }

  /** @returns whether many rows may still wait */
  async #pass(): Promise<boolean> {
    const { db, onPublished, onTaken } = this.#options;
    const lotRows = this.#lotRows;
    let lot: InboxBatch | undefined;
    try {
      const taken = await db.transaction().execute(async (tx) => {
        if (!(await claimInbox(tx))) return undefined;
        lot = await takeBatch(tx, this.#after, lotRows);
        const taken = await ingest(tx, lot.rows, this.#options.catalogue);
        if (taken.rejected.length > 0) await keepRejected(tx, taken.rejected);
        return taken;
      });
      this.#aliveAt = performance.now();
      // Another server has claimed the inbox, and this one stands by. PostgreSQL ends the claim of a paused server after a while.
      if (taken === undefined || lot === undefined) return false;
      this.#after = lot.lastAccount;
      this.#lotRows = Math.min(lotRowsMax, this.#lotRows * 2);
      if (taken.rejected.length > 0) this.#hasRejected = true;
      onPublished(taken.stored);
      onTaken(taken);
    } catch (error) {
      const isTooLong = (error as { code?: unknown }).code === queryCanceled;
      if (!(isRejection(error) || isTooLong) || lot === undefined) throw error;
      if (lot.rows.length > 1) this.#lotRows = Math.max(1, lot.rows.length >> 1);
      else if (isTooLong) throw error;
      else await this.#reject(lot.rows, error);
      // A smaller pass, or a rejected row, is progress.
      this.#aliveAt = performance.now();
      return true;
    }
    this.#hasTaken = lot.rows.length > 0;
    await this.#count(lot.rows.length);
    return lot.rows.length >= lotRows / 4;
  }

  /**
   * Updates the limits of the inbox and of rejected events. This can read the whole inbox and all sizes, so it takes a bounded share of
   * the time.
   */
  async #updateLimits(): Promise<void> {
    const begunAt = performance.now();
    if (begunAt < this.#updateLimitAt) return;
    await updateFirstId(this.#options.db);
    if (this.#hasRejected) await limitRejected(this.#options.db);
    this.#hasRejected = false;
    const endedAt = performance.now();
    this.#updateLimitAt = endedAt + Math.max(pollMs, (endedAt - begunAt) / limitShareMax);
  }

  /** Rejects a row that the database refuses even on its own, so that others do not wait for it. */
  async #reject([row]: readonly InboxRow[], reason: unknown): Promise<void> {
    if (row === undefined) return;
    const rejected = [{ row, rejection: rejectionOf(reason) }];
    const isOurs = await this.#options.db.transaction().execute(async (tx) => {
      const isThere = (await claimInbox(tx)) && (await takeRow(tx, row));
      if (isThere) await keepRejected(tx, rejected);
      return isThere;
    });
    if (!isOurs) return;
    this.#hasRejected = true;
    this.#options.onTaken({ stored: [], repeated: 0, rejected });
  }

  /** Counts rows. Under load, announces to publishers that they need not notify. */
  async #count(rows: number): Promise<void> {
    this.#vacuum.count(rows);
    const now = performance.now();
    this.#load.rows = this.#load.rows * 0.5 ** ((now - this.#load.at) / loadWindowMs) + rows;
    this.#load.at = now;
    if (this.#load.rows < loadRows || now < this.#announcedAt + announcePauseMs) return;
    this.#announcedAt = now;
    await announcePolling(this.#options.db, busyMs);
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
