/**
 * Runs the relay's SQLite transactions. A relay transaction never joins an open transaction of the application on the same
 * connection, because it would read rows that can still be rolled back. In that case `begin` fails and is tried again, as while
 * another connection writes.
 */

import { setTimeout as sleep } from 'node:timers/promises';

export type Value = string | number | null;

/** A `DatabaseSync` of `node:sqlite`, a `Database` of `better-sqlite3`, or any object with these methods. */
export interface SqliteConnection {
  exec(text: string): unknown;
  prepare(text: string): {
    run(...values: Value[]): { changes: number | bigint };
    all(...values: Value[]): unknown[];
  };
}

/** Pause between tries of `begin`. */
const pauseMs = 20;

/** Runs `work` in a new transaction. */
export type Transact = <Result>(mode: 'deferred' | 'immediate', work: () => Result) => Promise<Result>;

/** @param busyTimeoutMs how long a busy database is retried before its error is thrown */
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

/** Ignores errors: after some failures SQLite has already rolled back. */
function rollBack(database: SqliteConnection): void {
  try {
    database.exec('rollback');
  } catch {}
}

const busyCode = 5;
const lockedCode = 6;

function isBusy(error: unknown): boolean {
  // `node:sqlite` reports the extended code as a number, `better-sqlite3` as a name.
  const { code, errcode, message } = error as { code?: unknown; errcode?: unknown; message?: unknown };
  const primary = typeof errcode === 'number' ? errcode & 0xff : null;
  return (
    primary === busyCode ||
    primary === lockedCode ||
    /^SQLITE_(BUSY|LOCKED)/.test(String(code)) ||
    /within a transaction/.test(String(message))
  );
}
