/**
 * Health: `/livez` (the process is up) and `/readyz` (its database answers).
 */

import type { FastifyInstance } from 'fastify';
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { Problem } from './problem.ts';

export function registerHealth(app: FastifyInstance, db: Database): void {
  app.get('/livez', async (_request, reply) => {
    return reply.header('cache-control', 'no-store').send({ status: 'ok' });
  });

  app.get('/readyz', async (_request, reply) => {
    try {
      await sql`select 1`.execute(db);
    } catch (error) {
      throw new Problem(503, 'The database cannot be reached at the moment.', {
        code: 'database-unavailable',
        headers: { 'retry-after': '5' },
        cause: error,
      });
    }
    return reply.header('cache-control', 'no-store').send({ status: 'ok', checks: { database: 'ok' } });
  });
}
