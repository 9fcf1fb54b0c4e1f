/**
 * Disabling what has failed for too long: no success for 5 days and at least 20 failures in a row. Looked at on each
 * failure of a lane that has failed often enough.
 */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { disableByWorker } from './subscription_state.ts';

export const failuresMin = 20;
export const failingDays = 5;

/** @returns lanes whose subscriptions were disabled */
export async function disableFailing(db: Database, lanes: readonly number[]): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from lane_progress
    where lane = any(${[...lanes]}::bigint[]) and failures >= ${failuresMin}::int
      and failing_since < now() - make_interval(days => ${failingDays}::int)`.execute(db);
  const disabled: number[] = [];
  for (const { lane } of rows) {
    if (await disableByWorker(db, Number(lane), 'failing')) disabled.push(Number(lane));
  }
  return disabled;
}
