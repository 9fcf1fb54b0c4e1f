/**
 * The delivery keys as a node knows them: read at the start, again whenever the database tells of a change, and every
 * minute in any case. Which of them sign at a moment is decided here, without a question to the database.
 */

import type { KeyObject } from 'node:crypto';
import type { Database } from '../../database/database.ts';
import type { Notifications } from '../../database/notifications.ts';
import { type DeliveryKey, ensureDeliveryKey, loadDeliveryKeys } from './delivery_key.ts';

/** Milliseconds between two readings that nobody asked for. */
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
    /** Not started yet. */
    notifications: Notifications;
    secret: Buffer;
    onError: (error: Error) => void;
  }) {
    this.#db = options.db;
    this.#secret = options.secret;
    this.#onError = options.onError;
    const reload = () => void this.#reload().catch(this.#onError);
    options.notifications.listen('delivery_keys', { onNotification: reload, onListening: reload });
  }

  /** Makes the first key where there is none. @throws Error when the keys cannot be read */
  async start(): Promise<void> {
    await ensureDeliveryKey(this.#db, this.#secret);
    await this.#reload();
    this.#timer = setInterval(() => void this.#reload().catch(this.#onError), reloadMs);
    this.#timer.unref();
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  /** Those that are published, the newest first. */
  get published(): readonly DeliveryKey[] {
    return this.#keys;
  }

  /** Those that sign at a moment, the newest first. @param now milliseconds since 1970, by the database's clock */
  signers(now: number): KeyObject[] {
    return this.#keys
      .filter(({ signsFrom, signsUntil }) => signsFrom <= now && (signsUntil === null || signsUntil > now))
      .map(({ privateKey }) => privateKey);
  }

  async #reload(): Promise<void> {
    this.#reading += 1;
    const own = this.#reading;
    const keys = await loadDeliveryKeys(this.#db, this.#secret);
    // The answer to a later question may have come before.
    if (own === this.#reading) this.#keys = keys;
  }
}
