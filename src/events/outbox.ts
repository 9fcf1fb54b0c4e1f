/**
 * Waking: whoever committed events says so here. The fan-out of this node hears it at once, the other nodes by a
 * notification. Nothing depends on it but speed: the fan-out also looks by itself every second.
 *
 * The notification is a statement of its own, at most one every 20 ms: a NOTIFY inside the writing transactions
 * would make their commits wait for each other, one by one.
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';

const channel = 'events';
/** Milliseconds between two notifications at least. */
const notifyPauseMs = 20;

export class Outbox {
  readonly #db: Database;
  readonly #node = newId();
  readonly #listeners = new Set<() => void>();
  #paused = false;
  #again = false;
  #stopped = false;

  /** @param notifications not started yet */
  constructor(db: Database, notifications: Notifications) {
    this.#db = db;
    notifications.listen(channel, {
      onNotification: (node) => {
        if (node !== this.#node) this.#tell();
      },
      onListening: () => this.#tell(),
    });
  }

  /** Adds somebody who wants to know that there are events. */
  onWake(listener: () => void): void {
    this.#listeners.add(listener);
  }

  /** To be called after every commit that may have added events. Returns at once. */
  wake(): void {
    this.#tell();
    if (this.#paused) this.#again = true;
    else this.#notify();
  }

  stop(): void {
    this.#stopped = true;
  }

  #tell(): void {
    for (const listener of this.#listeners) listener();
  }

  #notify(): void {
    if (this.#stopped) return;
    this.#paused = true;
    // A notification that fails is made good by the other nodes' own look every second. Nothing of it needs to be on the
    // disk, and those who commit need not wait until it is.
    sql`
      select pg_notify(current_schema() || '.' || ${channel}, ${this.#node})
      from (select set_config('synchronous_commit', 'off', true)) as local`
      .execute(this.#db)
      .catch(() => {});
    setTimeout(() => {
      this.#paused = false;
      if (!this.#again) return;
      this.#again = false;
      this.#notify();
    }, notifyPauseMs).unref();
  }
}
