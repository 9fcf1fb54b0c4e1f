/**
 * Recoveries: jobs that resend all failed or held deliveries of a time range, and create deliveries for events from before the
 * subscription existed. A job runs in steps of some hundred deliveries, on whichever node takes the next step. It survives
 * restarts and can be cancelled. Accounts take turns by the time that their steps take (recovery_turns.ts). The lane limits the sending rate. Owns the table `recoveries`.
 *
 * A step locks nothing of the lane while it searches, and waits for no lock. If the lane is locked, the step runs again soon.
 *
 *   resending → missing (if the range starts before the subscription; see replay.ts) → done
 *   any state → cancelled
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { type RawBuilder, sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { keptDays } from '../../database/retention.ts';
import { attemptsMax, type DeliveryState, selectDeliveries } from '../log/delivery.ts';
import { wakeLane } from '../log/resend.ts';
import type { KindArrays } from './fan_out.ts';
import { isLocked } from './pass_size.ts';
import { RecoveryTurns } from './recovery_turns.ts';
import { replayStep } from './replay.ts';

/** Maximum deliveries of one step. */
const stepMax = 500;

/** Maximum recoveries of one subscription that run at the same time. */
export const runningMax = 3;

/**
 * What a recovery can cover: deliveries in these states, and events without a delivery because the subscription is newer.
 */
export const recoverableStates = ['failed', 'held', 'succeeded', 'missing'] as const satisfies readonly (
  | DeliveryState
  | 'missing'
)[];
export type RecoverableState = (typeof recoverableStates)[number];

export interface Recovery {
  id: string;
  since: Date;
  until: Date;
  states: RecoverableState[];
  state: 'running' | 'done' | 'cancelled';
  resent: number;
  /** Deliveries created for events from before the subscription. */
  added: number;
  createdAt: Date;
}

interface RecoveryRow {
  id: string;
  since: Date;
  until: Date;
  states: RecoverableState[];
  state: Recovery['state'];
  resent: string;
  added: string;
  created_at: Date;
}

/** @returns undefined if the maximum number is running */
export async function startRecovery(
  db: Database | Transaction,
  lane: number,
  range: { since: Date; until: Date | null; states: RecoverableState[] },
): Promise<Recovery | undefined> {
  return inTransaction(db, async (tx) => {
    // An event is stored under the day on which its transaction began, but its time is that of the insert.
    const firstDay = sql`(${range.since}::timestamptz at time zone 'utc' - interval '1 minute')::date`;
    // Serializes concurrent starts, so that each one counts those before it.
    await sql`select from subscriptions where lane = ${lane} for no key update`.execute(tx);
    const { rows } = await sql<RecoveryRow>`
      insert into recoveries (id, lane, turn, since, until, states, missing_day)
      select ${newId()}, lane, coalesce(
          account_id::text, (select 'creator:' || c.account_id from app_creators c where c.client_id = subscriptions.client_id), client_id),
        ${range.since}, coalesce(${range.until}::timestamptz, now()), ${range.states}::text[],
        case when 'missing' = any(${range.states}::text[]) and ${range.since}::timestamptz < created_at
          then ${firstDay} end
      from subscriptions where lane = ${lane}
        and (select count(*) from recoveries where lane = ${lane} and state = 'running') < ${runningMax}::int
      returning *`.execute(tx);
    return rows[0] && toRecovery(rows[0]);
  });
}

export async function findRecovery(db: Database, lane: number, id: string): Promise<Recovery | undefined> {
  const { rows } = await sql<RecoveryRow>`
    select * from recoveries where id = ${id} and lane = ${lane}`.execute(db);
  return rows[0] && toRecovery(rows[0]);
}

/** Cancels a recovery. Deliveries that are already due are still sent. @returns whether the recovery was running */
export async function cancelRecovery(db: Database, lane: number, id: string): Promise<boolean> {
  const { rows } = await sql`
    update recoveries set state = 'cancelled', updated_at = now()
    where id = ${id} and lane = ${lane} and state = 'running' returning id`.execute(db);
  return rows.length > 0;
}

interface Job {
  id: string;
  turn: string;
  lane: string;
  position: string;
  phase: 'resending' | 'missing';
  is_active: boolean;
}

/** Milliseconds until a step runs again that found the lane locked. */
const lockedPauseMs = 100;
/**
 * Milliseconds until a step looks again at an account or app that has only recoveries of disabled subscriptions: at least, and as a multiple
 * of the time of the look. They wait, and may be thousands.
 */
const lookPauseMsMin = 1_000;
const lookPauseFactor = 20;

/**
 * Runs one step of one job: of the next account or app, the job with the oldest step. A job whose step fails goes
 * behind the others.
 * @param kinds kinds that can be replayed
 * @param turns updated by this call
 * @returns whether there was a step to run
 * @throws Error of the step
 */
export async function stepRecovery(
  db: Database,
  kinds: KindArrays,
  turns = new RecoveryTurns(),
): Promise<boolean> {
  let isFromStart = turns.after === '';
  for (;;) {
    const found = await stepAfter(db, kinds, turns);
    if (found === 'step') return true;
    if (found === 'nothing') continue;
    // Once around, however many have nothing that may run: those that were looked at first may be due again.
    if (isFromStart && !turns.advance()) return false;
    isFromStart = true;
    turns.after = '';
  }
}

/** `nothing`: the next account or app has nothing that may run now; `end`: there is no next one. */
type Found = 'step' | 'nothing' | 'end';

async function stepAfter(db: Database, kinds: KindArrays, turns: RecoveryTurns): Promise<Found> {
  let begun: Job | undefined;
  let isEnd = false;
  let begunAt = 0;
  const step = db.transaction().execute(async (tx) => {
    // Only now: the connection may have been in use.
    begunAt = performance.now();
    const turn = await nextTurn(tx, turns);
    isEnd = turn === undefined;
    if (turn === undefined) return false;
    turns.after = turn;
    const { rows: jobs } = await sql<Job>`
      select r.id, r.turn, r.lane, r.position, r.phase, s.state = 'active' as is_active
      from recoveries r join subscriptions s on s.lane = r.lane
      where r.state = 'running' and s.state <> 'disabled' and r.turn = ${turn}
      order by r.updated_at limit 1 for update of r skip locked`.execute(tx);
    const job = jobs[0];
    if (job === undefined) {
      const tookMs = performance.now() - begunAt;
      turns.wait(turn, Math.max(lookPauseMsMin, lookPauseFactor * tookMs));
      return false;
    }
    begun = job;
    if (!job.is_active) {
      await sql`update recoveries set state = 'cancelled', updated_at = now() where id = ${job.id}`.execute(
        tx,
      );
      return false;
    }
    return (await (job.phase === 'resending' ? resend(tx, job) : addMissing(tx, job.id, kinds))) > 0;
  });
  const use = () => begun !== undefined && turns.use(begun.turn, performance.now() - begunAt);
  try {
    // After the commit: a statement that records outcomes locks the same rows in another order. If this node dies in between, a
    // sweep finds the lane.
    if ((await step.finally(use)) && begun !== undefined) await wakeLane(db, Number(begun.lane));
  } catch (error) {
    if (begun === undefined) throw error;
    await sql`update recoveries set updated_at = now() where id = ${begun.id} and state = 'running'`.execute(
      db,
    );
    if (!isInTheWay(error)) throw error;
    turns.use(begun.turn, lockedPauseMs);
    await sleep(lockedPauseMs);
  }
  if (begun !== undefined) return 'step';
  return isEnd ? 'end' : 'nothing';
}

/** The next account or app with recoveries that does not rest. Reads one row of each that it passes. */
async function nextTurn(tx: Transaction, { after, resting }: RecoveryTurns): Promise<string | undefined> {
  const first = (than: RawBuilder<unknown>) =>
    sql`(select min(turn) from recoveries where state = 'running' and turn > ${than})`;
  const { rows } = await sql<{ turn: string }>`
    with recursive each as (
      select ${first(sql`${after}`)} as turn
      union all
      select ${first(sql`each.turn`)} from each where each.turn = any(${resting}::text[])
    )
    select turn from each where turn is not null and turn <> all(${resting}::text[])`.execute(tx);
  return rows[0]?.turn;
}

/** Whether the lane was locked, or another recovery has just added the same event (`unique_violation`). */
function isInTheWay(error: unknown): boolean {
  return isLocked(error) || (error as { code?: unknown } | null)?.code === '23505';
}

/** @returns the number of deliveries that will be sent again */
async function resend(tx: Transaction, job: Job): Promise<number> {
  const lane = Number(job.lane);
  const condition = sql`d.sequence > ${job.position} and d.sequence <= ${job.position}::bigint + ${stepMax}::int`;
  const { rows } = await sql<{ last: string | null; resent: string }>`
      with step as materialized (${selectDeliveries(lane, condition)}),
      job as materialized (select * from recoveries where id = ${job.id}),
      again as (
        insert into retries (lane, sequence, day, state, attempts, due_at, resends)
        select step.lane, step.sequence, step.day, case when step.state = 'held' then 'pending' else step.state end,
          step.attempt_count, now(), 1
        from step, job
        where step.state = any(job.states) and step.created_at >= job.since and step.created_at < job.until
          and step.attempt_count < ${attemptsMax}::int
        on conflict (lane, sequence) do update set
          resends = greatest(retries.resends, 1), due_at = now(),
          state = case when retries.state = 'held' then 'pending' else retries.state end
        returning 1
      )
      select (select max(sequence) from step) as last, (select count(*) from again) as resent`.execute(tx);
  const { last, resent } = rows[0] as { last: string | null; resent: string };
  // Skips sequences whose deliveries retention has dropped.
  await sql`
      update recoveries set
        position = coalesce(oldest - 1, ${job.position}::bigint + ${stepMax}::int), resent = resent + ${resent}::bigint,
        updated_at = now(), state = case when is_through and missing_day is null then 'done' else 'running' end,
        phase = case when is_through then 'missing' else 'resending' end
      from (
        select oldest, ${last}::bigint is null and oldest is null as is_through
        from (
          select min(sequence) as oldest from deliveries
          where ${last}::bigint is null and lane = ${lane} and sequence > ${job.position}::bigint + ${stepMax}::int
        ) as rest
      ) as step
      where recoveries.id = ${job.id}`.execute(tx);
  return Number(resent);
}

/** Walks through the stored events day by day. @returns the number of deliveries added */
async function addMissing(tx: Transaction, id: string, kinds: KindArrays): Promise<number> {
  const { rows } = await sql<RecoveryRow & { lane: string; day: string; position: string }>`
    select r.*, greatest(missing_day, oldest)::text as day,
      case when missing_day < oldest then 0 else missing_position end as position
    from recoveries r, (
      -- Skips a day that is about to be dropped.
      select (now() at time zone 'utc')::date - (${keptDays.deliveries} - 1) as oldest
    ) as kept
    where r.id = ${id}`.execute(tx);
  const { lane, since, until, day, position } = rows[0] as (typeof rows)[0];
  return replayStep(tx, id, kinds, { lane: Number(lane), since, until, day, position });
}

function toRecovery(row: RecoveryRow): Recovery {
  return {
    id: row.id,
    since: row.since,
    until: row.until,
    states: row.states,
    state: row.state,
    resent: Number(row.resent),
    added: Number(row.added),
    createdAt: row.created_at,
  };
}
