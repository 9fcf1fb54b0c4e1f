/**
 * Wakes readers when their lane has new deliveries or may no longer be read. All waiting readers of a node share one
 * statement, which runs after a notification and once a second. A notification is only a hint to look now.
 *
 *   waiting → (new delivery, lane closed) woken | timeout | aborted
 */

import type { Database } from '../../database/database.ts';
import { countNonempty } from '../../database/hints.ts';
import type { Notifications } from '../../database/notifications.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscriptions.ts';
import { readHeads } from './lane_state.ts';

/** Milliseconds between looks without a notification. */
const pollMs = 1_000;
/** Milliseconds between looks after notifications, at least. */
const pauseMs = 50;

interface Waiter {
  after: number;
  wake: () => void;
}

export interface LaneWatchOptions {
  db: Database;
  /** Not started yet: the constructor adds listeners. */
  notifications: Notifications;
  appSubscriptions: AppSubscriptions;
  onError: (error: Error) => void;
}

export class LaneWatch {
  readonly #options: LaneWatchOptions;
  readonly #waiters = new Map<number, Set<Waiter>>();
  #poll: NodeJS.Timeout | undefined;
  #soon: NodeJS.Timeout | undefined;
  #isLooking = false;
  #mustLookAgain = false;

  constructor(options: LaneWatchOptions) {
    this.#options = options;
    options.notifications.listen('deliveries_added', {
      pauseMs,
      onHints: async (hints) => {
        await this.#look();
        return countNonempty(hints);
      },
      onListening: () => void this.#look(),
    });
    // The lanes' worker judges these hints; here each one only means a look.
    options.notifications.listen('lane_changed', {
      pauseMs,
      onHints: async () => {
        await this.#look();
        return 0;
      },
    });
  }

  /** Resolves when the lane has a delivery after `after` or is closed, after the timeout, or when the signal aborts. Never rejects. */
  wait(lane: number, after: number, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted || timeoutMs <= 0) return Promise.resolve();
    return new Promise((resolve) => {
      const waiters = this.#waiters.get(lane) ?? new Set();
      const wake = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', wake);
        waiters.delete(waiter);
        if (waiters.size === 0 && this.#waiters.get(lane) === waiters) this.#waiters.delete(lane);
        resolve();
      };
      const waiter = { after, wake };
      const timer = setTimeout(wake, timeoutMs);
      signal.addEventListener('abort', wake);
      waiters.add(waiter);
      this.#waiters.set(lane, waiters);
      // A delivery may have been added since the reader read.
      this.#soon ??= setTimeout(() => {
        this.#soon = undefined;
        void this.#look();
      }, pauseMs);
      this.#poll ??= setInterval(() => void this.#look(), pollMs).unref();
    });
  }

  stop(): void {
    clearInterval(this.#poll);
    clearTimeout(this.#soon);
    for (const waiter of [...this.#waiters.values()].flatMap((waiters) => [...waiters])) waiter.wake();
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
    try {
      do {
        this.#mustLookAgain = false;
        await this.#wakeReady();
      } while (this.#mustLookAgain);
    } catch (error) {
      // The next poll looks again.
      this.#options.onError(error as Error);
    } finally {
      this.#isLooking = false;
    }
  }

  async #wakeReady(): Promise<void> {
    const watched = new Map([...this.#waiters].map(([lane, waiters]) => [lane, [...waiters]]));
    if (watched.size === 0) return;
    const { db, appSubscriptions } = this.#options;
    const heads = await readHeads(db, [...watched.keys()], appSubscriptions);
    for (const [lane, waiters] of watched) {
      const head = heads.get(lane) ?? Number.POSITIVE_INFINITY;
      for (const { after, wake } of waiters) if (head > after) wake();
    }
  }
}
