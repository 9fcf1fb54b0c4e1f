/**
 * Recoveries: all deliveries of a stretch of time that failed or were held, sent again. A job of its own that is done
 * some hundred deliveries at a time, by whichever node comes first; it survives restarts and can be cancelled. How
 * fast they are sent is the lane's matter. Owns the table `recoveries`.
 *
 *   running → done | cancelled
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import { type DeliveryState, described, wakeLane } from './delivery.ts';

/** Deliveries of one step at most. */
const stepMax = 500;

/** States that can be recovered. */
export const recoverableStates = ['failed', 'held', 'succeeded'] as const satisfies readonly DeliveryState[];
export type RecoverableState = (typeof recoverableStates)[number];

export interface Recovery {
  id: string;
  since: Date;
  until: Date;
  states: RecoverableState[];
  state: 'running' | 'done' | 'cancelled';
  resent: number;
  createdAt: Date;
}

interface RecoveryRow {
  id: string;
  since: Date;
  until: Date;
  states: RecoverableState[];
  state: Recovery['state'];
  resent: string;
  created_at: Date;
}

export async function startRecovery(
  db: Database | Transaction,
  lane: number,
  range: { since: Date; until: Date | null; states: RecoverableState[] },
): Promise<Recovery> {
  const { rows } = await sql<RecoveryRow>`
    insert into recoveries (id, lane, since, until, states)
    values (${newId()}, ${lane}, ${range.since}, coalesce(${range.until}::timestamptz, now()), ${range.states}::text[])
    returning *`.execute(db);
  return toRecovery(rows[0] as RecoveryRow);
}

export async function findRecovery(db: Database, lane: number, id: string): Promise<Recovery | undefined> {
  const { rows } = await sql<RecoveryRow>`
    select * from recoveries where id = ${id} and lane = ${lane}`.execute(db);
  return rows[0] && toRecovery(rows[0]);
}

/** What is due already is still sent. @returns whether it was running */
export async function cancelRecovery(db: Database, lane: number, id: string): Promise<boolean> {
  const { rows } = await sql`
    update recoveries set state = 'cancelled', updated_at = now()
    where id = ${id} and lane = ${lane} and state = 'running' returning id`.execute(db);
  return rows.length > 0;
}

/** One step of one job. @returns whether there was one */
export async function stepRecovery(db: Database): Promise<boolean> {
  return db.transaction().execute(async (tx) => {
    const { rows: jobs } = await sql<{ id: string; lane: string; position: string; is_active: boolean }>`
      select r.id, r.lane, r.position, s.state = 'active' as is_active
      from recoveries r join subscriptions s on s.lane = r.lane
      where r.state = 'running' and s.state <> 'disabled'
      order by r.updated_at limit 1 for update of r skip locked`.execute(tx);
    const job = jobs[0];
    if (job === undefined) return false;
    if (!job.is_active) {
      await sql`update recoveries set state = 'cancelled', updated_at = now() where id = ${job.id}`.execute(
        tx,
      );
      return true;
    }
    const lane = Number(job.lane);
    const condition = sql`d.sequence > ${job.position} and d.sequence <= ${job.position}::bigint + ${stepMax}::int`;
    const { rows } = await sql<{ last: string | null; resent: string }>`
      with step as materialized (${described(lane, condition)}),
      job as materialized (select * from recoveries where id = ${job.id}),
      again as (
        insert into retries (lane, sequence, day, state, attempts, due_at, resends)
        select step.lane, step.sequence, step.day, case when step.state = 'held' then 'pending' else step.state end,
          step.attempt_count, now(), 1
        from step, job
        where step.state = any(job.states) and step.created_at >= job.since and step.created_at < job.until
        on conflict (lane, sequence) do update set
          resends = greatest(retries.resends, 1), due_at = now(),
          state = case when retries.state = 'held' then 'pending' else retries.state end
        returning 1
      )
      select (select max(sequence) from step) as last, (select count(*) from again) as resent`.execute(tx);
    const { last, resent } = rows[0] as { last: string | null; resent: string };
    await sql`
      update recoveries set
        position = ${job.position}::bigint + ${stepMax}::int, resent = resent + ${resent}::bigint, updated_at = now(),
        state = case when ${last}::bigint is null and ${job.position}::bigint + ${stepMax}::int >= (
          select next_sequence from lanes where id = ${lane}) then 'done' else 'running' end
      where id = ${job.id}`.execute(tx);
    if (resent !== '0') await wakeLane(tx, lane);
    return true;
  });
}

function toRecovery(row: RecoveryRow): Recovery {
  return {
    id: row.id,
    since: row.since,
    until: row.until,
    states: row.states,
    state: row.state,
    resent: Number(row.resent),
    createdAt: row.created_at,
  };
}
