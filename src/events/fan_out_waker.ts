/**
 * Wakes the fan-out after a commit that added events: on this node directly, on other nodes by a notification. Only latency
 * depends on it, because every fan-out also polls once a second. The leader's node notifies no others: only the leader acts,
 * and a new leader looks for events at once. If this node does not notice that it leads no more, events wait for a poll.
 *
 * The notification is a separate statement, sent at most every 20 ms. A NOTIFY inside the writing transactions would serialize
 * their commits.
 */

import { sql } from 'kysely';
import { isId, newId } from '../crypto/ids.ts';
import { asServer } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';

const channel = 'events';
/** Minimum time between two notifications. */
const notifyPauseMs = 20;

export class FanOutWaker {
  readonly #db: Database;
  readonly #node = newId();
  readonly #listeners = new Set<() => void>();
  #isPaused = false;
  /** Whether to notify again after the pause. */
  #isPending = false;
  #isStopped = false;
  /** Whether this node fans out. */
  #leads = false;

  /** @param notifications not started yet */
  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    notifications.listen(channel, {
      onHints: ({ payloads }) => {
        const others = [...payloads].filter((node) => node !== this.#node);
        if (others.length > 0) this.#runListeners();
        return others.filter((node) => !isId(node)).length;
      },
      onListening: () => this.#runListeners(),
    });
  }

  /** Adds a listener that runs whenever there may be new events. */
  onWake(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** @param leads whether this node fans out, so that no other node need know of new events */
  setLeadership(leads: boolean): void {
    const wasLeader = this.#leads;
    this.#leads = leads;
    // Events since the end of the leadership have notified nobody.
    if (wasLeader && !leads && !this.#isPaused) this.#notify();
  }

  /** Call after every commit that may have added events. Returns immediately. */
  wake(): void {
    this.#runListeners();
    if (this.#leads) return;
    if (this.#isPaused) this.#isPending = true;
    else asServer(() => this.#notify());
  }

  stop(): void {
    this.#isStopped = true;
  }

  #runListeners(): void {
    for (const listener of this.#listeners) listener();
  }

  #notify(): void {
    if (this.#isStopped) return;
    this.#isPaused = true;
    // If it fails, the other nodes find the events by polling. It need not be durable, so it does not wait for the disk.
    sql`
      select announce(${channel}, ${this.#node})
      from (select set_config('synchronous_commit', 'off', true)) as local`
      .execute(this.#db)
      .catch(() => {});
    setTimeout(() => {
      const isPending = this.#isPending;
      this.#isPaused = false;
      this.#isPending = false;
      if (isPending && !this.#leads) this.#notify();
    }, notifyPauseMs).unref();
  }
}
