/**
 * Limits how many apps are registered or become known by their documents, per network address and in total, so that
 * strangers cannot fill the table of clients. Owns the table `registration_windows`.
 */

import { sql } from 'kysely';
import { addressCounters } from '../../accounts/throttle.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';

/** Length of a window in minutes, and registrations allowed per window. */
const windowMinutes = 60;
export const registrationLimits = { remote: 60, all: 1_000 } as const;

/**
 * Counts one registration. `forgiveRegistration` takes a failed one back from the total, but not from its network.
 * @param remote the network address of the request
 * @returns undefined if the registration may proceed, otherwise the seconds until the next attempt
 */
export async function countRegistration(db: Database, remote: string): Promise<number | undefined> {
  return countForAll(db, 'remote', remote, 'all');
}

/** Takes a failed registration back from the total, which all networks share. */
export async function forgiveRegistration(db: Database): Promise<void> {
  await sql`
    update registration_windows set registrations = registrations - 1
    where subject = ${digest('all')} and registrations > 0 and ends_at >= now()`.execute(db);
}

/**
 * Counts one app that becomes known by its document. The counters are separate from those of registrations.
 * @param remote the network address of the request
 * @returns whether the app may be stored
 */
export async function countDocument(db: Database, remote: string): Promise<boolean> {
  return (await countForAll(db, 'document', remote, 'all documents')) === undefined;
}

/** A network over its own limit does not count towards the total, so it cannot lock the others out. */
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
