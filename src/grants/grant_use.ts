/**
 * When grants were last used: writes `last_used_at` of the table `grants`, to the hour. Each token would be a write to the row otherwise,
 * and to find the newest of a grant's refresh tokens takes longer the more there are.
 */

import { sql } from 'kysely';
import { asServer } from '../database/connection_user.ts';
import type { Database } from '../database/database.ts';

/** Milliseconds until a flush, and maximum number of grants of one. What is used beyond that is written with the grant's next token. */
const flushMs = 2_000;
const pendingMax = 1_000;

export class GrantUse {
  readonly #db: Database;
  readonly #onError: (error: unknown) => void;
  readonly #pending = new Set<string>();
  #timer: NodeJS.Timeout | undefined;
  #flushing: Promise<void> = Promise.resolve();

  constructor(db: Database, onError: (error: unknown) => void) {
    this.#db = db;
    this.#onError = onError;
  }

  /** A token was issued under the grant. */
  add(grantId: string): void {
    if (this.#pending.size >= pendingMax) return;
    this.#pending.add(grantId);
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#flush();
    }, flushMs);
  }

  /** Writes what is pending. */
  async stop(): Promise<void> {
    clearTimeout(this.#timer);
    this.#flush();
    await this.#flushing;
  }

  #flush(): void {
    if (this.#pending.size === 0) return;
    const ids = [...this.#pending];
    this.#pending.clear();
    this.#flushing = this.#flushing
      .then(() => asServer(() => writeUse(this.#db, ids)))
      .catch((error: unknown) => this.#onError(error));
  }
}

/** Locked grants are left out: whoever changes one must not keep the others waiting. */
async function writeUse(db: Database, ids: readonly string[]): Promise<void> {
  await sql`
    update grants set last_used_at = now()
    where id = any(array(
      select id from grants
      where id = any(${ids}::uuid[]) and (last_used_at is null or last_used_at < now() - interval '1 hour')
      for no key update skip locked))`.execute(db);
}
