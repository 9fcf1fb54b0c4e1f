/**
 * Locks between processes. The operating system releases a lock when its process ends, even by `kill -9`.
 *
 * Node.js has no flock(2). Its built-in SQLite takes fcntl(2) locks on the database file: a shared lock in a read
 * transaction, an exclusive lock in an exclusive transaction. Nothing is written, so the file stays empty. Child processes
 * do not inherit the lock, and SQLite separates several holders in one process.
 *
 * No other code may open these files: when a process closes any descriptor of a file, POSIX releases all its locks on it.
 */
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { EmbeddedError } from './error.ts';

/** SQLITE_BUSY: another holder has the lock. */
const sqliteBusy = 5;
const lockPollMs = 20;

export interface FileLock {
  /** Releases the lock. A second call does nothing. */
  release(): void;
}

/**
 * Tries to take the lock.
 * @returns undefined when another holder has it
 * @throws EmbeddedError when the file cannot be opened or locked
 */
export function tryFileLock(path: string, mode: 'shared' | 'exclusive'): FileLock | undefined {
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(path, { timeout: 0 });
    // Keep the journal in memory: a killed process would leave a journal file behind.
    database.exec('pragma journal_mode = memory');
    database.exec(mode === 'shared' ? 'begin; select count(*) from sqlite_schema' : 'begin exclusive');
  } catch (error) {
    database?.close();
    if (error instanceof Error && 'errcode' in error && error.errcode === sqliteBusy) return undefined;
    throw new EmbeddedError(`The lock file ${path} cannot be used: ${(error as Error).message}.`);
  }
  const held = database;
  return {
    release() {
      if (held.isOpen) held.close();
    },
  };
}

/**
 * Waits for an exclusive lock.
 * @throws EmbeddedError after `timeoutMs` milliseconds
 */
export async function fileLock(path: string, timeoutMs: number): Promise<FileLock> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const lock = tryFileLock(path, 'exclusive');
    if (lock !== undefined) return lock;
    if (Date.now() > deadline) {
      throw new EmbeddedError(`Another process took too long to start or stop PostgreSQL (${path}).`);
    }
    await sleep(lockPollMs);
  }
}
