/**
 * Measures how loaded the server thread is, and sets how many requests may be in progress: fewer while the event loop or the
 * database makes everything wait, one more at a time while they do not (additive increase, multiplicative decrease).
 *
 * The smallest value of an interval counts, as in CoDel (RFC 8289): a collection of garbage or a burst makes a few samples late, and
 * a standing queue makes all of them late.
 *
 *   idle → (a request is admitted) measuring → (none in progress for an interval) idle
 */

import { type Database, poolStatus } from '../../database/database.ts';
import type { Admission } from './admission.ts';

const sampleMs = 20;
const samplesPerInterval = 10;
/**
 * Longest wait that is no overload: of a timer for the event loop, of a statement for a connection. A sign-in executes some 30 statements
 * one after the other, which wait that long each.
 */
const loopDelayMsMax = 50;
const databaseWaitMsMax = 25;
/** Fewer places would leave connections of the database unused, and the first class without a reserve. */
const placesMin = 8;
/** A late event loop takes no more than this part. If it is late because it refuses, fewer places would only serve less. */
const loopPartMin = 1 / 4;
/** Part of the time in which a busy thread works. */
const busyPart = 0.9;
const decrease = 0.75;
const increase = 4;

export class LoadMonitor {
  /** Of the last interval. */
  loopDelayMs = 0;
  databaseWaitMs = 0;
  readonly #admission: Admission;
  readonly #db: Database;
  readonly #placesMin: number;
  #timer: NodeJS.Timeout | undefined;
  #samples = 0;
  #due = 0;
  #begunAt = 0;
  #lateMs = Number.POSITIVE_INFINITY;
  #waiting = Number.POSITIVE_INFINITY;
  #acquired = 0;
  #isIdle = true;
  #used = performance.eventLoopUtilization();

  constructor(admission: Admission, db: Database) {
    this.#admission = admission;
    this.#db = db;
    this.#placesMin = Math.min(placesMin, admission.placesMax);
  }

  /** Begins to measure, if it does not yet. Called for each request. */
  start(): void {
    if (this.#timer === undefined) this.#begin();
    this.#isIdle = false;
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#admission.isBusy = false;
  }

  #begin(): void {
    this.#samples = 0;
    this.#lateMs = Number.POSITIVE_INFINITY;
    this.#waiting = Number.POSITIVE_INFINITY;
    this.#acquired = poolStatus(this.#db).acquired;
    this.#used = performance.eventLoopUtilization();
    this.#begunAt = performance.now();
    this.#isIdle = this.#admission.inProgress === 0;
    this.#next();
  }

  #next(): void {
    this.#due = performance.now() + sampleMs;
    this.#timer = setTimeout(() => this.#sample(), sampleMs).unref();
  }

  #sample(): void {
    this.#lateMs = Math.min(this.#lateMs, performance.now() - this.#due);
    this.#waiting = Math.min(this.#waiting, poolStatus(this.#db).waiting);
    this.#samples += 1;
    if (this.#samples < samplesPerInterval) this.#next();
    else this.#finish();
  }

  #finish(): void {
    this.loopDelayMs = Math.max(0, this.#lateMs);
    // Little's law: what waits, divided by the rate at which it is served.
    const elapsedMs = performance.now() - this.#begunAt;
    const served = poolStatus(this.#db).acquired - this.#acquired;
    this.databaseWaitMs = (this.#waiting * elapsedMs) / Math.max(served, 1);
    this.#admission.isBusy = performance.eventLoopUtilization(this.#used).utilization > busyPart;
    this.#adapt();
    const isOver = this.#isIdle && this.#admission.inProgress === 0;
    if (isOver && this.#admission.places === this.#admission.placesMax) this.stop();
    else this.#begin();
  }

  #adapt(): void {
    const { places, placesMax } = this.#admission;
    const fewer = Math.floor(places * decrease);
    if (this.databaseWaitMs > databaseWaitMsMax) this.#admission.places = Math.max(this.#placesMin, fewer);
    else if (this.loopDelayMs > loopDelayMsMax) {
      const least = Math.max(this.#placesMin, Math.ceil(placesMax * loopPartMin));
      if (places > least) this.#admission.places = Math.max(least, fewer);
    } else if (places < placesMax) this.#admission.places = Math.min(placesMax, places + increase);
  }
}
