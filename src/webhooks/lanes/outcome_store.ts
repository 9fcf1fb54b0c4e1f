/**
 * Writes the outcomes of all lanes together in one statement. The statement is fenced by the leases: a node that lost
 * a lane changes nothing of it. Owns `attempts` and `retries`, and with lane_store.ts `lane_progress`.
 */

import { sql } from 'kysely';
import {
  bigintArray,
  booleanArray,
  byteaArray,
  charArray,
  dateArray,
  doubleArray,
  integerArray,
  realArray,
  smallintArray,
  textArray,
} from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import { type AttemptRecord, attemptNumberMax, type Outcome } from './outcome_policy.ts';

/** A lane's progress, including the outcomes that are written with it. */
export interface Progress {
  lane: number;
  cursor: number;
  failures: number;
  /** Milliseconds from now. */
  pauseMs: number;
  /**
   * Whether the lane's row can stay as it is: only the cursor changed, and not by much. A cursor may lag, because the attempts
   * past it show what was done.
   */
  mayLag: boolean;
}

/** Returns the outcomes whose attempts are not in the log. Used after a statement whose response was lost. */
export async function excludeWritten(db: Database, outcomes: readonly Outcome[]): Promise<Outcome[]> {
  const attempted = outcomes.filter(({ attempt }) => attempt !== null);
  const { rows } = await sql<{ lane: string; sequence: string; number: number }>`
    select a.lane, a.sequence, a.number
    from unnest(
      ${bigintArray(attempted.map(({ lane }) => lane))}::bigint[],
      ${bigintArray(attempted.map(({ sequence }) => sequence))}::bigint[],
      ${bigintArray(attempted.map(({ attempt }) => attempt?.number ?? 0))}::bigint[]
    ) as given (lane, sequence, number)
    join attempts a on a.lane = given.lane and a.sequence = given.sequence and a.number = given.number
    where a.number < ${attemptNumberMax}`.execute(db);
  const written = new Set(rows.map(({ lane, sequence, number }) => `${lane} ${sequence} ${number}`));
  return outcomes.filter(
    ({ lane, sequence, attempt }) => !written.has(`${lane} ${sequence} ${attempt?.number}`),
  );
}

/** Returns the lanes whose outcomes cannot be written now, because another session has locked a row of theirs. */
export async function findLockedLanes(db: Database, outcomes: readonly Outcome[]): Promise<number[]> {
  const retried = outcomes.filter(({ retry, hadRetry }) => retry !== null || hadRetry);
  const { rows } = await sql<{ lane: string }>`
    with given as materialized (
      select distinct lane from unnest(${bigintArray(outcomes.map(({ lane }) => lane))}::bigint[]) as lane
    ),
    free as materialized (
      select given.lane from given
      cross join lateral (
        select from lane_progress where lane = given.lane for no key update skip locked
      ) as progress
    ),
    retried as materialized (
      select each.lane, each.sequence
      from unnest(
        ${bigintArray(retried.map(({ lane }) => lane))}::bigint[], ${bigintArray(retried.map(({ sequence }) => sequence))}::bigint[]
      ) as each (lane, sequence)
      cross join lateral (select from retries where lane = each.lane and sequence = each.sequence offset 0) as row
    ),
    free_retries as materialized (
      select retried.lane, retried.sequence from retried
      cross join lateral (
        select from retries where lane = retried.lane and sequence = retried.sequence for update skip locked
      ) as row
    )
    select lane from given where lane not in (select lane from free)
    union
    select lane from retried where (lane, sequence) not in (select lane, sequence from free_retries)`.execute(
    db,
  );
  return rows.map(({ lane }) => Number(lane));
}

/** Whether the outcomes of a lane had to wait for another session for too long. */
export function isInTheWay(error: unknown): boolean {
  return /^(55P03|40P01)$/.test(String((error as { code?: unknown } | null)?.code));
}

/** Milliseconds that the statement waits for a row. Shorter than PostgreSQL takes to find a deadlock. */
const lockTimeoutMs = 100;

/**
 * A condition on a row with a column `lane`. In this form the lanes are hashed; a join would compare them one by one,
 * because the planner assumes ten elements for an array parameter.
 */
const isLeased = sql`case when lane in (select lane from leased) then true end`;

/**
 * Writes outcomes and progress in one transaction.
 * @returns lanes whose lease this node has lost; nothing is written for them
 * @throws Error of the database; with `isInTheWay` if another session has locked a row of a lane
 */
export async function writeOutcomes(
  db: Database,
  node: string,
  progress: readonly Progress[],
  outcomes: readonly Outcome[],
): Promise<number[]> {
  const now = performance.now();
  const leased = storeProgress(node, progress);
  const added = insertAttempts(
    outcomes.filter(({ attempt }) => attempt !== null),
    now,
  );
  const lost = sql`
    select given.lane from unnest(${bigintArray(progress.map(({ lane }) => lane))}::bigint[]) as given (lane)
    where given.lane not in (select lane from leased)`;
  const retried = outcomes.filter(({ retry }) => retry !== null);
  const finished = outcomes.filter(({ retry, hadRetry }) => retry === null && hadRetry);
  const { rows } =
    retried.length === 0 && finished.length === 0
      ? await sql<{ lane: string }>`with ${leased}, ${added} ${lost}`.execute(db)
      : await sql<{ lane: string }>`
          with ${leased}, ${added}, ${keepRetries(retried, now)}, ${endRetries(finished)} ${lost}`.execute(
          db,
        );
  return rows.map(({ lane }) => Number(lane));
}

/** Common table expression `leased`: the lanes that this node still leases, with their progress stored. */
function storeProgress(node: string, progress: readonly Progress[]) {
  const advanced = progress.filter(({ mayLag }) => !mayLag);
  const lagging = progress.filter(({ mayLag }) => mayLag);
  // Locks only the node's own row. A node that takes over its lanes deletes that row first (node.ts), so lanes that this
  // statement only checks need no lock.
  return sql`
    node as materialized (select id from nodes where id = ${node}::bigint for key share),
    -- Of this statement only. Whoever ends this node's membership is waited for.
    patience as materialized (
      select set_config('lock_timeout', ${String(lockTimeoutMs)}, true) from (select count(*) from node) as known
    ),
    moved as (
      update lane_progress set
        cursor = greatest(lane_progress.cursor, given.cursor),
        failures = given.failures,
        failing_since = case when given.failures > 0 then coalesce(lane_progress.failing_since, now()) end,
        paused_until = case when given.pause_ms > 0 then now() + given.pause_ms * interval '1 millisecond' end
      from unnest(
        ${bigintArray(advanced.map(({ lane }) => lane))}::bigint[],
        ${bigintArray(advanced.map(({ cursor }) => cursor))}::bigint[],
        ${bigintArray(advanced.map(({ failures }) => failures))}::bigint[],
        ${doubleArray(advanced.map(({ pauseMs }) => pauseMs))}::float8[]
      ) as given (lane, cursor, failures, pause_ms)
      cross join patience
      where lane_progress.lane = given.lane and lane_progress.owner = (select id from node)
      returning lane_progress.lane
    ),
    leased as materialized (
      select lane from moved
      union all
      select given.lane from unnest(${bigintArray(lagging.map(({ lane }) => lane))}::bigint[]) as given (lane)
      cross join patience
      cross join lateral (
        select from lane_progress where lane = given.lane and owner = (select id from node) offset 0
      ) as progress
    )`;
}

/** Common table expression `added`: one row in `attempts` for each attempt of a leased lane. */
function insertAttempts(attempted: readonly Outcome[], now: number) {
  const attempts = attempted.map(({ attempt }) => attempt as AttemptRecord);
  return sql`
    added as (
      insert into attempts (
        day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms, first_byte_ms,
        error, connection, headers, body, response_omitted)
      select day, lane, sequence, now() - ago_ms * interval '1 millisecond', number, trigger, status,
        truncated, revision, duration_ms, first_byte_ms, error, connection, headers, body, nullif(response_omitted, false)
      from (
        -- Arrays are unnested in the select list and not in "from", where each would be materialized first.
        select unnest(${dateArray(attempted.map(({ day }) => day))}::date[]) as day,
          unnest(${bigintArray(attempted.map(({ lane }) => lane))}::bigint[]) as lane,
          unnest(${bigintArray(attempted.map(({ sequence }) => sequence))}::bigint[]) as sequence,
          unnest(${doubleArray(attempts.map(({ startedAt }) => now - startedAt))}::float8[]) as ago_ms,
          unnest(${smallintArray(attempts.map(({ number }) => number))}::smallint[]) as number,
          unnest(${charArray(attempts.map(({ trigger }) => trigger))}::"char"[]) as trigger,
          unnest(${smallintArray(attempts.map(({ status }) => status))}::smallint[]) as status,
          unnest(${booleanArray(attempts.map(({ truncated }) => truncated))}::boolean[]) as truncated,
          unnest(${integerArray(attempts.map(({ revision }) => revision))}::integer[]) as revision,
          unnest(${realArray(attempts.map(({ durationMs }) => durationMs))}::real[]) as duration_ms,
          unnest(${realArray(attempts.map(({ firstByteMs }) => firstByteMs))}::real[]) as first_byte_ms,
          unnest(${textArray(attempts.map(({ error }) => error))}::text[]) as error,
          unnest(${textArray(attempts.map(({ connection }) => connection))}::text[]) as connection,
          unnest(${textArray(attempts.map(({ headers }) => headers))}::text[]) as headers,
          unnest(${byteaArray(attempts.map(({ body }) => body))}::bytea[]) as body,
          unnest(${booleanArray(attempts.map(({ isResponseOmitted = false }) => isResponseOmitted))}::boolean[]) as response_omitted
      ) as given
      where ${isLeased}
    )`;
}

function keepRetries(kept: readonly Outcome[], now: number) {
  const dueMs = kept.map(({ retry, attempt }) => {
    if (retry === null || retry.dueMs === null) return null;
    // The pause counts from the end of the attempt, not from this statement.
    return retry.dueMs - (attempt === null ? 0 : now - attempt.startedAt - attempt.durationMs);
  });
  return sql`
    kept as (
      insert into retries (lane, sequence, day, state, attempts, due_at, resends)
      select lane, sequence, day::date, state, attempts, now() + due_ms * interval '1 millisecond', resends
      from unnest(
        ${bigintArray(kept.map(({ lane }) => lane))}::bigint[],
        ${bigintArray(kept.map(({ sequence }) => sequence))}::bigint[],
        ${textArray(kept.map(({ day }) => day))}::text[],
        ${textArray(kept.map(({ retry }) => retry?.state ?? null))}::text[],
        ${bigintArray(kept.map(({ retry }) => retry?.attempts ?? 0))}::bigint[],
        ${doubleArray(dueMs)}::float8[],
        ${bigintArray(kept.map(({ wasManual }) => (wasManual ? 1 : 0)))}::bigint[]
      ) as given (lane, sequence, day, state, attempts, due_ms, resends)
      where ${isLeased}
      -- excluded.resends is the number of resends that the attempt fulfilled.
      on conflict (lane, sequence) do update set
        state = excluded.state, attempts = excluded.attempts,
        resends = greatest(retries.resends - excluded.resends, 0),
        due_at = case when retries.resends > excluded.resends then now() else excluded.due_at end
    )`;
}

/**
 * Common table expressions for deliveries that succeeded: deletes their row, unless another resend was requested.
 */
function endRetries(gone: readonly Outcome[]) {
  const given = sql`
    given as materialized (
      select * from unnest(
        ${bigintArray(gone.map(({ lane }) => lane))}::bigint[],
        ${bigintArray(gone.map(({ sequence }) => sequence))}::bigint[],
        ${bigintArray(gone.map(({ wasManual }) => (wasManual ? 1 : 0)))}::bigint[]
      ) as given (lane, sequence, resends) where ${isLeased}
    )`;
  return sql`
    ${given},
    ended as (
      delete from retries using given
      where retries.lane = given.lane and retries.sequence = given.sequence and retries.resends <= given.resends
    ),
    once_more as (
      update retries set state = 'succeeded', attempts = least(retries.attempts + 1, 32767),
        resends = retries.resends - given.resends, due_at = now()
      from given
      where retries.lane = given.lane and retries.sequence = given.sequence and retries.resends > given.resends
    )`;
}
