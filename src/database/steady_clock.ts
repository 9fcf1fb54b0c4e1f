/**
 * The time by the monotonic clock of this process, from its start. Rows are deleted for good only when they have expired both by this
 * clock and by the database's: a clock that is set ahead for a while deletes nothing.
 */

import { sql } from 'kysely';

/** The earlier of the database's time and this process's, as an SQL expression. */
export function steadyNow() {
  return sql`least(now(), ${new Date(performance.timeOrigin + performance.now())}::timestamptz)`;
}
