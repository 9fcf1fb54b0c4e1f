/**
 * Health checks: `/livez` (the process is up) and `/readyz` (the database responds and all workers run).
 */

import type { FastifyInstance } from 'fastify';
import { sql } from 'kysely';
import { asServer } from '../database/connection_user.ts';
import { type Database, withTimeout } from '../database/database.ts';
import { Problem } from './problem.ts';

const databaseTimeoutMs = 5_000;

/** @param workers the other parts that must run on this node, and whether they do */
export function registerHealth(
  app: FastifyInstance,
  db: Database,
  workers: () => Promise<Readonly<Record<string, boolean>>>,
): void {
  app.get('/livez', async (_request, reply) => {
    return reply.header('cache-control', 'no-store').send({ status: 'ok' });
  });

  // No limit of requests applies here, so requests at the same time share one look.
  let looking: Promise<Record<string, string>> | undefined;
  app.get('/readyz', async (_request, reply) => {
    looking ??= asServer(look).finally(() => {
      looking = undefined;
    });
    const checks = await looking;
    return reply.header('cache-control', 'no-store').send({ status: 'ok', checks });
  });

  /** @throws Problem 503 */
  async function look(): Promise<Record<string, string>> {
    try {
      await withTimeout(databaseTimeoutMs, sql`select 1`.execute(db));
    } catch (error) {
      throw new Problem(503, 'The database is currently unavailable.', {
        code: 'database-unavailable',
        headers: { 'retry-after': '5' },
        cause: error,
      });
    }
    const states = Object.entries(await workers());
    const down = states.filter(([, isUp]) => !isUp).map(([name]) => name);
    if (down.length > 0) {
      throw new Problem(503, `Not running on this node: ${down.join(', ')}.`, {
        code: 'workers-down',
        headers: { 'retry-after': '5' },
      });
    }
    return { database: 'ok', ...Object.fromEntries(states.map(([name]) => [name, 'ok'])) };
  }
}
