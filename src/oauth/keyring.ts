/**
 * The signing keys as a node knows them: read at the start, again whenever the database tells of a change or the
 * time of one has come, and when a token names a key that is not known yet.
 */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import { loadSigningKeys, type SigningKeys } from './signing_keys.ts';

/** Milliseconds after which the keys are read again in any case, and the least between two readings. */
const reloadMs = 60_000;
const reloadPauseMs = 1_000;
/** Milliseconds after a reading that failed. */
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
    /** Called at the start and with each other set of keys. */
    onChange: (keys: SigningKeys) => void;
    onError: (error: unknown) => void;
  }) {
    this.#db = options.db;
    this.#secret = options.secret;
    this.#onChange = options.onChange;
    this.#onError = options.onError;
    const reload = () => void this.#reload().catch(this.#onError);
    options.notifications.listen('signing_keys', { onNotification: reload, onListening: reload });
  }

  /** @throws Error when the keys cannot be read */
  start(): Promise<void> {
    return this.#reload();
  }

  /** For a token whose key is not known: perhaps it is new. At most once a second. */
  async refresh(): Promise<void> {
    if (performance.now() - this.#loadedAt < reloadPauseMs) return;
    await this.#reload();
  }

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async #reload(): Promise<void> {
    // A change that comes while one is being read is read after it.
    while (this.#loading !== undefined) await this.#loading.catch(() => {});
    this.#loading = this.#load();
    try {
      await this.#loading;
    } finally {
      this.#loading = undefined;
    }
  }

  async #load(): Promise<void> {
    this.#loadedAt = performance.now();
    // Whatever becomes of this reading, there is a next one.
    this.#readAfter(retryMs);
    const keys = await loadSigningKeys(this.#db, this.#secret);
    const known = JSON.stringify(keys.publicKeys);
    if (known !== this.#known) this.#onChange(keys);
    this.#known = known;
    this.#readAfter(await this.#msToNextChange());
  }

  /** The next change that is known to come is read when it comes. */
  async #msToNextChange(): Promise<number> {
    const { rows } = await sql<{ ms: number | null }>`
      select extract(epoch from min(change) - now())::float8 * 1000 as ms
      from signing_keys, unnest(array[signs_from, expires_at]) as change
      where change > now()`.execute(this.#db);
    return Math.min(rows[0]?.ms ?? reloadMs, reloadMs) + 10;
  }

  #readAfter(ms: number): void {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#reload().catch(this.#onError), ms);
    this.#timer.unref();
  }
}
