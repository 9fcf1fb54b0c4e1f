/**
 * Limits how many apps are registered or become known by their documents, per network address and in total, so that
 * strangers cannot fill the table of clients. Sites have shares of the total (shared/share.ts), so that few of them do not keep the others
 * out for the rest of the hour. Owns the table `registration_windows`.
 */

import { sql } from 'kysely';
import { addressCounters } from '../../accounts/throttle.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { freeOf } from '../../shared/share.ts';

/** Length of a window in minutes, and registrations allowed per window. */
const windowMinutes = 60;
export const registrationLimits = { remote: 60, all: 1_000 } as const;

/**
 * Counts one registration. `forgiveRegistration` takes a failed one back from the total, but not from its network.
 * @param remote the network address of the request
 * @param isOfPage whether a page had a browser send it: any page can, in the networks of all its visitors, so these have counters of their own
 * @returns undefined if the registration may proceed, otherwise the seconds until the next attempt
 */
export async function countRegistration(
  db: Database,
  remote: string,
  isOfPage = false,
): Promise<number | undefined> {
  return isOfPage
    ? countForAll(db, 'remote of a page', remote, 'all of pages')
    : countForAll(db, 'remote', remote, 'all');
}

/** Takes a failed registration back from the total, which all networks share. */
export async function forgiveRegistration(db: Database, isOfPage = false): Promise<void> {
  await sql`
    update registration_windows set registrations = registrations - 1
    where subject = ${digest(isOfPage ? 'all of pages' : 'all')} and registrations > 0 and ends_at >= now()`.execute(
    db,
  );
}

/**
 * Counts one app that becomes known by its document. The counters are separate from those of registrations.
 * @param remote the network address of the request
 * @param isOfPage as for `countRegistration`
 * @returns whether the app may be stored
 */
export async function countDocument(db: Database, remote: string, isOfPage = false): Promise<boolean> {
  const wait = isOfPage
    ? await countForAll(db, 'document of a page', remote, 'all documents of pages')
    : await countForAll(db, 'document', remote, 'all documents');
  return wait === undefined;
}

/** What is refused does not count towards the total, so that nobody locks the others out with it. */
async function countForAll(
  db: Database,
  name: string,
  remote: string,
  all: string,
): Promise<number | undefined> {
  let ofSite = 0;
  for (const { subject, max } of addressCounters(name, remote, registrationLimits.remote)) {
    const counted = await count(db, subject, max);
    if ('wait' in counted) return counted.wait;
    ofSite = counted.registrations;
  }
  const counted = await count(db, all, freeOf(registrationLimits.all, 0, ofSite - 1));
  return 'wait' in counted ? counted.wait : undefined;
}

/** @returns the registrations of the window with this one, or the seconds until the window ends if it has `max` of them or more */
async function count(
  db: Database,
  subject: string,
  max: number,
): Promise<{ registrations: number } | { wait: number }> {
  const { rows } = await sql<{ registrations: number }>`
    insert into registration_windows as w (subject, registrations, ends_at)
    values (${digest(subject)}, 1, now() + ${windowMinutes} * interval '1 minute')
    on conflict (subject) do update set
      registrations = case when w.ends_at < now() then 1 else w.registrations + 1 end,
      ends_at = case when w.ends_at < now() then excluded.ends_at else w.ends_at end
    where w.ends_at < now() or w.registrations < ${max}::int
    returning registrations`.execute(db);
  if (rows[0] !== undefined) return rows[0];
  const { rows: windows } = await sql<{ seconds: number }>`
    select ceil(extract(epoch from ends_at - now()))::int as seconds from registration_windows
    where subject = ${digest(subject)}`.execute(db);
  return { wait: Math.max(1, windows[0]?.seconds ?? 1) };
}
