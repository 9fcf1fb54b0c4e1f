/**
 * Housekeeping deletes expired rows in small batches, so that tables do not grow and no delete holds locks for long.
 * Every node runs it and skips rows that another node is deleting.
 */

import { type RawBuilder, sql } from 'kysely';
import { removeUnusedClients } from '../clients/self_registered.ts';
import { deleteBatches } from '../database/batches.ts';
import type { Database } from '../database/database.ts';
import { keptDays, keptFor } from '../database/retention.ts';
import { steadyNow } from '../database/steady_clock.ts';

/** Milliseconds between rounds, and rows per statement of clients and grants. */
const roundMs = 60_000;
const batchRows = 1_000;
/** Milliseconds between scans of all grants. */
const grantsMs = 3_600_000;
/** Maximum batches per table and round. */
const batchesMax = 50;

/** Tables, the time at which a row of each expires, and how long it is kept after that: an interval, or days of the settings. */
const expiredRows: readonly [table: string, expiresAt: string, kept?: string | RawBuilder<number>][] = [
  // A replayed code still revokes its tokens.
  ['authorization_codes', 'expires_at', '1 hour'],
  ['refresh_tokens', 'expires_at', '1 hour'],
  ['access_tokens', 'expires_at'],
  ['login_sessions', 'expires_at'],
  ['interactions', 'expires_at'],
  ['account_links', 'expires_at'],
  ['login_requests', 'expires_at'],
  ['upstream_logins', 'expires_at'],
  ['device_codes', 'expires_at', '1 hour'],
  ['pushed_requests', 'expires_at', '1 hour'],
  ['used_proofs', 'expires_at'],
  ['sign_in_failures', 'window_ends_at'],
  ['withdrawals', 'until'],
  ['signing_keys', 'expires_at', '1 day'],
  ['client_secrets', 'expires_at'],
  ['grants', 'withdrawn_at', '90 days'],
  ['registration_windows', 'ends_at'],
  ['initial_access_tokens', "case when uses_left = 0 then '-infinity' else expires_at end"],
  ['logout_notices', 'created_at', '30 days'],
  ['mails', 'created_at', keptDays.mails],
  ['notices', 'at', keptDays.mails],
  ['connections', 'started_at', keptDays.connections],
  ['audit_entries', 'at', keptDays.audit],
];

/**
 * Runs one round. An error in one table does not stop the others.
 * @returns the number of deleted rows, by table
 * @throws AggregateError at the end, with the errors of all tables that failed
 */
export async function runHousekeeping(db: Database): Promise<Record<string, number>> {
  const deleted: Record<string, number> = {};
  const failures: Error[] = [];
  const attempt = async (table: string, work: () => Promise<number>) => {
    try {
      const rows = await work();
      if (rows > 0) deleted[table] = rows;
    } catch (cause) {
      failures.push(new Error(`${table}: ${(cause as Error).message}`, { cause }));
    }
  };
  for (const [table, expiresAt, kept = '0'] of expiredRows) {
    const time = typeof kept === 'string' ? sql`${kept}::interval` : keptFor(kept);
    const isExpired = sql`${sql.raw(expiresAt)} < ${steadyNow()} - ${time}`;
    await attempt(table, () => deleteBatches(db, table, isExpired, batchesMax));
  }
  await attempt('clients', () => removeUnusedClients(db, batchRows));
  if (failures.length === 0) return deleted;
  throw new AggregateError(failures, failures.map(({ message }) => message).join('; '));
}

/**
 * Deletes superseded grants. Each authorization creates a grant, so users who sign in repeatedly would accumulate rows. A
 * grant is superseded if it has no live token and no subscription, and a newer grant of the same user and app includes
 * its scopes.
 * @returns the number of deleted grants
 */
export async function deleteSupersededGrants(db: Database): Promise<number> {
  const { numAffectedRows } = await sql`
    delete from grants
    where id = any(array(
      select g.id from grants g
      where g.withdrawn_at is null and g.created_at < ${steadyNow()} - interval '2 days'
        and not exists (select from refresh_tokens t where t.grant_id = g.id and t.expires_at > ${steadyNow()})
        and not exists (select from access_tokens t where t.grant_id = g.id and t.expires_at > ${steadyNow()})
        and not exists (select from subscriptions s where s.grant_id = g.id and s.state <> 'ended')
        and exists (
          select from grants newer
          where newer.account_id = g.account_id and newer.client_id = g.client_id
            and newer.withdrawn_at is null and newer.created_at > g.created_at and newer.scopes @> g.scopes)
      limit ${batchRows} for update of g skip locked))`.execute(db);
  return Number(numAffectedRows ?? 0);
}

/** Starts the rounds. @returns a function that stops housekeeping and waits for the current round */
export function startHousekeeping(db: Database, onError: (error: unknown) => void): () => Promise<void> {
  let round: Promise<unknown> = Promise.resolve();
  const timer = setInterval(() => {
    round = runHousekeeping(db).catch(onError);
  }, roundMs);
  const grantsTimer = setInterval(() => {
    round = round.then(() => deleteSupersededGrants(db)).catch(onError);
  }, grantsMs);
  timer.unref();
  grantsTimer.unref();
  return async () => {
    clearInterval(timer);
    clearInterval(grantsTimer);
    await round;
  };
}
