/**
 * Wakes readers when their lane has new deliveries or may no longer be read. All waiting readers of a node share one
 * statement, so it is work of the server. It runs soon after this node has learned of new events or changed lanes, and once a second.
 *
 *   waiting → (new delivery, lane closed) woken | timeout | aborted
 */

import { AsyncResource } from 'node:async_hooks';
import { asServer } from '../../database/connection_user.ts';
import { type Database, withResultsWithin } from '../../database/database.ts';
import type { Notifications } from '../../database/notifications.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { findReadyLanes } from './lane_state.ts';

/** Milliseconds between looks without a notification. */
const pollMs = 1_000;
/** Milliseconds from new events to a look: until fan-out has usually created their deliveries, and once more. */
const lookMs = [40, 250];
/** Milliseconds in which changes of lanes are collected. */
const pauseMs = 50;
/** A look waits at least this many times the duration of the last one. */
const restFactor = 10;
/** Milliseconds to wait for the result of a look. All waiting readers of a node wait for it. */
const resultMs = 5_000;

interface Waiter {
  after: number;
  wake: () => void;
}

export interface LaneWatchOptions {
  db: Database;
  /** Not started yet: the constructor adds a listener. */
  notifications: Notifications;
  /** Adds a listener for new events. */
  onWake: (listener: () => void) => void;
  appSubscriptions: AppSubscriptions;
  onError: (error: Error) => void;
}

export class LaneWatch {
  readonly #options: LaneWatchOptions;
  readonly #waiters = new Map<number, Set<Waiter>>();
  #poll: NodeJS.Timeout | undefined;
  /** Planned looks. */
  readonly #soon = new Map<number, NodeJS.Timeout>();
  /** How long the last look took. */
  #lookedMs = 0;
  #isLooking = false;
  #mustLookAgain = false;

  constructor(options: LaneWatchOptions) {
    this.#options = { ...options, db: withResultsWithin(resultMs, options.db) };
    options.onWake(() => this.#lookSoon());
    // The lanes' worker judges these hints; here each one only means a look.
    options.notifications.listen('lane_changed', {
      pauseMs,
      onHints: async () => {
        await this.#look();
        return 0;
      },
      onListening: () => void this.#look(),
    });
  }

  /** Calls `wake` once, when the lane has a delivery after `after` or is closed. @returns a function that stops watching */
  watch(lane: number, after: number, wake: () => void): () => void {
    const waiters = this.#waiters.get(lane) ?? new Set();
    const stop = () => {
      waiters.delete(waiter);
      if (waiters.size === 0 && this.#waiters.get(lane) === waiters) this.#waiters.delete(lane);
    };
    // What the reader does then is its own work.
    const continueReading = AsyncResource.bind(wake);
    const waiter: Waiter = {
      after,
      wake() {
        stop();
        continueReading();
      },
    };
    waiters.add(waiter);
    this.#waiters.set(lane, waiters);
    // A delivery may have been added since the reader read.
    this.#lookSoon();
    this.#poll ??= setInterval(() => void this.#look(), pollMs).unref();
    return stop;
  }

  /** Resolves when the lane has a delivery after `after` or is closed, after the timeout, or when the signal aborts. Never rejects. */
  wait(lane: number, after: number, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted || timeoutMs <= 0) return Promise.resolve();
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        stop();
        resolve();
      };
      const stop = this.watch(lane, after, end);
      const timer = setTimeout(end, timeoutMs);
      signal.addEventListener('abort', end);
    });
  }

  stop(): void {
    clearInterval(this.#poll);
    for (const timer of this.#soon.values()) clearTimeout(timer);
    for (const waiter of [...this.#waiters.values()].flatMap((waiters) => [...waiters])) waiter.wake();
  }

  #lookSoon(): void {
    if (this.#waiters.size === 0) return;
    for (const ms of lookMs) {
      if (this.#soon.has(ms)) continue;
      const look = () => {
        this.#soon.delete(ms);
        void this.#look();
      };
      this.#soon.set(ms, setTimeout(look, Math.max(ms, this.#lookedMs * restFactor)));
    }
  }

  /** Concurrent calls share a second look, which begins after all of them. */
  async #look(): Promise<void> {
    if (this.#waiters.size === 0) {
      clearInterval(this.#poll);
      this.#poll = undefined;
      return;
    }
    if (this.#isLooking) {
      this.#mustLookAgain = true;
      return;
    }
    this.#isLooking = true;
    const begunAt = performance.now();
    try {
      do {
        this.#mustLookAgain = false;
        await asServer(() => this.#wakeReady());
      } while (this.#mustLookAgain);
    } catch (error) {
      // The next poll looks again.
      this.#options.onError(error as Error);
    } finally {
      this.#lookedMs = performance.now() - begunAt;
      this.#isLooking = false;
    }
  }

  async #wakeReady(): Promise<void> {
    const watched = new Map([...this.#waiters].map(([lane, waiters]) => [lane, [...waiters]]));
    if (watched.size === 0) return;
    const { db, appSubscriptions } = this.#options;
    const places = new Map(
      [...watched].map(([lane, waiters]) => [lane, Math.min(...waiters.map(({ after }) => after))]),
    );
    for (const [lane, head] of await findReadyLanes(db, places, appSubscriptions)) {
      for (const { after, wake } of watched.get(lane) ?? []) if (head > after) wake();
    }
  }
}
