/**
 * Health of one subscription, of all subscriptions that a token sees, and of an app's own subscriptions. Read from
 * counters, never from the log.
 */

import type { FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import { resolveActor } from '../../apps/actor.ts';
import { requireApp } from '../../apps/api/app_access.ts';
import type { Database } from '../../database/database.ts';
import { Problem } from '../../http/problem.ts';
import { readTime } from '../../http/time.ts';
import {
  type Backlog,
  coarseDays,
  coarseSeconds,
  fineDays,
  fineSeconds,
  readBacklog,
  readStats,
  type Stats,
  type StatsRange,
} from '../log/delivery_stats.ts';
import { listSubscriptions } from '../subscriptions/subscription.ts';
import { readFromLog } from './log_reads.ts';
import { ownerOf, type RoutesOptions, requireSubscription } from './subscription_routes.ts';

interface IdRoute {
  Params: { id: string };
}

const dayMs = 86_400_000;
/** Maximum subscriptions in a sum. */
const summedMax = 1_000;

interface HealthRoutesOptions extends Pick<RoutesOptions, 'api' | 'db' | 'guard'> {
  /** Used to read the log. */
  logDb: Database;
}

export function registerHealthRoutes({ api, db, logDb, guard }: HealthRoutesOptions): void {
  api.get<IdRoute>('/subscriptions/:id/health', async (request) => {
    const owner = ownerOf(await guard(request, 'read:webhooks'), 'read');
    const { lane } = await requireSubscription(db, owner, request.params.id);
    const range = readStatsRange(request);
    const stats = await readFromLog(readStats(logDb, [lane], range));
    return representHealth(request, range, stats, await readFromLog(readBacklog(logDb, [lane])));
  });

  api.get('/deliveries/health', async (request) => {
    const owner = ownerOf(await guard(request, 'read:webhooks'), 'read');
    const range = readStatsRange(request);
    const lanes = (await listSubscriptions(db, owner, summedMax, null)).map(({ lane }) => lane);
    const stats = await readFromLog(readStats(logDb, lanes, range));
    return representHealth(request, range, stats, await readFromLog(readBacklog(logDb, lanes)));
  });

  api.get<IdRoute>('/apps/:id/health', async (request) => {
    const actor = await resolveActor(db, await guard(request, 'read:apps', 'read:webhooks'));
    const { client } = await requireApp(db, actor, request.params.id);
    const range = readStatsRange(request);
    const { rows } = await sql<{ lane: string }>`
      select lane from subscriptions
      where client_id = ${client.id} and owner = 'client' and state <> 'ended' limit ${summedMax}`.execute(
      db,
    );
    const lanes = rows.map(({ lane }) => Number(lane));
    const stats = await readFromLog(readStats(logDb, lanes, range));
    return representHealth(request, range, stats, await readFromLog(readBacklog(logDb, lanes)));
  });
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

function wrong(detail: string, code = 'invalid-parameter'): Problem {
  return new Problem(400, detail, { code });
}

export function representHealth(
  request: FastifyRequest,
  { since, until, seconds }: StatsRange,
  { buckets, totals }: Awaited<ReturnType<typeof readStats>>,
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
