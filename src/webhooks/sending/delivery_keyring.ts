/**
 * A node's copy of the delivery keys: read at start, after each notification of a change, and every minute. It
 * decides without a query which keys sign at a given time.
 */

import type { KeyObject } from 'node:crypto';
import type { Database } from '../../database/database.ts';
import { countNonempty } from '../../database/hints.ts';
import type { Notifications } from '../../database/notifications.ts';
import { type DeliveryKey, ensureDeliveryKey, loadDeliveryKeys } from './delivery_key.ts';

/** Milliseconds between reads without a notification. */
const reloadMs = 60_000;

export class DeliveryKeyring {
  readonly #db: Database;
  readonly #secret: Buffer;
  readonly #onError: (error: Error) => void;
  #keys: readonly DeliveryKey[] = [];
  #timer: NodeJS.Timeout | undefined;
  #reading = 0;

  constructor(options: {
    db: Database;
    /** Not started yet: the constructor adds a listener. */
    notifications: Notifications;
    secret: Buffer;
    onError: (error: Error) => void;
  }) {
    this.#db = options.db;
    this.#secret = options.secret;
    this.#onError = options.onError;
    options.notifications.listen('delivery_keys', {
      onHints: async (hints) => {
        await this.#reload();
        return countNonempty(hints);
      },
      onListening: () => void this.#reload().catch(this.#onError),
    });
  }

  /** Creates the first key if there is none, and loads the keys. @throws Error if the keys cannot be read */
  async start(): Promise<void> {
    await ensureDeliveryKey(this.#db, this.#secret);
    await this.#reload();
    this.#timer = setInterval(() => void this.#reload().catch(this.#onError), reloadMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  /** All published keys, newest first. */
  get published(): readonly DeliveryKey[] {
    return this.#keys;
  }

  /**
   * The keys that sign at a time, newest first.
   * @param now milliseconds since 1970, by the database's clock
   */
  signers(now: number): KeyObject[] {
    return this.#keys
      .filter(({ signsFrom, signsUntil }) => signsFrom <= now && (signsUntil === null || signsUntil > now))
      .map(({ privateKey }) => privateKey);
  }

  async #reload(): Promise<void> {
    this.#reading += 1;
    const own = this.#reading;
    const keys = await loadDeliveryKeys(this.#db, this.#secret);
    // A newer read may have finished first.
    if (own === this.#reading) this.#keys = keys;
  }
}
