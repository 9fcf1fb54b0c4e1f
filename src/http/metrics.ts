/**
 * Metrics for Prometheus at `/metrics`: requests by route and status, how long they took, the database's
 * connections, and what the process itself says of memory, garbage collection and the event loop's lag. Other parts
 * add to the same registry.
 */

import type { FastifyInstance } from 'fastify';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import { type Database, poolStatus } from '../database/database.ts';

/** Upper bounds in seconds: from an answer out of memory to one that nobody waits for any more. */
const durationBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];

/** A registry of its own for each server, with the process's own metrics. */
export function createRegistry(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return registry;
}

/** @param more what other threads have to tell, in the same text format */
export function registerMetrics(
  app: FastifyInstance,
  registry: Registry,
  db: Database,
  more: () => Promise<string>,
): void {
  const requests = new Counter({
    name: 'nuncio_http_requests_total',
    help: 'Requests answered, by method, route and status.',
    labelNames: ['method', 'route', 'status'],
    registers: [registry],
  });
  const durations = new Histogram({
    name: 'nuncio_http_request_duration_seconds',
    help: 'Seconds from a request’s head to the end of its answer, by method and route.',
    labelNames: ['method', 'route'],
    buckets: durationBuckets,
    registers: [registry],
  });
  new Gauge({
    name: 'nuncio_database_connections',
    help: 'Connections of the pool that serves requests, by state; waiting are requests without one.',
    labelNames: ['state'],
    registers: [registry],
    collect() {
      const { total, idle, waiting } = poolStatus(db);
      this.set({ state: 'busy' }, total - idle);
      this.set({ state: 'idle' }, idle);
      this.set({ state: 'waiting' }, waiting);
    },
  });
  app.addHook('onResponse', ({ method, routeOptions }, reply, done) => {
    // The route's pattern, never the path: what strangers ask for must not become names of series.
    const route = routeOptions.url ?? 'none';
    requests.inc({ method, route, status: reply.statusCode });
    durations.observe({ method, route }, reply.elapsedTime / 1_000);
    done();
  });
  app.get('/metrics', async (_request, reply) => {
    reply.header('cache-control', 'no-store');
    return reply
      .type(registry.contentType)
      .send((await Promise.all([registry.metrics(), more()])).join('\n'));
  });
}
