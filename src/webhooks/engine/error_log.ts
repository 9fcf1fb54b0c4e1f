/**
 * The errors of an engine, for the log. While the database is unavailable, each of the engine's loops fails several times a
 * second: an outage is one line when it begins, one every few seconds, and one when it is over.
 *
 *   available → (an error says unavailable) → outage → (the database responds, and no error for a while) → available
 */

import { sql } from 'kysely';
import { type Database, isDatabaseUnavailable, withTimeout } from '../../database/database.ts';
import { type DescribedError, describeError } from './described_error.ts';

/** Milliseconds between two lines of an outage. */
const outageLineMs = 5_000;
/** Milliseconds between attempts to reach the database. */
const probePauseMs = 1_000;
/** Milliseconds without an error after which the outage is over if the database responds. */
const quietMs = 1_000;
const probeTimeoutMs = 5_000;

type Post = (entry: { fields: Record<string, unknown>; message: string; error?: DescribedError }) => void;

interface Outage {
  startedAt: number;
  lastErrorAt: number;
  lastLineAt: number;
  /** Errors since the last line. */
  errors: number;
  reason: string;
}

export class ErrorLog {
  readonly #db: () => Database;
  readonly #post: Post;
  #outage: Outage | undefined;
  #timer: NodeJS.Timeout | undefined;
  #isStopped = false;

  constructor(db: () => Database, post: Post) {
    this.#db = db;
    this.#post = post;
  }

  add(error: Error): void {
    if (this.#isStopped) return;
    if (!isDatabaseUnavailable(error)) {
      const message = 'the delivery engine had an error and continues';
      this.#post({ fields: {}, message, error: describeError(error) });
      return;
    }
    const now = performance.now();
    const { message: reason } = error;
    if (this.#outage === undefined) {
      this.#outage = { startedAt: now, lastErrorAt: now, lastLineAt: now, errors: 0, reason };
      this.#post({ fields: { reason }, message: 'the delivery engine has no database: deliveries wait' });
      this.#probeLater();
    } else {
      this.#outage.lastErrorAt = now;
      this.#outage.errors += 1;
      this.#outage.reason = reason;
    }
  }

  stop(): void {
    this.#isStopped = true;
    clearTimeout(this.#timer);
  }

  #probeLater(): void {
    this.#timer = setTimeout(() => void this.#probe(), probePauseMs);
    this.#timer.unref();
  }

  async #probe(): Promise<void> {
    const responds = await withTimeout(probeTimeoutMs, sql`select 1`.execute(this.#db())).then(
      () => true,
      () => false,
    );
    const outage = this.#outage;
    if (this.#isStopped || outage === undefined) return;
    const now = performance.now();
    const seconds = Math.round((now - outage.startedAt) / 1_000);
    if (responds && now - outage.lastErrorAt >= quietMs) {
      this.#outage = undefined;
      this.#post({ fields: { seconds }, message: 'the delivery engine has its database again' });
      return;
    }
    if (now - outage.lastLineAt >= outageLineMs) {
      const { reason, errors } = outage;
      const message = 'the delivery engine still has no database';
      this.#post({ fields: { reason, errors, seconds }, message });
      outage.lastLineAt = now;
      outage.errors = 0;
    }
    this.#probeLater();
  }
}
