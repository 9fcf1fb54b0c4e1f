/**
 * Prometheus metrics at `/metrics`: requests by route and status, their duration, database connections, and the process's
 * memory, garbage collection and event loop lag. Other rooms add metrics to the same registry.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { Counter, collectDefaultMetrics, Gauge, Histogram, type Metric, Registry } from 'prom-client';
import { type Database, poolStatus } from '../database/database.ts';

/** Upper bounds of the histogram's buckets, in seconds. */
const durationBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];

let ofProcess: Registry | undefined;

/**
 * Creates a registry with the process's metrics. Each server has its own. The process's metrics exist once: their observers of
 * the event loop and of garbage collection never end.
 */
export function createRegistry(): Registry {
  if (ofProcess === undefined) {
    ofProcess = new Registry();
    collectDefaultMetrics({ register: ofProcess });
  }
  const registry = new Registry();
  for (const metric of ofProcess.getMetricsAsArray()) registry.registerMetric(metric as unknown as Metric);
  return registry;
}

/** @returns counts notifications of a channel that proved false */
export function countFalseHints(registry: Registry): (channel: string, count: number) => void {
  const counter = new Counter({
    name: 'nuncio_false_hints_total',
    help: 'Notifications, by channel, of something that is not in the database: another role of the database may send them.',
    labelNames: ['channel'],
    registers: [registry],
  });
  return (channel, count) => counter.inc({ channel }, count);
}

/** Counts the requests of the application. @returns a function that tells how many were served, without health checks and metrics */
export function countRequests(app: FastifyInstance, registry: Registry, db: Database): () => number {
  const requests = new Counter({
    name: 'nuncio_http_requests_total',
    help: 'Requests served, by method, route and status; without those that overload refuses early (nuncio_requests_refused_total).',
    labelNames: ['method', 'route', 'status'],
    registers: [registry],
  });
  const durations = new Histogram({
    name: 'nuncio_http_request_duration_seconds',
    help: 'Time in seconds from the request’s head to the end of its response, by method and route.',
    labelNames: ['method', 'route'],
    buckets: durationBuckets,
    registers: [registry],
  });
  new Gauge({
    name: 'nuncio_database_connections',
    help: 'Connections of the pool that serves requests, by state. The state waiting counts requests without a connection.',
    labelNames: ['state'],
    registers: [registry],
    collect() {
      const { total, idle, waiting } = poolStatus(db);
      this.set({ state: 'busy' }, total - idle);
      this.set({ state: 'idle' }, idle);
      this.set({ state: 'waiting' }, waiting);
    },
  });
  let served = 0;
  app.addHook('onResponse', ({ method, routeOptions }, reply, done) => {
    if (routeOptions.config.precedence !== 'exempt') served += 1;
    // Use the route's pattern, not the path: clients must not be able to create time series.
    const route = routeOptions.url ?? 'none';
    requests.inc({ method, route, status: reply.statusCode });
    durations.observe({ method, route }, reply.elapsedTime / 1_000);
    done();
  });
  return () => served;
}

/**
 * @param read returns the metrics of all threads, in Prometheus' text format
 * @param checkAccess throws a Problem if the request may not read them
 */
export function registerMetrics(
  app: FastifyInstance,
  contentType: string,
  read: () => Promise<string>,
  checkAccess: (request: FastifyRequest) => void,
): void {
  app.get('/metrics', async (request, reply) => {
    checkAccess(request);
    reply.header('cache-control', 'no-store');
    return reply.type(contentType).send(await read());
  });
}
