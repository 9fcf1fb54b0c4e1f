/**
 * Locks between processes that die with their process, so that `kill -9` never leaves one behind.
 *
 * Node has no flock(2). SQLite, which ships with Node, takes fcntl(2) locks on its database file: shared in a
 * read transaction, exclusive in an exclusive one. Nothing is ever written, the file stays empty. Children do not
 * inherit such a lock, and SQLite keeps apart several holders within one process.
 *
 * Nothing else may open these files: POSIX drops all of a process's locks on a file when it closes any descriptor of it.
 */
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as sleep } from 'node:timers/promises';
import { EmbeddedError } from './error.ts';

/** `errcode` of SQLite's SQLITE_BUSY: somebody else holds the lock. */
const sqliteBusy = 5;
const lockPollMs = 20;

export interface FileLock {
  /** Gives the lock back; a second call does nothing. */
  release(): void;
}

/**
 * Takes the lock at once, or says that it is taken.
 * @throws EmbeddedError when the file cannot be opened or locked at all
 */
export function tryFileLock(path: string, mode: 'shared' | 'exclusive'): FileLock | undefined {
  let database: DatabaseSync | undefined;
  try {
    database = new DatabaseSync(path, { timeout: 0 });
    // No journal beside the file, which a killed holder would leave behind.
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
      throw new EmbeddedError(
        `Another process has been starting or stopping PostgreSQL for too long (${path}).`,
      );
    }
    await sleep(lockPollMs);
  }
}
