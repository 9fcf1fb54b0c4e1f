/**
 * The intake: servers take events out of the inbox, one server at a time, in passes. A server is woken by a notification at the
 * commit of a publisher. Commits with a notification wait for each other, so under load publishers send none: the intake then
 * looks by itself every few milliseconds, and says so in the database.
 *
 *   waiting to be woken (looks every second) → pass after pass while something waits → looking every few ms → waiting …
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { isRejection } from '../database/collector.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { QueueVacuum } from '../database/queue_vacuum.ts';
import type { Catalogue } from './catalogue.ts';
import { claimInbox, type InboxRow, isWaiting, type Lot, takeLot, takeRow, tellPublishers } from './inbox.ts';
import { keepRejected } from './rejected_events.ts';
import type { StoredEvent } from './store.ts';
import { refusalOf, type TakenIn, takeIn } from './take_in.ts';

/** Milliseconds between looks that nobody asked for, and between passes under load: a pass costs more than some rows. */
const pollMs = 1_000;
const busyPollMs = 15;
/** Milliseconds after which a pass that failed is tried again. */
const failurePauseMs = 250;
/** Rows of one pass at most. */
const lotRowsMax = 1_000;
/** Rows within a tenth of a second that count as load, and for how many milliseconds the intake then looks by itself. */
const loadRows = 20;
const loadWindowMs = 100;
const looksMs = 2_000;
/** SQLSTATE of a statement that met `statement_timeout`. */
const queryCanceled = '57014';
/** Milliseconds between two messages to publishers at least. */
const tellPauseMs = 100;

export interface IntakeOptions {
  db: Database;
  notifications: Notifications;
  catalogue: Catalogue;
  /** Called after each commit with what was stored. */
  onPublished: (events: StoredEvent[]) => void;
  /** Called after each commit that took something in. */
  onTaken: (taken: TakenIn) => void;
  onError: (error: Error) => void;
}

export class Intake {
  readonly #options: IntakeOptions;
  readonly #vacuum = new QueueVacuum('inbox');
  readonly #stop = new AbortController();
  #running: Promise<void> | undefined;
  /** Ends the wait that there is. */
  #wake = () => {};
  #isWoken = false;
  /** After which account the turns go on. */
  #after = '';
  /** Rows of the next pass at most: fewer after a pass that the database refused. */
  #lotRows = lotRowsMax;
  /** Rows taken of late, and when that was counted. */
  #load = { rows: 0, at: 0 };
  #looksUntil = Number.NEGATIVE_INFINITY;
  #toldAt = Number.NEGATIVE_INFINITY;
  /** Whether the last pass took something: its lot may have been cut. */
  #hasTaken = false;

  /** @param options notifications that are not started yet */
  constructor(options: IntakeOptions) {
    this.#options = options;
    const wake = () => this.wake();
    options.notifications.listen('inbox', { onNotification: wake, onListening: wake });
  }

  start(): void {
    this.#running = this.#run();
  }

  /** Looks into the inbox soon. */
  wake(): void {
    this.#isWoken = true;
    this.#wake();
  }

  /** Finishes the pass that runs. */
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
        else await this.#tellOfNothing();
        await this.#vacuum.run(db, isDrained);
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        onError(error as Error);
        await sleep(failurePauseMs);
      }
      if (isDrained) await this.#wait();
    }
  }

  /** @returns whether much may wait */
  async #pass(): Promise<boolean> {
    const { db, onPublished, onTaken } = this.#options;
    const lotRows = this.#lotRows;
    let lot: Lot | undefined;
    try {
      const taken = await db.transaction().execute(async (tx) => {
        if (!(await claimInbox(tx))) return undefined;
        lot = await takeLot(tx, this.#after, lotRows);
        const taken = await takeIn(tx, lot.rows, this.#options.catalogue);
        if (taken.rejected.length > 0) await keepRejected(tx, taken.rejected);
        return taken;
      });
      // Another server is at it.
      if (taken === undefined || lot === undefined) return false;
      this.#after = lot.lastAccount;
      this.#lotRows = Math.min(lotRowsMax, this.#lotRows * 2);
      onPublished(taken.stored);
      onTaken(taken);
    } catch (error) {
      const isTooLong = (error as { code?: unknown }).code === queryCanceled;
      if (!(isRejection(error) || isTooLong) || lot === undefined) throw error;
      if (lot.rows.length > 1) this.#lotRows = Math.max(1, lot.rows.length >> 1);
      else if (isTooLong) throw error;
      else await this.#reject(lot.rows, error);
      return true;
    }
    this.#hasTaken = lot.rows.length > 0;
    await this.#count(lot.rows.length);
    return lot.rows.length >= lotRows / 4;
  }

  /** Also what was rolled back counts for publishers, until they are told that nothing waits. */
  async #tellOfNothing(): Promise<void> {
    const now = performance.now();
    if (now < this.#toldAt + pollMs) return;
    this.#toldAt = now;
    await tellPublishers(this.#options.db, 0);
  }

  /** The database refuses a row, also alone: nobody else's waits for it. */
  async #reject([row]: readonly InboxRow[], reason: unknown): Promise<void> {
    if (row === undefined) return;
    const rejected = [{ row, refusal: refusalOf(reason) }];
    const isOurs = await this.#options.db.transaction().execute(async (tx) => {
      const isThere = (await claimInbox(tx)) && (await takeRow(tx, row.id));
      if (isThere) await keepRejected(tx, rejected);
      return isThere;
    });
    if (isOurs) this.#options.onTaken({ stored: [], repeated: 0, rejected });
  }

  /** Under load publishers need not notify anybody. */
  async #count(rows: number): Promise<void> {
    this.#vacuum.count(rows);
    const now = performance.now();
    this.#load.rows = this.#load.rows * 0.5 ** ((now - this.#load.at) / loadWindowMs) + rows;
    this.#load.at = now;
    if (now < this.#toldAt + tellPauseMs) return;
    this.#toldAt = now;
    const isBusy = this.#load.rows >= loadRows;
    await tellPublishers(this.#options.db, isBusy ? looksMs : 0);
    // Not before the end of what publishers were told.
    if (isBusy) this.#looksUntil = performance.now() + looksMs;
  }

  async #wait(): Promise<void> {
    if (this.#isWoken || this.#stop.signal.aborted) return;
    const ms = this.#hasTaken || performance.now() < this.#looksUntil ? busyPollMs : pollMs;
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, ms);
    this.#wake = resolve;
    await promise;
    clearTimeout(timer);
    this.#wake = () => {};
  }
}
