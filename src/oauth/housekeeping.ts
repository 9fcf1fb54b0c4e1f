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
/** Milliseconds between looks at all grants. */
const grantsMs = 3_600_000;
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
  ['account_links', 'expires_at < now()'],
  ['login_requests', 'expires_at < now()'],
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

/**
 * One round. What cannot be cleared keeps nothing else from being cleared.
 * @returns rows that left, by table
 * @throws AggregateError at the end, with the error of each table whose statement failed
 */
export async function keepHouse(db: Database): Promise<Record<string, number>> {
  const left: Record<string, number> = {};
  const faults: Error[] = [];
  const attempt = async (table: string, work: () => Promise<number>) => {
    try {
      const rows = await work();
      if (rows > 0) left[table] = rows;
    } catch (cause) {
      faults.push(new Error(`${table}: ${(cause as Error).message}`, { cause }));
    }
  };
  for (const [table, useless] of rules) await attempt(table, () => clear(db, table, useless));
  await attempt('clients', () => removeUnusedClients(db, batchRows));
  if (faults.length === 0) return left;
  throw new AggregateError(faults, faults.map((fault) => fault.message).join('; '));
}

async function clear(db: Database, table: string, useless: string): Promise<number> {
  let left = 0;
  for (let batch = 0; batch < batchesMax; batch += 1) {
    const { numAffectedRows } = await sql`
      delete from ${sql.table(table)}
      where ctid = any(array(
        select ctid from ${sql.table(table)} where ${sql.raw(useless)}
        limit ${batchRows} for update skip locked))`.execute(db);
    const rows = Number(numAffectedRows ?? 0);
    left += rows;
    if (rows < batchRows) break;
  }
  return left;
}

/**
 * Each authorization has a grant of its own. One that no token can come from any more, that no subscription belongs
 * to, and that a newer one of the same user and app covers, says nothing: without it users who sign in again and
 * again would leave a row each time.
 * @returns how many left
 */
export async function retireGrants(db: Database): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from grants
    where id = any(array(
      select g.id from grants g
      where g.withdrawn_at is null and g.created_at < now() - interval '2 days'
        and not exists (select from refresh_tokens t where t.grant_id = g.id and t.expires_at > now())
        and not exists (select from access_tokens t where t.grant_id = g.id and t.expires_at > now())
        and not exists (select from subscriptions s where s.grant_id = g.id and s.state <> 'ended')
        and exists (
          select from grants newer
          where newer.account_id = g.account_id and newer.client_id = g.client_id
            and newer.withdrawn_at is null and newer.created_at > g.created_at and newer.scopes @> g.scopes)
      limit ${batchRows} for update of g skip locked))`.execute(db);
  return Number(numAffectedRows ?? 0);
}

/** @returns stops it */
export function startHousekeeping(db: Database, onError: (error: unknown) => void): () => Promise<void> {
  let round: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    round = keepHouse(db).catch(onError);
  }, roundMs);
  const grantsTimer = setInterval(() => {
    round = round.then(() => retireGrants(db)).catch(onError);
  }, grantsMs);
  timer.unref();
  grantsTimer.unref();
  return async () => {
    clearInterval(timer);
    clearInterval(grantsTimer);
    await round;
  };
}
