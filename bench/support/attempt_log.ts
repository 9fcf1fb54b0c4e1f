/**
 * The log of attempts for a sender whose queue deletes its jobs. It is written in bulk, one statement at a time. Each
 * statement writes the attempts that arrived while the previous one was in flight.
 */

import type pg from 'pg';

interface Attempt {
  delivery: string;
  status: number;
  durationMs: number;
}

export async function createAttempts(pool: pg.Pool): Promise<void> {
  await pool.query(`
    create table attempts (
      delivery uuid not null,
      number smallint not null default 1,
      at timestamptz not null default now(),
      status smallint not null,
      duration_ms real not null,
      primary key (delivery, number)
    )`);
}

export async function countAttempts(pool: pg.Pool): Promise<number> {
  const { rows } = await pool.query<{ count: string }>('select count(*) from attempts');
  return Number(rows[0]?.count);
}

export class AttemptLog {
  readonly #pool: pg.Pool;
  #waiting: { attempt: Attempt; resolve: () => void; reject: (error: Error) => void }[] = [];
  #writing = false;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
  }

  /** Resolves once the attempt is durable. */
  record(attempt: Attempt): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ attempt, resolve, reject });
      if (!this.#writing) {
        this.#writing = true;
        // After this turn of the event loop, so that responses that arrive together are written together.
        setImmediate(() => this.#write());
      }
    });
  }

  async #write(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#waiting;
      this.#waiting = [];
      try {
        await this.#pool.query({
          name: 'record_attempts',
          text: `
            insert into attempts (delivery, status, duration_ms)
            select * from unnest($1::uuid[], $2::smallint[], $3::real[])`,
          values: [
            batch.map(({ attempt }) => attempt.delivery),
            batch.map(({ attempt }) => attempt.status),
            batch.map(({ attempt }) => attempt.durationMs),
          ],
        });
        for (const { resolve } of batch) resolve();
      } catch (error) {
        for (const { reject } of batch) reject(error as Error);
      }
    }
    this.#writing = false;
  }
}
