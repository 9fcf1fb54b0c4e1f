/**
 * The connections of one node: one number, divided among its pools, so that an operator can tell how many nodes a
 * database has room for.
 */

import { sql } from 'kysely';
import type { Database } from './database.ts';

export interface ConnectionShares {
  /** For requests. */
  requests: number;
  /** For requests of the delivery log, which must not keep others waiting. */
  log: number;
  /** For the delivery engine. */
  engine: number;
}

/** The server and the engine each listen for notifications on a connection of their own. */
const listeners = 2;

/** @param total at least `connectionsMin` */
export function divideConnections(total: number): ConnectionShares {
  const log = Math.max(2, Math.round(total * 0.14));
  const engine = Math.max(4, Math.round(total * 0.27));
  return { requests: total - listeners - log - engine, log, engine };
}

/**
 * @param total connections that this node opens at most
 * @returns a sentence for the operator where the database may have no room for them
 */
export async function findConnectionShortage(db: Database, total: number): Promise<string | undefined> {
  const { rows } = await sql<{ available: number; others: number }>`
    select current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int as available,
      (select count(*)::int from pg_stat_activity
        where backend_type = 'client backend' and pid <> pg_backend_pid()) as others`.execute(db);
  const { available, others } = rows[0] as { available: number; others: number };
  if (others + total <= available) return undefined;
  return `this node opens up to ${total} connections (NUNCIO_DATABASE_CONNECTIONS); PostgreSQL allows ${available} in all and has ${others} open`;
}
