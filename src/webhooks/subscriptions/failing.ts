/**
 * Disables subscriptions that fail for too long: no success for 5 days and at least 20 failures in a row. The owner is warned
 * twice: after half of that time, and one day before. Each warning is given once, across restarts and nodes. No subscription
 * is disabled without the last warning. Owns the table `failing_warnings`.
 *
 *   failing → (2.5 days) warned: half → (4 days) warned: last → (a day later, on a failure) disabled
 *   any state → not failing, by one success
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { failingName } from '../../events/built_in_names.ts';
import { disableByWorker, notifyOwner } from './subscription_state.ts';

export const failuresMin = 20;
const failingDays = 5;
/** Minimum failures in a row and days without a success for each warning. */
const warnedFailuresMin = 10;
const halfDays = failingDays / 2;
const lastDays = failingDays - 1;

/** @returns the lanes whose subscriptions this call disabled */
export async function disableFailing(db: Database, lanes: readonly number[]): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select p.lane from lane_progress p
    join failing_warnings w on w.lane = p.lane and w.failing_since = p.failing_since
    where p.lane = any(${[...lanes]}::bigint[]) and p.failures >= ${failuresMin}::int
      and w.warning = 'last' and w.disables_at <= now()
      -- The warning may have been given while the clock was ahead.
      and p.failing_since <= now() - ${failingDays}::float8 * interval '1 day'`.execute(db);
  return disableByWorker(
    db,
    rows.map(({ lane }) => Number(lane)),
    'failing',
  );
}

export interface FailingWarning {
  subscription: string;
  warning: 'half' | 'last';
  failingSince: Date;
  /** When the subscription is disabled if it keeps failing. */
  disablesAt: Date;
}

/** Maximum subscriptions of one transaction: thousands may be due at once, and other long work waits for the connection. */
const warnedMax = 100;

/**
 * Sends the warnings that are due, as events to the owner's other subscriptions.
 * @returns the warnings sent by this call
 */
export async function warnFailing(db: Database): Promise<FailingWarning[]> {
  const warnings: FailingWarning[] = [];
  for (let after: string | null = '0'; after !== null; ) {
    const { given, last } = await warnSome(db, after);
    warnings.push(...given);
    after = last;
  }
  return warnings;
}

/** @param after the lane that the last call ended with @returns `last`: that of this call; null if no others are due */
async function warnSome(
  db: Database,
  after: string,
): Promise<{ given: FailingWarning[]; last: string | null }> {
  return db.transaction().execute(async (tx) => {
    const { rows } = await sql<{
      lane: string;
      warning: 'half' | 'last' | null;
      failing_since: Date;
      disables_at: Date;
    }>`
      with due as materialized (
        select p.lane, p.failing_since,
          case when p.failing_since <= now() - ${lastDays}::float8 * interval '1 day' then 'last' else 'half' end as warning,
          greatest(p.failing_since + ${failingDays}::float8 * interval '1 day', now() + interval '1 day') as disables_at
        from lane_progress p join subscriptions s on s.lane = p.lane
        where p.lane > ${after}::bigint and p.failing_since <= now() - ${halfDays}::float8 * interval '1 day'
          and p.failures >= ${warnedFailuresMin}::int and s.state = 'active'
          -- Those of agents are held instead (agent_hold.ts).
          and s.format <> 'agent'
        order by p.lane limit ${warnedMax}::int
      ),
      given as (
        insert into failing_warnings as known (lane, failing_since, warning, disables_at)
        select lane, failing_since, warning, disables_at from due order by lane
        on conflict (lane) do update set
          failing_since = excluded.failing_since, warning = excluded.warning, given_at = now(),
          disables_at = excluded.disables_at
        where known.failing_since <> excluded.failing_since
          or (known.warning = 'half' and excluded.warning = 'last')
        returning lane, warning, failing_since, disables_at
      )
      select due.lane, given.warning, given.failing_since, given.disables_at
      from due left join given on given.lane = due.lane order by due.lane`.execute(tx);
    const given: FailingWarning[] = [];
    for (const { lane, warning, failing_since: failingSince, disables_at: disablesAt } of rows) {
      if (warning === null) continue;
      const subscription = await notifyOwner(tx, Number(lane), failingName, {
        failing_since: failingSince.toISOString(),
        disables_at: disablesAt.toISOString(),
      });
      if (subscription !== undefined) given.push({ subscription, warning, failingSince, disablesAt });
    }
    return { given, last: rows.length < warnedMax ? null : (rows.at(-1)?.lane ?? null) };
  });
}
