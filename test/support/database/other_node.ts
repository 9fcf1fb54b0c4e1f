/** Rows of nodes that run elsewhere. */

import { sql } from 'kysely';
import type { Database } from '../../../src/database/database.ts';

const heartbeatMs = 2_000;

/** Adds a node whose heartbeat counter grows, so that servers do not take it for dead, until the pool is closed. */
export async function addNode(db: Database, id: string): Promise<void> {
  await sql`
    insert into nodes (id, host, process, alive_until, generation)
    values (${id}::bigint, 'elsewhere', ${`${id} 1`}, now() + interval '1 hour', 2)`.execute(db);
  const timer = setInterval(() => {
    sql`update nodes set heartbeats = heartbeats + 1 where id = ${id}::bigint`
      .execute(db)
      .catch(() => clearInterval(timer));
  }, heartbeatMs);
  timer.unref();
}
