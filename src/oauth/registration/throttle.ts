/**
 * How many apps may be registered, or become known by their documents: counted for each network address, and for all
 * of them together, so that the table of clients cannot be filled by strangers. Owns the table `registration_windows`.
 */

import { sql } from 'kysely';
import { addressCounters } from '../../accounts/throttle.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';

/** Minutes that registrations are counted for, and how many are let through in them. */
const windowMinutes = 60;
export const registrationLimits = { remote: 60, all: 1_000 } as const;

/**
 * Counts one registration. One that fails counts for its network alone: `forgiveRegistration` takes it back from what
 * all have together.
 * @param remote the network address that asks
 * @returns undefined when it may go on, or the seconds after which to ask again
 */
export async function countRegistration(db: Database, remote: string): Promise<number | undefined> {
  return countForAll(db, 'remote', remote, 'all');
}

/** Nothing was registered: nobody else has less of what all have together. */
export async function forgiveRegistration(db: Database): Promise<void> {
  await sql`
    update registration_windows set registrations = registrations - 1
    where subject = ${digest('all')} and registrations > 0 and ends_at >= now()`.execute(db);
}

/**
 * Counts one app that its document makes known here for the first time; apart from those that register.
 * @param remote the network address that asks
 * @returns whether it may be kept
 */
export async function countDocument(db: Database, remote: string): Promise<boolean> {
  return (await countForAll(db, 'document', remote, 'all documents')) === undefined;
}

/** A network past its own limit adds nothing to what all have together: it alone cannot shut the others out. */
async function countForAll(
  db: Database,
  name: string,
  remote: string,
  all: string,
): Promise<number | undefined> {
  for (const { subject, max } of addressCounters(name, remote, registrationLimits.remote)) {
    const wait = await count(db, subject, max);
    if (wait !== undefined) return wait;
  }
  return count(db, all, registrationLimits.all);
}

async function count(db: Database, subject: string, max: number): Promise<number | undefined> {
  const { rows } = await sql<{ is_over: boolean; seconds: number }>`
    insert into registration_windows as w (subject, registrations, ends_at)
    values (${digest(subject)}, 1, now() + ${windowMinutes} * interval '1 minute')
    on conflict (subject) do update set
      registrations = case when w.ends_at < now() then 1 else w.registrations + 1 end,
      ends_at = case when w.ends_at < now() then excluded.ends_at else w.ends_at end
    returning
      registrations > ${max}::int as is_over,
      ceil(extract(epoch from ends_at - now()))::int as seconds`.execute(db);
  const [window] = rows;
  return window?.is_over ? Math.max(1, window.seconds) : undefined;
}
