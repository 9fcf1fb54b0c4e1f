/**
 * Health: `/livez` (the process is up) and `/readyz` (its database answers, and its workers run).
 */

import type { FastifyInstance } from 'fastify';
import { sql } from 'kysely';
import { type Database, within } from '../database/database.ts';
import { Problem } from './problem.ts';

/** Milliseconds that the database has for its answer: who asks whether it is there is not kept waiting. */
const answerMs = 5_000;

/** @param workers what else must run on this node, by name, and whether it does */
export function registerHealth(
  app: FastifyInstance,
  db: Database,
  workers: () => Promise<Readonly<Record<string, boolean>>>,
): void {
  app.get('/livez', async (_request, reply) => {
    return reply.header('cache-control', 'no-store').send({ status: 'ok' });
  });

  app.get('/readyz', async (_request, reply) => {
    try {
      await within(answerMs, sql`select 1`.execute(db));
    } catch (error) {
      throw new Problem(503, 'The database cannot be reached at the moment.', {
        code: 'database-unavailable',
        headers: { 'retry-after': '5' },
        cause: error,
      });
    }
    const states = Object.entries(await workers());
    const down = states.filter(([, isUp]) => !isUp).map(([name]) => name);
    if (down.length > 0) {
      throw new Problem(503, `Not running on this node at the moment: ${down.join(', ')}.`, {
        code: 'workers-down',
        headers: { 'retry-after': '5' },
      });
    }
    const checks = Object.fromEntries(states.map(([name]) => [name, 'ok']));
    return reply
      .header('cache-control', 'no-store')
      .send({ status: 'ok', checks: { database: 'ok', ...checks } });
  });
}
