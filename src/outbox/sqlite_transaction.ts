/**
 * Transactions of the relay in SQLite. They never join a transaction that the application has open on the same connection:
 * they would see, and publish, what may be rolled back. `begin` fails there, and is retried, as where another connection writes.
 */

import { setTimeout as sleep } from 'node:timers/promises';

export type Value = string | number | null;

/** A `DatabaseSync` of `node:sqlite`, a `Database` of `better-sqlite3`, or anything with these methods. */
export interface SqliteConnection {
  exec(text: string): unknown;
  prepare(text: string): {
    run(...values: Value[]): { changes: number | bigint };
    all(...values: Value[]): unknown[];
  };
}

/** Milliseconds between two tries. */
const pauseMs = 20;

/** Runs statements in a transaction of their own. */
export type Transact = <Result>(mode: 'deferred' | 'immediate', work: () => Result) => Promise<Result>;

/** @param busyTimeoutMs how long to retry until the error is thrown */
export function createTransact(database: SqliteConnection, busyTimeoutMs: number): Transact {
  return async (mode, work) => {
    const startedAt = performance.now();
    for (;;) {
      try {
        return attempt(database, mode, work);
      } catch (error) {
        if (!isBusy(error) || performance.now() - startedAt >= busyTimeoutMs) throw error;
      }
      await sleep(pauseMs);
    }
  };
}

function attempt<Result>(database: SqliteConnection, mode: string, work: () => Result): Result {
  database.exec(`begin ${mode}`);
  try {
    const result = work();
    database.exec('commit');
    return result;
  } catch (error) {
    rollBack(database);
    throw error;
  }
}

/** SQLite has rolled some failures back itself. */
function rollBack(database: SqliteConnection): void {
  try {
    database.exec('rollback');
  } catch {}
}

const codeBusy = 5;
const codeLocked = 6;

function isBusy(error: unknown): boolean {
  // `node:sqlite` tells the extended code as a number, `better-sqlite3` its name.
  const { code, errcode, message } = error as { code?: unknown; errcode?: unknown; message?: unknown };
  const primary = typeof errcode === 'number' ? errcode & 0xff : null;
  return (
    primary === codeBusy ||
    primary === codeLocked ||
    /^SQLITE_(BUSY|LOCKED)/.test(String(code)) ||
    /within a transaction/.test(String(message))
  );
}
