/**
 * The daily budget of each account for response headers and bodies in the log. Beyond it, attempts are stored without them, so
 * that subscribers cannot fill the disk. Each node counts in memory and adds its counts to the table every few seconds. Together,
 * nodes may exceed the budget by what they store in these seconds. Owns the table `attempt_bytes`.
 */

import { sql } from 'kysely';
import { LRUCache } from 'lru-cache';
import { bigintArray, textArray } from '../../database/arrays.ts';
import { deleteBatches } from '../../database/batches.ts';
import type { Database } from '../../database/database.ts';
import { upTo } from '../../shared/entries.ts';
import type { AttemptRecord } from './outcome_policy.ts';

/** Days that counts are kept. */
const keptDays = 2;
/** Maximum tenants of one statement, and statements of one flush. The next flush continues. */
const statementMax = 1_000;
const statementsMax = 5;
/** Maximum tenants whose counts in the database are remembered. One that is forgotten begins again until its next flush. */
const storedMax = 50_000;

/** The size of what an attempt stores of its response. */
export function responseBytes({ headers, body }: AttemptRecord): number {
  return (headers?.length ?? 0) + (body?.length ?? 0);
}

export function omitResponse(attempt: AttemptRecord): void {
  attempt.headers = null;
  attempt.body = null;
  attempt.isResponseOmitted = true;
}

export class AttemptBudget {
  readonly #db: Database;
  readonly #bytesPerDay: number;
  #day = '';
  /** When counts of earlier days were last deleted. */
  #deletedOn = '';
  /** Bytes by tenant, as the database had them at the tenant's last flush. */
  readonly #stored = new LRUCache<string, number>(upTo(storedMax));
  /** Bytes counted since then. They are not in the database yet. */
  readonly #counted = new Map<string, number>();
  #flushing: Promise<void> | undefined;

  constructor(db: Database, bytesPerDay: number) {
    this.#db = db;
    this.#bytesPerDay = bytesPerDay;
  }

  /**
   * Counts the response of an attempt, or removes it if the day's budget is used up.
   * @param now milliseconds since 1970
   */
  apply(tenant: string, attempt: AttemptRecord, now: number): void {
    const bytes = responseBytes(attempt);
    if (bytes === 0) return;
    this.#begin(dayOf(now));
    const counted = this.#counted.get(tenant) ?? 0;
    if ((this.#stored.get(tenant) ?? 0) + counted + bytes <= this.#bytesPerDay) {
      this.#counted.set(tenant, counted + bytes);
      return;
    }
    omitResponse(attempt);
  }

  /**
   * Adds counts to the table, those that have waited longest first, and reads what other nodes have counted. One flush runs at a time, so
   * that a locked row takes one connection.
   */
  flush(): Promise<void> {
    this.#flushing ??= this.#flush().finally(() => {
      this.#flushing = undefined;
    });
    return this.#flushing;
  }

  async #flush(): Promise<void> {
    const day = this.#day;
    for (let left = statementsMax; left > 0 && this.#counted.size > 0; left -= 1) {
      const given = [...this.#counted.entries().take(statementMax)];
      for (const [tenant] of given) this.#counted.delete(tenant);
      try {
        const stored = await this.#add(day, given);
        if (this.#day !== day) return;
        for (const { tenant, bytes } of stored) this.#stored.set(tenant, Number(bytes));
      } catch (error) {
        if (this.#day === day)
          for (const [tenant, bytes] of given)
            this.#counted.set(tenant, (this.#counted.get(tenant) ?? 0) + bytes);
        throw error;
      }
    }
    if (this.#deletedOn === day) return;
    this.#deletedOn = day;
    await deleteBatches(this.#db, 'attempt_bytes', sql`day < ${day}::date - ${keptDays}::int`);
  }

  async #add(day: string, given: readonly [tenant: string, bytes: number][]) {
    const { rows } = await sql<{ tenant: string; bytes: string }>`
      insert into attempt_bytes (day, tenant, bytes)
      select ${day}::date, tenant, bytes
      from unnest(
        ${textArray(given.map(([tenant]) => tenant))}::text[], ${bigintArray(given.map(([, bytes]) => bytes))}::bigint[]
      ) as given (tenant, bytes)
      -- The same order on every node prevents deadlocks.
      order by tenant
      on conflict (day, tenant) do update set bytes = attempt_bytes.bytes + excluded.bytes
      returning tenant, bytes`.execute(this.#db);
    return rows;
  }

  #begin(day: string): void {
    if (day === this.#day) return;
    this.#day = day;
    this.#stored.clear();
    this.#counted.clear();
  }
}

const dayOf = (now: number): string => new Date(now).toISOString().slice(0, 10);
