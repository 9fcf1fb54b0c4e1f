/**
 * Health of one subscription, of all subscriptions that a token sees, and of an app's own subscriptions. Read from
 * counters, never from the log.
 */

import type { FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import Type from 'typebox';
import { currentUser, inTurnOf } from '../../database/connection_user.ts';
import type { Database } from '../../database/database.ts';
import { idParameter, ok, queryParameter } from '../../http/describe.ts';
import { overloaded } from '../../http/overload/refusal.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { Problem } from '../../http/problem.ts';
import type { ProblemCode } from '../../http/problem_codes.ts';
import { named, strict, Time } from '../../http/schema.ts';
import { readTime } from '../../http/time.ts';
import { LimitedWork, NoTurnError } from '../../shared/limited_work.ts';
import { undivided } from '../../shared/owner_turns.ts';
import {
  addBacklogs,
  addCounts,
  type Backlog,
  coarseDays,
  coarseSeconds,
  describeCounts,
  fineDays,
  fineSeconds,
  readBacklog,
  readCounts,
  type Stats,
  type StatsRange,
} from '../../webhooks/log/delivery_stats.ts';
import { listLanes } from '../../webhooks/subscriptions/subscription_lists.ts';
import { member } from '../admission.ts';
import { requireApp } from '../apps/app_access.ts';
import { appId } from '../apps/schemas.ts';
import { route, serve } from '../route.ts';
import { readFromLog } from './log_reads.ts';
import { reader } from './owner_admission.ts';
import { healthMembers } from './schemas.ts';
import { requireSubscription, type WebhookRoutesOptions } from './subscription_access.ts';

const dayMs = 86_400_000;
/** Maximum subscriptions in a sum. */
const summedMax = 1_000;
/** Subscriptions that are read at once: with a month of buckets, they take PostgreSQL 50 to 100 ms. */
const sliceMax = 25;
/** Sums of more subscriptions are made one after the other. */
const severalMax = 250;
/** Requests of one caller that may wait: for one subscription, for several and for many. */
const waitingMax = 4;
/** Milliseconds after which a sum begins no further slice. The last one takes 30 seconds at most (`turnWaitMsMax`). */
const sumMsMax = 40_000;

const Health = named('Health', Type.Object(healthMembers, strict));
const range = [
  queryParameter('since', 'Default: a day before `until`.', Time()),
  queryParameter('until', 'Default: now.', Time()),
];
const common = {
  method: 'get',
  tag: 'subscriptions',
  responses: ok('Counts, latencies, errors, backlog.', Health),
} as const;
const description =
  'Outcomes are counted as they are written, in buckets of 5 minutes for the last 2 days and of one hour for 31 days. Percentiles are upper bounds of histogram buckets.';

export const healthRoutes = {
  subscription: route({
    ...common,
    id: 'read_subscription_health',
    path: '/subscriptions/{id}/health',
    summary: 'Read a subscription’s health',
    description,
    admission: reader,
    parameters: [idParameter('subscription'), ...range],
  }),
  all: route({
    ...common,
    id: 'read_health',
    path: '/deliveries/health',
    summary: 'Read the health of all listed subscriptions',
    description: `${description} At most 1,000 subscriptions are included, oldest first.`,
    admission: reader,
    parameters: range,
  }),
  app: route({
    ...common,
    id: 'read_app_health',
    path: '/apps/{id}/health',
    summary: 'Read the health of an app’s own subscriptions',
    description,
    admission: member('read:apps', 'read:webhooks'),
    parameters: [appId, ...range],
  }),
};

export function registerHealthRoutes(options: WebhookRoutesOptions): void {
  const { db, logDb } = options;
  // The log keeps its other connections for pages and for events that are pulled, and nobody waits with one subscription for the several of others,
  // nor with several for many.
  const turns = { one: new LimitedWork(1), several: new LimitedWork(1), many: new LimitedWork(1) };
  const show = async (request: FastifyRequest, lanes: number[]) => {
    const range = readStatsRange(request);
    // A tool of an agent calls this in the name of its user, in a request of this process to itself.
    const caller = currentUser() ?? undivided('');
    const signal = AbortSignal.timeout(sumMsMax);
    const size = sizeOf(lanes);
    const work = turns[size];
    const readSlice = async (from: number) => {
      if (signal.aborted) throw new NoTurnError();
      if (request.raw.socket.destroyed) throw overloaded();
      const slice = lanes.slice(from, from + sliceMax);
      return inTurnOf(`health of ${size}`, work.waitingOwners, () => readPart(logDb, slice, range));
    };
    const read = async (readNext: typeof readSlice) => {
      let sum = await readNext(0);
      for (let from = sliceMax; from < lanes.length; from += sliceMax) {
        const { counted, backlog } = await readNext(from);
        sum = { counted: addCounts(sum.counted, counted), backlog: addBacklogs(sum.backlog, backlog) };
      }
      return representHealth(request, range, describeCounts(sum.counted), sum.backlog);
    };
    const inTurn = <Result>(part: () => Promise<Result>) => work.run(caller, part, undefined, signal);
    if (work.isFull(caller, waitingMax)) throw overloaded();
    // What waits would keep the places of all for seconds. Were sums of many to alternate as those of several do, none of a dozen or two would end in time.
    return waitElsewhere(() =>
      size === 'many' ? inTurn(() => read(readSlice)) : read((from) => inTurn(() => readSlice(from))),
    );
  };

  serve(options, healthRoutes.subscription, async ({ request, caller: owner, params }) => {
    const { lane } = await requireSubscription(db, owner, params.id);
    return show(request, [lane]);
  });

  serve(options, healthRoutes.all, async ({ request, caller: owner }) => {
    return show(request, await listLanes(db, owner, summedMax));
  });

  serve(options, healthRoutes.app, async ({ request, caller, params }) => {
    const { client } = await requireApp(db, caller, params.id);
    const { rows } = await sql<{ lane: string }>`
      select lane from subscriptions
      where client_id = ${client.id} and owner = 'client' and state <> 'ended' limit ${summedMax}`.execute(
      db,
    );
    return show(
      request,
      rows.map(({ lane }) => Number(lane)),
    );
  });
}

function sizeOf({ length }: readonly number[]): 'one' | 'several' | 'many' {
  if (length > severalMax) return 'many';
  return length > 1 ? 'several' : 'one';
}

async function readPart(db: Database, lanes: readonly number[], range: StatsRange) {
  return {
    counted: await readFromLog(readCounts(db, lanes, range)),
    backlog: await readFromLog(readBacklog(db, lanes)),
  };
}

/** Reads `since` and `until`; the default is the last 24 hours. @throws Problem 400 */
export function readStatsRange(request: FastifyRequest): StatsRange {
  const { since: from, until: to, ...others } = request.query as Record<string, unknown>;
  const [other] = Object.keys(others);
  if (other !== undefined) throw wrong(`${other} is not a parameter of this resource.`);
  const now = Date.now();
  const until = to === undefined ? new Date(now) : readTime(to);
  if (until === undefined) throw wrong('until must be an RFC 3339 time.');
  const since = from === undefined ? new Date(until.getTime() - dayMs) : readTime(from);
  if (since === undefined) throw wrong('since must be an RFC 3339 time.');
  const length = until.getTime() - since.getTime();
  if (length <= 0) throw wrong('since must be before until.', 'invalid-range');
  if (length > coarseDays * dayMs)
    throw wrong(`since must be at most ${coarseDays} days before until.`, 'invalid-range');
  const isFine =
    length <= fineDays * dayMs && since.getTime() >= now - fineDays * dayMs - fineSeconds * 1_000;
  return { since, until, seconds: isFine ? fineSeconds : coarseSeconds };
}

function wrong(detail: string, code: ProblemCode = 'invalid-parameter'): Problem {
  return new Problem(400, detail, { code });
}

export function representHealth(
  request: FastifyRequest,
  { since, until, seconds }: StatsRange,
  { buckets, totals }: ReturnType<typeof describeCounts>,
  backlog: Backlog,
): Record<string, unknown> {
  return {
    since: since.toISOString(),
    until: until.toISOString(),
    bucket_seconds: seconds,
    buckets: buckets.map((bucket) => ({ at: bucket.at.toISOString(), ...representStats(bucket) })),
    totals: representStats(totals),
    backlog: {
      pending: backlog.pending,
      is_capped: backlog.isCapped,
      oldest_at: backlog.oldestAt?.toISOString() ?? null,
    },
    _links: { self: { href: request.url } },
  };
}

function representStats({ outcomes, latencyMs, errors }: Stats): Record<string, unknown> {
  return { ...outcomes, latency_ms: latencyMs, errors };
}
