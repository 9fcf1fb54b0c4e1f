/** Prometheus metrics of the worker: how far behind it is, results of attempts, and what is in flight. */

import { sql } from 'kysely';
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { bigintArray, textArray } from '../../database/arrays.ts';
import type { Database } from '../../database/database.ts';
import type { Visit } from '../fan_out/outbox_selection.ts';
import { countExpiringParked } from '../log/retention.ts';
import type { AttemptError } from '../sending/attempt_error.ts';

/** Upper bounds in seconds, up to the end of a retry schedule. */
const lagBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3_600, 86_400];
/** Parked events are counted up to this number. */
const parkedMax = 10_000;
/** Maximum subscriptions that are named, those with the most attempts in flight. */
const busiestMax = 10;

export interface WorkerStatus {
  inFlight: number;
  lanes: number;
  waiting: number;
  /** Bytes of the bodies of waiting deliveries and of those in flight; each body counts once. */
  waitingBytes: number;
  /** Accounts with events that fan-out has not processed, the longest waiting ones; undefined if another node fans out. */
  accounts: Visit[] | undefined;
  /** Attempts in flight of each subscription that has any. */
  busy: () => { subscription: string; inFlight: number }[];
}

export interface WorkerMetrics {
  /** Since the start. */
  readonly attempts: number;
  attempt(error: AttemptError | null): void;
  /** @param seconds from an event to the first attempt of its delivery */
  lag(seconds: number): void;
  /** The owner of a subscription was warned that it will be disabled, or it was disabled. */
  failing(what: 'half' | 'last' | 'disabled'): void;
  claimed(lanes: number): void;
  lost(lanes: number): void;
}

export function createWorkerMetrics(
  registry: Registry,
  db: Database,
  status: () => WorkerStatus,
): WorkerMetrics {
  const registers = [registry];
  const countAttempt = attemptCounter(registers);
  const lag = new Histogram({
    name: 'nuncio_delivery_lag_seconds',
    help: 'Seconds from an event to the first attempt of its delivery.',
    buckets: lagBuckets,
    registers,
  });
  const failing = new Counter({
    name: 'nuncio_subscriptions_failing_total',
    help: 'Failing subscriptions: warned at half of the time, warned a day before (last), and disabled.',
    labelNames: ['what'],
    registers,
  });
  for (const what of ['half', 'last', 'disabled']) failing.inc({ what }, 0);
  const claims = new Histogram({
    name: 'nuncio_lane_claim_size',
    help: 'Lanes claimed at once.',
    buckets: [1, 2, 5, 10, 50, 100, 500],
    registers,
  });
  const lost = new Counter({
    name: 'nuncio_lanes_lost_total',
    help: 'Lanes whose lease this node lost to another node.',
    registers,
  });
  addBacklogAge(registers, db, status);
  addParkedEvents(registers, db);
  addExpiringParkedEvents(registers, db);
  addWorkerStatus(registers, status);
  addEngineUse(registers);
  let attempts = 0;
  return {
    get attempts() {
      return attempts;
    },
    attempt: (error) => {
      attempts += 1;
      countAttempt(error ?? 'accepted');
    },
    lag: (seconds) => lag.observe(seconds),
    failing: (what) => failing.inc({ what }),
    claimed: (count) => claims.observe(count),
    lost: (count) => lost.inc(count),
  };
}

/** Counts attempts by result. @returns counts one attempt */
function attemptCounter(registers: Registry[]): (result: string) => void {
  /** Counts since the last collection. Incrementing a labelled counter for each attempt would be slow. */
  const ended = new Map<string, number>();
  new Counter({
    name: 'nuncio_delivery_attempts_total',
    help: 'Finished attempts by result: accepted, or the error of the delivery log.',
    labelNames: ['result'],
    registers,
    collect() {
      for (const [result, count] of ended) this.inc({ result }, count);
      ended.clear();
    },
  });
  return (result) => ended.set(result, (ended.get(result) ?? 0) + 1);
}

function addBacklogAge(registers: Registry[], db: Database, status: () => WorkerStatus): void {
  new Gauge({
    name: 'nuncio_delivery_backlog_age_seconds',
    help: 'Age in seconds of the oldest event without deliveries (outbox; only on the node that fans out), and of the due lane that has waited longest for a node (lanes), in the whole deployment.',
    labelNames: ['of'],
    registers,
    async collect() {
      // Left out if the database cannot be read: the other metrics matter most during an outage.
      this.reset();
      const { accounts } = status();
      const { rows } = await sql<{ outbox: number; lanes: number }>`
        select coalesce((
            select extract(epoch from now() - min(e.created_at))
            from unnest(
              ${textArray((accounts ?? []).map(({ account }) => account))}::text[]::uuid[],
              ${bigintArray((accounts ?? []).map(({ after }) => after))}::bigint[]
            ) as place (turn, after)
            cross join lateral (
              select day, positions[1] as position from outbox
              where turn = place.turn and id > place.after order by id limit 1
            ) as next
            cross join lateral (
              select created_at from events where day = next.day and position = next.position offset 0
            ) as e
          ), 0)::float8 as outbox,
          coalesce((
            select extract(epoch from now() - min(due_at)) from lane_progress where owner is null and due_at <= now()
          ), 0)::float8 as lanes`
        .execute(db)
        .catch(() => ({ rows: [] }));
      if (rows[0] === undefined) return;
      if (accounts !== undefined) this.set({ of: 'outbox' }, rows[0].outbox);
      this.set({ of: 'lanes' }, rows[0].lanes);
    },
  });
}

function addParkedEvents(registers: Registry[], db: Database): void {
  new Gauge({
    name: 'nuncio_events_parked',
    help: 'Events that fan-out could not process, in the whole deployment: see `nuncio parked list`.',
    registers,
    async collect() {
      this.reset();
      const { rows } = await sql<{ count: number }>`
        select count(*)::int as count from (select from parked_events limit ${parkedMax}) as parked`
        .execute(db)
        .catch(() => ({ rows: [] }));
      if (rows[0] !== undefined) this.set(rows[0].count);
    },
  });
}

function addExpiringParkedEvents(registers: Registry[], db: Database): void {
  new Gauge({
    name: 'nuncio_events_parked_expiring',
    help: 'Parked events that will be deleted within three days, in the whole deployment.',
    registers,
    async collect() {
      this.reset();
      const count = await countExpiringParked(db).catch(() => undefined);
      if (count !== undefined) this.set(count);
    },
  });
}

function addWorkerStatus(registers: Registry[], status: () => WorkerStatus): void {
  new Gauge({
    name: 'nuncio_worker',
    help: 'This node: attempts in flight (in_flight), leased lanes (lanes), deliveries waiting in memory (waiting), and bytes of their bodies (waiting_bytes).',
    labelNames: ['of'],
    registers,
    collect() {
      const { inFlight, lanes, waiting, waitingBytes } = status();
      this.set({ of: 'in_flight' }, inFlight);
      this.set({ of: 'lanes' }, lanes);
      this.set({ of: 'waiting' }, waiting);
      this.set({ of: 'waiting_bytes' }, waitingBytes);
    },
  });
  new Gauge({
    name: 'nuncio_subscription_in_flight',
    help: `Attempts in flight of the ${busiestMax} subscriptions that have the most.`,
    labelNames: ['subscription'],
    registers,
    collect() {
      this.reset();
      const busiest = status()
        .busy()
        .sort((a, b) => b.inFlight - a.inFlight);
      for (const { subscription, inFlight } of busiest.slice(0, busiestMax))
        this.set({ subscription }, inFlight);
    },
  });
}

function addEngineUse(registers: Registry[]): void {
  const memory = new Gauge({
    name: 'nuncio_engine_memory_bytes',
    help: 'Memory of the engine thread: its heap, and the bodies and buffers outside of it.',
    labelNames: ['of'],
    registers,
    collect() {
      const { heapUsed, external } = process.memoryUsage();
      memory.set({ of: 'heap' }, heapUsed);
      memory.set({ of: 'external' }, external);
    },
  });
  let before = performance.eventLoopUtilization();
  new Gauge({
    name: 'nuncio_engine_utilization',
    help: 'Share of the time since the last collection in which the event loop of the engine thread was busy.',
    registers,
    collect() {
      const now = performance.eventLoopUtilization();
      this.set(performance.eventLoopUtilization(now, before).utilization);
      before = now;
    },
  });
}
