/**
 * Wakes readers when their lane has new deliveries or may no longer be read. Waiting readers of a node share
 * statements, so they are work of the server. They run soon after this node has learned of new events or changed lanes, and once a second.
 *
 *   waiting → (new delivery, lane closed) woken | timeout | aborted
 *
 * Each statement asks for a few lanes, in turns of their owners and apps, and after new events those of the first turns come first: a reader
 * does not wait for as long as thousands of others' lanes take.
 */

import { AsyncResource } from 'node:async_hooks';
import { asServer } from '../../database/connection_user.ts';
import { type Database, withResultsWithin } from '../../database/database.ts';
import type { Notifications } from '../../database/notifications.ts';
import type { SlotHolder } from '../../http/stream_slots.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { findReadyLanes } from './lane_state.ts';

/** Milliseconds between looks without a notification. */
const pollMs = 1_000;
/** Milliseconds from new events to a look: until fan-out has usually created their deliveries, and once more. */
const lookMs = [40, 250];
/** Milliseconds in which changes of lanes are collected. */
const pauseMs = 50;
/** Lanes of one statement. */
const sliceMax = 200;
/** A look waits at least this many times the duration of the last one of its extent. */
const restFactor = 10;
/** Milliseconds to wait for the result of a look. All waiting readers of a node wait for it. */
const resultMs = 5_000;

interface Waiter {
  after: number;
  wake: () => void;
}

/** What a reader waits for: a delivery of the lane after a sequence. */
export interface WatchedPlace {
  lane: number;
  after: number;
  /** Who waits, and the app: they take turns. */
  holder: Pick<SlotHolder, 'tenant' | 'clientId'>;
}

type Waiters = Set<Waiter>;

/** Whether a look asks for as many lanes as fit in one statement, or for all. */
type Extent = 'first' | 'all';

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
  /** By owner, app and lane. */
  readonly #owners = new Map<string, Map<string, Map<number, Waiters>>>();
  #laneCount = 0;
  #poll: NodeJS.Timeout | undefined;
  /** Planned looks. */
  readonly #soon = new Map<string, NodeJS.Timeout>();
  /** How long the last look of each extent took, in milliseconds. */
  readonly #lookedMs: Record<Extent, number> = { first: 0, all: 0 };
  /** Looks that were asked for and have not begun. */
  readonly #wanted = new Set<Extent>();
  #looking: Promise<void> | undefined;
  /** The owner whose turn is first in the next look. */
  #turn = 0;

  constructor(options: LaneWatchOptions) {
    this.#options = { ...options, db: withResultsWithin(resultMs, options.db) };
    options.onWake(() => this.#lookSoon());
    // The lanes' worker judges these hints; here each one only means a look.
    options.notifications.listen('lane_changed', {
      pauseMs,
      onHints: async () => {
        await this.#look('all');
        return 0;
      },
      onListening: () => void this.#look('all'),
    });
  }

  /** Calls `wake` once, when the lane has a delivery after the place or is closed. @returns a function that stops watching */
  watch(place: WatchedPlace, wake: () => void): () => void {
    const { lane, after, holder } = place;
    const apps = this.#owners.get(holder.tenant) ?? new Map<string, Map<number, Waiters>>();
    const lanes = apps.get(holder.clientId) ?? new Map<number, Waiters>();
    const waiters = lanes.get(lane) ?? new Set();
    const stop = () => {
      if (!waiters.delete(waiter) || waiters.size > 0) return;
      this.#laneCount -= 1;
      lanes.delete(lane);
      if (lanes.size === 0) apps.delete(holder.clientId);
      if (apps.size === 0) this.#owners.delete(holder.tenant);
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
    if (waiters.size === 0) this.#laneCount += 1;
    waiters.add(waiter);
    lanes.set(lane, waiters);
    apps.set(holder.clientId, lanes);
    this.#owners.set(holder.tenant, apps);
    // A delivery may have been added since the reader read.
    this.#lookSoon();
    this.#poll ??= setInterval(() => void this.#look('all'), pollMs).unref();
    return stop;
  }

  /** Resolves when the lane has a delivery after the place or is closed, after the timeout, or when the signal aborts. Never rejects. */
  wait(place: WatchedPlace, timeoutMs: number, signal: AbortSignal): Promise<void> {
    if (signal.aborted || timeoutMs <= 0) return Promise.resolve();
    return new Promise((resolve) => {
      const end = () => {
        clearTimeout(timer);
        signal.removeEventListener('abort', end);
        stop();
        resolve();
      };
      const stop = this.watch(place, end);
      const timer = setTimeout(end, timeoutMs);
      signal.addEventListener('abort', end);
    });
  }

  stop(): void {
    clearInterval(this.#poll);
    for (const timer of this.#soon.values()) clearTimeout(timer);
    for (const { waiters } of [...this.#inTurns()]) for (const waiter of [...waiters]) waiter.wake();
  }

  #lookSoon(): void {
    if (this.#laneCount === 0) return;
    const extents: Extent[] = this.#laneCount > sliceMax ? ['first', 'all'] : ['first'];
    for (const extent of extents) {
      for (const ms of lookMs) {
        const key = `${extent} ${ms}`;
        if (this.#soon.has(key)) continue;
        const look = () => {
          this.#soon.delete(key);
          void this.#look(extent);
        };
        this.#soon.set(key, setTimeout(look, Math.max(ms, this.#lookedMs[extent] * restFactor)));
      }
    }
  }

  /** Concurrent calls share a second look, which begins after all of them. Resolves when the looks have ended. */
  async #look(extent: Extent): Promise<void> {
    if (this.#laneCount === 0) {
      clearInterval(this.#poll);
      this.#poll = undefined;
      return;
    }
    this.#wanted.add(extent);
    this.#looking ??= this.#lookAll().finally(() => {
      this.#looking = undefined;
    });
    await this.#looking;
  }

  async #lookAll(): Promise<void> {
    while (this.#wanted.size > 0) {
      await this.#lookFirst();
      if (!this.#wanted.delete('all')) continue;
      await this.#measure('all', async () => {
        const lanes = [...this.#inTurns()];
        for (let from = 0; from < lanes.length; from += sliceMax) {
          await this.#lookFirst();
          await this.#wakeReady(lanes.slice(from, from + sliceMax));
        }
      });
    }
  }

  async #lookFirst(): Promise<void> {
    if (!this.#wanted.delete('first')) return;
    await this.#measure('first', () => this.#wakeReady([...this.#inTurns().take(sliceMax)]));
    this.#turn += sliceMax;
  }

  async #measure(extent: Extent, look: () => Promise<void>): Promise<void> {
    const begunAt = performance.now();
    try {
      await asServer(look);
    } catch (error) {
      // The next poll looks again.
      this.#options.onError(error as Error);
    } finally {
      this.#lookedMs[extent] = performance.now() - begunAt;
    }
  }

  /** The watched lanes: one of each owner, then the next of each, and within an owner one of each app. */
  *#inTurns(): Generator<Watched> {
    const owners = [...this.#owners.values()];
    const first = this.#turn % Math.max(owners.length, 1);
    const ofOwners = [...owners.slice(first), ...owners.slice(0, first)].map((apps) =>
      inTurns([...apps.values()].map((lanes) => lanes.entries())),
    );
    for (const [lane, waiters] of inTurns(ofOwners)) yield { lane, waiters };
  }

  async #wakeReady(watched: readonly Watched[]): Promise<void> {
    const places = new Map<number, number>();
    const byLane = Map.groupBy(watched, ({ lane }) => lane);
    for (const { lane, waiters } of watched) {
      const after = Math.min(
        ...[...waiters].map(({ after }) => after),
        places.get(lane) ?? Number.POSITIVE_INFINITY,
      );
      if (waiters.size > 0) places.set(lane, after);
    }
    if (places.size === 0) return;
    const { db, appSubscriptions } = this.#options;
    for (const [lane, head] of await findReadyLanes(db, places, appSubscriptions)) {
      for (const { waiters } of byLane.get(lane) ?? []) {
        for (const { after, wake } of [...waiters]) if (head > after) wake();
      }
    }
  }
}

/** A lane that readers of one owner's app watch. */
interface Watched {
  lane: number;
  waiters: Waiters;
}

/** One of each, then the next of each. */
function* inTurns<Item>(all: readonly Iterator<Item>[]): Generator<Item> {
  for (let left = all; left.length > 0; ) {
    const next: Iterator<Item>[] = [];
    for (const one of left) {
      const { done, value } = one.next();
      if (done === true) continue;
      yield value;
      next.push(one);
    }
    left = next;
  }
}
