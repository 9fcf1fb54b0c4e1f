/**
 * Changes of tables beside running servers. While a statement such as `alter table` waits for its lock, all later statements on that
 * table wait behind it, also reads. So it gives up soon, the servers continue, and the change is tried again.
 *
 *   attempt → (lock not available within 2 s, or deadlock) rolled back → pause → attempt → …
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { deadlockDetected, lockNotAvailable } from './database.ts';

/** Milliseconds that a statement waits for a lock. Running servers wait behind it for as long, and less than their own timeout. */
const lockTimeoutMs = 2_000;
/** Pause between attempts, in which the servers continue. */
const pauseMs = 1_000;
/** Milliseconds after which no attempt begins. Another node that migrates holds its lock for the whole migration. */
const patienceMs = 300_000;

/** The statement that begins the transaction of an attempt. */
export const beginAttempt = `begin; set local lock_timeout = '${lockTimeoutMs}ms'`;

/**
 * Runs attempts until one gets its locks.
 * @param attempt one transaction, which begins with `beginAttempt`
 * @param explain makes the error for the operator when the patience ends
 * @param ms patience in milliseconds
 */
export async function withLockPatience<Result>(
  attempt: () => Promise<Result>,
  explain: (cause: unknown) => Error,
  ms = patienceMs,
): Promise<Result> {
  const begun = performance.now();
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      const { code } = error as pg.DatabaseError;
      if (code !== lockNotAvailable && code !== deadlockDetected) throw error;
      if (performance.now() - begun >= ms) throw explain(error);
    }
    await sleep(pauseMs);
  }
}
