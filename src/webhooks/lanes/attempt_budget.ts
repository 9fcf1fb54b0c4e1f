/**
 * The daily budget of each account for response headers and bodies in the log. Beyond it, attempts are stored without them, so
 * that subscribers cannot fill the disk. Each node counts in memory and adds its counts to the table every few seconds. Together,
 * nodes may exceed the budget by what they store in these seconds. Owns the table `attempt_bytes`.
 */

import { sql } from 'kysely';
import { bigintArray, textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { AttemptRecord } from './outcome_policy.ts';

/** Days that counts are kept. */
const keptDays = 2;

interface Used {
  /** The count in the database, when it was last read. */
  stored: number;
  /** Counted since then. Not in the database yet. */
  counted: number;
}

export class AttemptBudget {
  readonly #db: Database;
  readonly #bytesPerDay: number;
  #day = '';
  #used = new Map<string, Used>();

  constructor(db: Database, bytesPerDay: number) {
    this.#db = db;
    this.#bytesPerDay = bytesPerDay;
  }

  /**
   * Counts the response of an attempt, or removes it if the day's budget is used up.
   * @param now milliseconds since 1970
   */
  apply(tenant: string, attempt: AttemptRecord, now: number): void {
    const bytes = (attempt.headers?.length ?? 0) + (attempt.body?.length ?? 0);
    if (bytes === 0) return;
    const used = this.#usedBy(tenant, dayOf(now));
    if (used.stored + used.counted + bytes <= this.#bytesPerDay) {
      used.counted += bytes;
      return;
    }
    attempt.headers = null;
    attempt.body = null;
    attempt.isResponseOmitted = true;
  }

  /** Adds the counts to the table, and reads what other nodes have counted. */
  async flush(): Promise<void> {
    const [day, all] = [this.#day, this.#used];
    const counted = [...all].filter(([, used]) => used.counted > 0);
    if (counted.length === 0) return;
    const given = counted.map(([, used]) => used.counted);
    const tenants = counted.map(([tenant]) => tenant);
    const { rows } = await sql<{ tenant: string; bytes: string }>`
      insert into attempt_bytes (day, tenant, bytes)
      select ${day}::date, tenant, bytes
      from unnest(${textArray(tenants)}::text[], ${bigintArray(given)}::bigint[]) as given (tenant, bytes)
      -- The same order on every node prevents deadlocks.
      order by tenant
      on conflict (day, tenant) do update set bytes = attempt_bytes.bytes + excluded.bytes
      returning tenant, bytes`.execute(this.#db);
    const stored = new Map(rows.map(({ tenant, bytes }) => [tenant, Number(bytes)]));
    for (const [index, [tenant, used]] of counted.entries()) {
      used.counted -= given[index] as number;
      used.stored = stored.get(tenant) ?? used.stored;
    }
    await sql`delete from attempt_bytes where day < ${day}::date - ${keptDays}::int`.execute(this.#db);
  }

  #usedBy(tenant: string, day: string): Used {
    if (day !== this.#day) {
      this.#day = day;
      this.#used = new Map();
    }
    let used = this.#used.get(tenant);
    if (used === undefined) {
      used = { stored: 0, counted: 0 };
      this.#used.set(tenant, used);
    }
    return used;
  }
}

const dayOf = (now: number): string => new Date(now).toISOString().slice(0, 10);
