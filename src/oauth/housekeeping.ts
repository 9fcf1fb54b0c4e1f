/**
 * Housekeeping deletes expired rows in small batches, so that tables do not grow and no delete holds locks for long.
 * Every node runs it and skips rows that another node is deleting.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { type RawBuilder, sql } from 'kysely';
import { removeUnusedClients } from '../clients/self_registered.ts';
import { deleteBatches, deleteByPage } from '../database/batches.ts';
import type { Database } from '../database/database.ts';
import { keptDays, keptFor } from '../database/retention.ts';
import { steadyNow } from '../database/steady_clock.ts';

/** Milliseconds between rounds, and after one that left expired rows. */
const roundPauseMs = 60_000;
const nextPauseMs = 1_000;
/** Rows per statement. */
const batchRows = 1_000;
/** Milliseconds between deletions of superseded grants, for which all grants are read. */
const grantsMs = 3_600_000;
/** Maximum batches per table and round. */
const batchesMax = 50;

/** A table, the time at which a row expires, and how long it is kept after that: an interval, or days of the settings. */
type Expiring = readonly [table: string, expiresAt: string, kept?: string | RawBuilder<number>];

/** With an index that finds the expired rows. */
const indexed: readonly Expiring[] = [
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
  ['registration_windows', 'ends_at'],
  ['logout_notices', 'created_at', '30 days'],
  ['mails', 'created_at', keptDays.mails],
  ['notices', 'at', keptDays.mails],
  ['connections', 'started_at', keptDays.connections],
];

/**
 * Without one, or with a BRIN index: it finds nothing any more when new rows have taken the places of deleted ones. A round looks at
 * 128 MiB of such a table, or at a part of it so that half a day is enough for the whole.
 */
const unindexed: readonly Expiring[] = [
  // A replayed code still revokes its tokens.
  ['authorization_codes', 'expires_at', '1 hour'],
  ['refresh_tokens', 'expires_at', '1 hour'],
  ['signing_keys', 'expires_at', '1 day'],
  ['client_secrets', 'expires_at'],
  ['grants', 'withdrawn_at', '90 days'],
  ['initial_access_tokens', "case when uses_left = 0 then '-infinity' else expires_at end"],
  ['audit_entries', 'at', keptDays.audit],
];

const pagesMax = (pages: number) => Math.max(16_384, Math.ceil(pages / 720));

/**
 * Runs one round. An error in one table does not stop the others.
 * @param next the page of each table without an index at which the round begins; the round sets those of the next one
 * @param signal ends the round before the next table
 * @returns the number of deleted rows, by table
 * @throws AggregateError at the end, with the errors of all tables that failed
 */
export async function runHousekeeping(
  db: Database,
  next = new Map<string, number>(),
  signal?: AbortSignal,
): Promise<Record<string, number>> {
  const deleted: Record<string, number> = {};
  const failures: Error[] = [];
  const attempt = async (table: string, work: () => Promise<number>) => {
    if (signal?.aborted) return;
    try {
      const rows = await work();
      if (rows > 0) deleted[table] = rows;
    } catch (cause) {
      failures.push(new Error(`${table}: ${(cause as Error).message}`, { cause }));
    }
  };
  for (const [table, ...expiry] of indexed) {
    await attempt(table, () => deleteBatches(db, table, isExpired(...expiry), batchesMax));
  }
  for (const [table, ...expiry] of unindexed) {
    await attempt(table, async () => {
      const range = { from: next.get(table) ?? 0, pagesMax, rowsMax: batchesMax * batchRows };
      const result = await deleteByPage(db, table, isExpired(...expiry), range);
      next.set(table, result.next);
      return result.deleted;
    });
  }
  await attempt('clients', () => removeUnusedClients(db, batchRows));
  if (failures.length === 0) return deleted;
  throw new AggregateError(failures, failures.map(({ message }) => message).join('; '));
}

function isExpired(expiresAt: string, kept: string | RawBuilder<number> = '0'): RawBuilder<unknown> {
  const time = typeof kept === 'string' ? sql`${kept}::interval` : keptFor(kept);
  return sql`${sql.raw(expiresAt)} < ${steadyNow()} - ${time}`;
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

/**
 * Starts the rounds. None begins before the one before it has ended.
 * @param roundMs milliseconds between rounds
 * @returns a function that stops housekeeping and waits for the current round
 */
export function startHousekeeping(
  db: Database,
  onError: (error: unknown) => void,
  roundMs = roundPauseMs,
): () => Promise<void> {
  const next = new Map<string, number>();
  const stop = new AbortController();
  const pause = (ms: number) => sleep(ms, undefined, { signal: stop.signal, ref: false });
  const rounds = async () => {
    let grantsAt = performance.now() + grantsMs;
    let pauseMs = roundMs;
    for (;;) {
      await pause(pauseMs);
      try {
        const deleted = await runHousekeeping(db, next, stop.signal);
        const isBehind = Object.values(deleted).some((rows) => rows >= batchesMax * batchRows);
        pauseMs = isBehind ? nextPauseMs : roundMs;
        if (performance.now() < grantsAt) continue;
        grantsAt += grantsMs;
        await deleteSupersededGrants(db);
      } catch (error) {
        pauseMs = roundMs;
        onError(error);
      }
    }
  };
  const ended = rounds().catch(() => {});
  return async () => {
    stop.abort();
    await ended;
  };
}
