/**
 * A node's copy of the signing keys. Reloads them on a notification from the database, when a key becomes active or
 * expires, once a minute, and when a token names an unknown key.
 */

import { sql } from 'kysely';
import { asServer } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';
import { countNonempty } from '../database/hints.ts';
import type { Notifications } from '../database/notifications.ts';
import { loadSigningKeys, type SigningKeys } from './signing_keys.ts';

/** Maximum milliseconds between reloads, and minimum milliseconds between reloads for unknown keys. */
const reloadIntervalMsMax = 60_000;
const reloadIntervalMsMin = 1_000;
/** Milliseconds until the next attempt after a failed reload. */
const retryMs = 2_000;

export class Keyring {
  readonly #db: Database;
  readonly #secret: Buffer;
  readonly #onChange: (keys: SigningKeys) => void;
  readonly #onError: (error: unknown) => void;
  #timer: NodeJS.Timeout | undefined;
  #loading: Promise<void> | undefined;
  #loadedAt = Number.NEGATIVE_INFINITY;
  #known = '';
  #stopped = false;

  constructor(options: {
    db: Database;
    notifications: Notifications;
    secret: Buffer;
    /** Called at start and after each change. */
    onChange: (keys: SigningKeys) => void;
    onError: (error: unknown) => void;
  }) {
    this.#db = options.db;
    this.#secret = options.secret;
    this.#onChange = options.onChange;
    this.#onError = options.onError;
    options.notifications.listen('signing_keys', {
      onHints: async (hints) => {
        await this.#reload();
        return countNonempty(hints);
      },
      onListening: () => void this.#reload().catch(this.#onError),
    });
  }

  /** @throws Error when the keys cannot be read */
  start(): Promise<void> {
    return this.#reload();
  }

  /** Reloads the keys for a token with an unknown key, which may be new. At most once a second. */
  async refresh(): Promise<void> {
    if (performance.now() - this.#loadedAt < reloadIntervalMsMin) return;
    await this.#reload();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async #reload(): Promise<void> {
    // A change notified during a reload requires another one.
    while (this.#loading !== undefined) await this.#loading.catch(() => {});
    this.#loading = asServer(() => this.#load());
    try {
      await this.#loading;
    } finally {
      this.#loading = undefined;
    }
  }

  async #load(): Promise<void> {
    this.#loadedAt = performance.now();
    // Scheduled before the query, so that a failure does not end the cycle.
    this.#reloadAfter(retryMs);
    const keys = await loadSigningKeys(this.#db, this.#secret);
    const known = JSON.stringify(keys.publicKeys);
    if (known !== this.#known) this.#onChange(keys);
    this.#known = known;
    this.#reloadAfter(await this.#msToNextChange());
  }

  /** Milliseconds until the next scheduled change of a key, or until the regular reload. */
  async #msToNextChange(): Promise<number> {
    const { rows } = await sql<{ ms: number | null }>`
      select extract(epoch from min(change) - now())::float8 * 1000 as ms
      from signing_keys, unnest(array[signs_from, expires_at]) as change
      where change > now()`.execute(this.#db);
    return Math.min(rows[0]?.ms ?? reloadIntervalMsMax, reloadIntervalMsMax) + 10;
  }

  #reloadAfter(ms: number): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#reload().catch(this.#onError), ms);
    this.#timer.unref();
  }
}
