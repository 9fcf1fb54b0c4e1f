/**
 * Counts guesses in time windows, per guesser or per target. Owns the table `sign_in_failures`.
 *
 * A guess is counted before it is checked and forgiven if it was correct, so that concurrent guesses cannot exceed the
 * limit.
 */

import { sql } from 'kysely';
import { digest } from '../crypto/digest.ts';
import type { Database } from '../database/database.ts';
import { networksOf, wideLimitFactor } from '../http/network.ts';

/** Length of a window in minutes. */
const windowMinutes = 15;

export interface Counter {
  /** Name of the counter. */
  subject: string;
  /** Maximum guesses per window. */
  max: number;
}

/** Counts one guess. @returns null if the guess may be checked, otherwise the seconds to wait */
export async function countGuess(db: Database, counters: readonly Counter[]): Promise<number | null> {
  if (counters.length === 0) return null;
  const subjects = counters.map((counter) => digest(counter.subject));
  const { rows } = await sql<{ failures: number; max: number; seconds: number }>`
    insert into sign_in_failures as f (subject, failures, window_ends_at)
    select subject, 1, now() + ${windowMinutes} * interval '1 minute'
    from unnest(${subjects}::bytea[]) as s (subject)
    order by subject
    on conflict (subject) do update set
      failures = case when f.window_ends_at < now() then 1 else f.failures + 1 end,
      window_ends_at = case when f.window_ends_at < now() then excluded.window_ends_at else f.window_ends_at end
    returning failures,
      (${counters.map((counter) => counter.max)}::int[])[array_position(${subjects}::bytea[], subject)] as max,
      ceil(extract(epoch from window_ends_at - now()))::int as seconds`.execute(db);
  const over = rows.filter((row) => row.failures > row.max);
  return over.length === 0 ? null : Math.max(1, ...over.map((row) => row.seconds));
}

/**
 * Counts one guess in each group in order, up to the first group that is over its limit. A guesser over its own limit
 * does not count towards limits that it shares with others.
 * @returns null if the guess may be checked, otherwise the seconds to wait
 */
export async function countGuessInTurn(
  db: Database,
  groups: readonly (readonly Counter[])[],
): Promise<number | null> {
  for (const counters of groups) {
    const wait = await countGuess(db, counters);
    if (wait !== null) return wait;
  }
  return null;
}

/**
 * Takes a correct guess back.
 * @param forgotten counters to reset
 */
export async function forgiveGuess(
  db: Database,
  counters: readonly Counter[],
  forgotten: readonly string[] = [],
): Promise<void> {
  // Rows are locked in the order in which guesses are counted, so that concurrent calls do not deadlock.
  await sql`
    with locked as materialized (
      select subject from sign_in_failures
      where subject = any(${counters.map((counter) => digest(counter.subject))}::bytea[])
      order by subject
      for update)
    update sign_in_failures f set
      failures = case when f.subject = any(${forgotten.map(digest)}::bytea[]) then 0 else greatest(f.failures - 1, 0) end
    from locked
    where f.subject = locked.subject`.execute(db);
}

/** The counters of an address: its own network and, for IPv6, its site. For use with `countGuessInTurn`. */
export function addressCounters(name: string, remote: string, max: number): Counter[] {
  const { near, wide } = networksOf(remote);
  const own = { subject: `${name}\n${near}`, max };
  return wide === null ? [own] : [own, { subject: `${name}\n${wide}`, max: max * wideLimitFactor }];
}
