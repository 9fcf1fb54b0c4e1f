/**
 * Housekeeping: rows that nobody can use any more leave in small batches, so that the tables do not grow with
 * time and nothing waits for a long delete. Every node does it; rows that another one is deleting are passed over.
 */

import { sql } from 'kysely';
import { removeUnusedClients } from '../clients/self_registered.ts';
import type { Database } from '../database/database.ts';

/** Milliseconds between rounds, and rows of a table in one statement. */
const roundMs = 60_000;
const batchRows = 1_000;
/** Batches of one table in one round: the rest is for the next. */
const batchesMax = 50;

/** Each table with what says that a row is of no use. */
const rules: readonly [table: string, useless: string][] = [
  // Kept for an hour beyond its time: a code that is used again takes back what it gave.
  ['authorization_codes', "expires_at < now() - interval '1 hour'"],
  ['refresh_tokens', "expires_at < now() - interval '1 hour'"],
  ['access_tokens', 'expires_at < now()'],
  ['login_sessions', 'expires_at < now()'],
  ['interactions', 'expires_at < now()'],
  ['device_codes', "expires_at < now() - interval '1 hour'"],
  ['pushed_requests', "expires_at < now() - interval '1 hour'"],
  ['used_proofs', 'expires_at < now()'],
  ['sign_in_failures', 'window_ends_at < now()'],
  ['withdrawals', 'until < now()'],
  ['signing_keys', "expires_at < now() - interval '1 day'"],
  ['client_secrets', 'expires_at < now()'],
  ['grants', "withdrawn_at < now() - interval '90 days'"],
  ['registration_windows', 'ends_at < now()'],
  ['initial_access_tokens', 'expires_at < now() or uses_left = 0'],
  ['logout_notices', "created_at < now() - interval '30 days'"],
  ['audit_entries', "at < now() - interval '90 days'"],
];

/** @returns rows that left, by table */
export async function keepHouse(db: Database): Promise<Record<string, number>> {
  const left: Record<string, number> = {};
  for (const [table, useless] of rules) {
    for (let batch = 0; batch < batchesMax; batch += 1) {
      const { numAffectedRows } = await sql`
        delete from ${sql.table(table)}
        where ctid = any(array(
          select ctid from ${sql.table(table)} where ${sql.raw(useless)}
          limit ${batchRows} for update skip locked))`.execute(db);
      const rows = Number(numAffectedRows ?? 0);
      if (rows > 0) left[table] = (left[table] ?? 0) + rows;
      if (rows < batchRows) break;
    }
  }
  const clients = await removeUnusedClients(db, batchRows);
  if (clients > 0) left.clients = clients;
  return left;
}

/** @returns stops it */
export function startHousekeeping(db: Database, onError: (error: unknown) => void): () => Promise<void> {
  let round: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    round = keepHouse(db).catch(onError);
  }, roundMs);
  timer.unref();
  return async () => {
    clearInterval(timer);
    await round;
  };
}
