/**
 * Divides one node's database connections among its pools. A single number per node lets the operator calculate how many
 * nodes a database can serve.
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

export interface ConnectionShares {
  /** HTTP requests. */
  requests: number;
  /** Requests that read the delivery log. Slow log queries must not delay other requests. */
  log: number;
  /** The delivery engine. */
  engine: number;
}

/** The server and the engine each use one connection for LISTEN. */
const listeners = 2;

/** @param total at least `connectionsMin` */
export function divideConnections(total: number): ConnectionShares {
  const log = Math.max(2, Math.round(total * 0.14));
  const engine = Math.max(4, Math.round(total * 0.27));
  return { requests: total - listeners - log - engine, log, engine };
}

/**
 * @param total the node's connection limit
 * @returns a warning for the operator when the database may not have that many free connections
 */
export async function findConnectionShortage(db: Database, total: number): Promise<string | undefined> {
  const { rows } = await sql<{ available: number; others: number }>`
    select current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int as available,
      (select count(*)::int from pg_stat_activity
        where backend_type = 'client backend' and pid <> pg_backend_pid()) as others`.execute(db);
  const { available, others } = rows[0] as { available: number; others: number };
  if (others + total <= available) return undefined;
  return `this node opens up to ${total} connections (NUNCIO_DATABASE_CONNECTIONS), but PostgreSQL allows ${available} in total and ${others} are open`;
}
