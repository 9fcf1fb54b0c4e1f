/**
 * Health of subscriptions: outcomes counted per lane and time bucket. Each node counts outcomes in memory and adds them to the
 * table `delivery_stats` every few seconds; with many lanes slowly, because deliveries come first. A node that is killed loses what
 * it has not added: the statistics are approximate, the log is exact. Owns the table `delivery_stats`.
 *
 *   outcome written → counted in memory → added to its buckets (5 minutes and 1 hour; per lane and in total) → deleted by age
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { type RawBuilder, sql } from 'kysely';
import { bigintArray, doubleArray, integerArray, textArray } from '../../database/arrays.ts';
import { deleteBatches } from '../../database/batches.ts';
import type { Database } from '../../database/database.ts';
import type { AttemptError } from '../sending/attempt_error.ts';

export const outcomeNames = ['attempts', 'succeeded', 'failed', 'retried', 'cancelled'] as const;
export type OutcomeName = (typeof outcomeNames)[number];

/** Upper bounds of the latency histogram in milliseconds. Longer attempts count in the last bucket. */
export const latencyBoundsMs = [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 15_000] as const;

export const errorClasses = [
  ...(['dns', 'connect', 'tls', 'timeout', 'protocol', 'refused'] as const),
  ...(['redirect', 'client_error', 'server_error', 'other'] as const),
] as const;
export type ErrorClass = (typeof errorClasses)[number];

const latencyFrom = outcomeNames.length;
const errorsFrom = latencyFrom + latencyBoundsMs.length;
const countsLength = errorsFrom + errorClasses.length;

/** Length of the two kinds of buckets, and how many days each is kept. */
export const fineSeconds = 300;
export const coarseSeconds = 3_600;
export const fineDays = 2;
export const coarseDays = 31;

/** Stands for the total of all lanes. */
export const allLanes = 0;

export interface CountedOutcome {
  lane: number;
  /** Null if nothing was sent. */
  attempt: { durationMs: number; error: AttemptError | null; status: number | null } | null;
  retry: { state: string } | null;
}

/** Maximum buckets that wait to be written. Beyond that the oldest are dropped. */
const waitingMax = 50_000;
/** Buckets of one statement. The arrays of more would keep the engine from sending for too long. */
const writtenMax = 500;
/**
 * After each statement but the last, the next one waits this many times as long as the statement took, so they take a tenth of the
 * time. With more waiting buckets than this they do not wait.
 */
const restFactor = 9;
const restingMax = waitingMax / 2;

export class DeliveryCounts {
  readonly #db: Database;
  /** Keyed by lane and the start of the bucket in seconds since 1970. */
  readonly #waiting = new Map<string, number[]>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** @param now milliseconds since 1970 */
  add(outcomes: readonly CountedOutcome[], now: number): void {
    const bucket = Math.floor(now / 1_000 / fineSeconds) * fineSeconds;
    for (const outcome of outcomes) {
      const key = `${outcome.lane} ${bucket}`;
      let counts = this.#waiting.get(key);
      if (counts === undefined) {
        counts = new Array<number>(countsLength).fill(0);
        this.#waiting.set(key, counts);
        if (this.#waiting.size > waitingMax) {
          this.#waiting.delete(this.#waiting.keys().next().value as string);
        }
      }
      countOutcome(counts, outcome);
    }
  }

  /**
   * Adds the counts to the table. Counts that cannot be written wait for the next call. One call runs at a time.
   * @param hurry ends the pauses
   */
  async flush(hurry: AbortSignal): Promise<void> {
    const keys = [...this.#waiting.keys()];
    for (let first = 0; first < keys.length; first += writtenMax) {
      const beganAt = performance.now();
      await this.#write(keys.slice(first, first + writtenMax));
      const restMs = (performance.now() - beganAt) * restFactor;
      const mayRest = first + writtenMax < keys.length && this.#waiting.size <= restingMax;
      if (mayRest) await sleep(restMs, undefined, { signal: hurry }).catch(() => {});
    }
  }

  /** Outcomes that are counted during a pause are written with the others of their bucket. */
  async #write(keys: readonly string[]): Promise<void> {
    const taken = keys.flatMap((key) => {
      const counts = this.#waiting.get(key);
      this.#waiting.delete(key);
      return counts === undefined ? [] : [[key, counts] as const];
    });
    if (taken.length === 0) return;
    try {
      await addToBuckets(this.#db, taken);
    } catch (error) {
      for (const [key, counts] of taken) {
        const newer = this.#waiting.get(key);
        this.#waiting.set(key, newer === undefined ? counts : sum(counts, newer));
      }
      throw error;
    }
  }
}

function countOutcome(counts: number[], { attempt, retry }: CountedOutcome): void {
  const increment = (index: number) => {
    counts[index] = (counts[index] ?? 0) + 1;
  };
  const outcome = (name: OutcomeName) => increment(outcomeNames.indexOf(name));
  if (attempt === null) {
    if (retry?.state === 'cancelled') outcome('cancelled');
    return;
  }
  outcome('attempts');
  const { durationMs, error, status } = attempt;
  const at = latencyBoundsMs.findIndex((bound) => durationMs <= bound);
  increment(latencyFrom + (at < 0 ? latencyBoundsMs.length - 1 : at));
  if (error === null) {
    outcome('succeeded');
    return;
  }
  increment(errorsFrom + errorClasses.indexOf(classOf(error, status)));
  if (retry?.state === 'pending') outcome('retried');
  else if (retry?.state === 'failed') outcome('failed');
}

const classes: Readonly<Record<Exclude<AttemptError, 'unexpected_status'>, ErrorClass>> = {
  dns_error: 'dns',
  address_refused: 'refused',
  connect_error: 'connect',
  connect_timeout: 'timeout',
  tls_error: 'tls',
  timeout: 'timeout',
  connection_error: 'connect',
  protocol_error: 'protocol',
  conversion_error: 'other',
  body_too_large: 'other',
  auth_error: 'other',
};

function classOf(error: AttemptError, status: number | null): ErrorClass {
  if (error !== 'unexpected_status') return classes[error] ?? 'other';
  const byHundreds: Record<number, ErrorClass> = { 3: 'redirect', 4: 'client_error', 5: 'server_error' };
  return byHundreds[Math.floor((status ?? 0) / 100)] ?? 'other';
}

function sum(a: readonly number[], b: readonly number[]): number[] {
  return a.map((count, index) => count + (b[index] ?? 0));
}

interface BucketRow {
  lane: number;
  seconds: number;
  bucket: number;
  counts: readonly number[];
}

async function addToBuckets(
  db: Database,
  counted: readonly (readonly [string, readonly number[]])[],
): Promise<void> {
  const rows = new Map<string, BucketRow>();
  for (const [key, counts] of counted) {
    const [own = 0, at = 0] = key.split(' ').map(Number);
    for (const lane of [own, allLanes]) {
      for (const seconds of [fineSeconds, coarseSeconds]) {
        const bucket = Math.floor(at / seconds) * seconds;
        const name = `${lane} ${seconds} ${bucket}`;
        const known = rows.get(name)?.counts;
        rows.set(name, { lane, seconds, bucket, counts: known === undefined ? counts : sum(known, counts) });
      }
    }
  }
  // The same order on every node prevents deadlocks.
  const sorted = [...rows.values()].sort(
    (a, b) => a.lane - b.lane || a.seconds - b.seconds || a.bucket - b.bucket,
  );
  await sql`
    insert into delivery_stats as s (lane, seconds, bucket, counts)
    select lane, seconds, to_timestamp(bucket), string_to_array(counts, ',')::bigint[]
    from unnest(
      ${bigintArray(sorted.map(({ lane }) => lane))}::bigint[],
      ${integerArray(sorted.map(({ seconds }) => seconds))}::integer[],
      ${doubleArray(sorted.map(({ bucket }) => bucket))}::float8[],
      ${textArray(sorted.map(({ counts }) => counts.join(',')))}::text[]
    ) as given (lane, seconds, bucket, counts)
    on conflict (lane, seconds, bucket) do update set counts = add_counts(s.counts, excluded.counts)`.execute(
    db,
  );
}

/** Deletes old buckets. @param now the time that counts as now */
export async function dropOldStats(db: Database, now: RawBuilder<unknown>): Promise<void> {
  for (const [seconds, days] of [
    [fineSeconds, fineDays + 1],
    [coarseSeconds, coarseDays],
  ] as const) {
    const isOld = sql`seconds = ${seconds} and bucket < ${now} - make_interval(days => ${days}::int)`;
    await deleteBatches(db, 'delivery_stats', isOld);
  }
}

export interface StatsRange {
  since: Date;
  until: Date;
  seconds: number;
}

export interface Stats {
  outcomes: Readonly<Record<OutcomeName, number>>;
  latencyMs: { p50: number | null; p90: number | null; p99: number | null };
  errors: Partial<Record<ErrorClass, number>>;
}

export interface StatsBucket extends Stats {
  at: Date;
}

/** What was counted in a bucket of some subscriptions together. */
export interface BucketCounts {
  at: Date;
  counts: readonly number[];
}

/** @param lanes only `allLanes` for the whole server */
export async function readStats(
  db: Database,
  lanes: readonly number[],
  range: StatsRange,
): Promise<{ buckets: StatsBucket[]; totals: Stats }> {
  return describeCounts(await readCounts(db, lanes, range));
}

/** @returns the buckets in their order */
export async function readCounts(
  db: Database,
  lanes: readonly number[],
  { since, until, seconds }: StatsRange,
): Promise<BucketCounts[]> {
  // Summed by PostgreSQL: a thousand subscriptions have 744,000 buckets in a month.
  const sums = Array.from(
    { length: countsLength },
    (_, index) => sql`coalesce(sum(s.counts[${sql.lit(index + 1)}]), 0)`,
  );
  const { rows } = await sql<{ bucket: Date; counts: string }>`
    select s.bucket, concat_ws(',', ${sql.join(sums)}) as counts
    from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    cross join lateral (
      select bucket, counts from delivery_stats
      where lane = given.lane and seconds = ${seconds}::int
        and bucket > ${since}::timestamptz - make_interval(secs => ${seconds}) and bucket < ${until}
      offset 0
    ) as s
    group by s.bucket
    order by s.bucket`.execute(db);
  return rows.map(({ bucket, counts }) => ({ at: bucket, counts: counts.split(',').map(Number) }));
}

/** Adds the counts of different subscriptions. @returns the buckets in their order */
export function addCounts(a: readonly BucketCounts[], b: readonly BucketCounts[]): BucketCounts[] {
  const byTime = new Map(a.map((bucket) => [bucket.at.getTime(), bucket]));
  for (const { at, counts } of b) {
    const known = byTime.get(at.getTime())?.counts;
    byTime.set(at.getTime(), { at, counts: known === undefined ? counts : sum(known, counts) });
  }
  return [...byTime.values()].sort((one, other) => one.at.getTime() - other.at.getTime());
}

export function describeCounts(counted: readonly BucketCounts[]): { buckets: StatsBucket[]; totals: Stats } {
  const total = counted.reduce<readonly number[]>((all, { counts }) => sum(counts, all), []);
  return { buckets: counted.map(({ at, counts }) => ({ at, ...describe(counts) })), totals: describe(total) };
}

function describe(counts: readonly number[]): Stats {
  const at = (index: number) => counts[index] ?? 0;
  const latencies = latencyBoundsMs.map((_bound, index) => at(latencyFrom + index));
  const errors = errorClasses
    .map((name, index): [ErrorClass, number] => [name, at(errorsFrom + index)])
    .filter(([, count]) => count > 0);
  return {
    outcomes: Object.fromEntries(outcomeNames.map((name, index) => [name, at(index)])) as Stats['outcomes'],
    latencyMs: {
      p50: percentile(latencies, 0.5),
      p90: percentile(latencies, 0.9),
      p99: percentile(latencies, 0.99),
    },
    errors: Object.fromEntries(errors),
  };
}

/**
 * An estimate, to a tenth of a millisecond: latencies are taken as evenly spread within the histogram bucket that contains the
 * percentile, as Prometheus' `histogram_quantile` does.
 */
export function percentile(latencies: readonly number[], part: number): number | null {
  const rank = latencies.reduce((all, count) => all + count, 0) * part;
  let below = 0;
  for (const [index, count] of latencies.entries()) {
    if (count > 0 && below + count >= rank) {
      const from = latencyBoundsMs[index - 1] ?? 0;
      const to = latencyBoundsMs[index] ?? from;
      return Math.round((from + ((to - from) * (rank - below)) / count) * 10) / 10;
    }
    below += count;
  }
  return null;
}

export interface Backlog {
  pending: number;
  isCapped: boolean;
  oldestAt: Date | null;
}

/** Deliveries are counted one by one up to this number, and by the lane's ends beyond it. */
const backlogMax = 10_000;
const countedMax = 1_000;

/**
 * Counts the deliveries that wait to be sent by active subscriptions. A lane takes one scan of an index of each partition. Looking up each delivery
 * took a hundred times as many pages, and with a year of partitions most of the time.
 */
export async function readBacklog(db: Database, lanes: readonly number[]): Promise<Backlog> {
  const { rows } = await sql<{ pending: string; oldest: Date | null }>`
    select fresh.count + retried.count as pending, (
      select min((select created_at from deliveries d
        where d.lane = p.lane and d.sequence = first.sequence and d.day = first.day))
      from (values (fresh.sequence, fresh.day), (retried.sequence, retried.day)) as first (sequence, day)
    ) as oldest
    from (
      -- Selects these lanes first, so that no other lane's ends are read.
      select p.lane, p.cursor, newest_sequence(l) as newest
      from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
      join subscriptions s on s.lane = given.lane and s.state = 'active' and s.url is not null
      join lane_progress p on p.lane = s.lane
      join lanes l on l.id = s.lane
      offset 0
    ) as p
    cross join lateral (
      select greatest(count(*), case when p.newest - p.cursor > ${countedMax}
          then least(p.newest - p.cursor, ${backlogMax + 1}) else 0 end) as count,
        min(sequence) as sequence, (array_agg(day order by sequence))[1] as day
      from (
        select sequence, day from deliveries
        where p.newest > p.cursor
          and lane = p.lane and sequence > p.cursor and sequence <= p.cursor + ${countedMax}
        -- The cursor lags: deliveries past it may have been attempted already. A join of these sets may be one that compares all with all.
        except (
          select sequence, day from attempts
          where p.newest > p.cursor
            and lane = p.lane and sequence > p.cursor and sequence <= p.cursor + ${countedMax}
          union all
          select sequence, day from retries
          where lane = p.lane and sequence > p.cursor and sequence <= p.cursor + ${countedMax})
      ) as unattempted
    ) as fresh
    cross join lateral (
      select count(*) as count, min(sequence) as sequence, (array_agg(day order by sequence))[1] as day
      from (
        select sequence, day from retries
        where lane = p.lane and state = 'pending' order by sequence limit ${countedMax}
      ) as few
    ) as retried`.execute(db);
  const pending = rows.reduce((all, row) => all + Number(row.pending), 0);
  return {
    pending: Math.min(pending, backlogMax),
    isCapped: pending > backlogMax || rows.some((row) => Number(row.pending) >= countedMax),
    oldestAt: oldestOf(rows.map(({ oldest }) => oldest)),
  };
}

/** Adds the backlogs of different subscriptions. */
export function addBacklogs(a: Backlog, b: Backlog): Backlog {
  const pending = a.pending + b.pending;
  const isCapped = a.isCapped || b.isCapped || pending > backlogMax;
  return { pending: Math.min(pending, backlogMax), isCapped, oldestAt: oldestOf([a.oldestAt, b.oldestAt]) };
}

function oldestOf(times: readonly (Date | null)[]): Date | null {
  return times.reduce(
    (oldest, time) => (oldest === null || (time !== null && time < oldest) ? time : oldest),
    null,
  );
}
