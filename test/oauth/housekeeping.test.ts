import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { startHousekeeping } from '../../src/oauth/housekeeping.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { until } from '../support/webhooks/apps.ts';

test('a round of housekeeping that waits for a lock is not joined by others', async (t) => {
  const { db, url } = await openTestDatabase(t, 5);
  const other = openDatabase({ connectionString: url, connectionsMax: 1 });
  const waiting = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
    return rows[0]?.count ?? 0;
  };
  await sql`
    insert into access_tokens (digest, token_id, payload, expires_at)
    values (sha256('old'), 'old', '{}', now() - interval '1 hour')`.execute(db);
  const locked = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  const holding = other.transaction().execute(async (tx) => {
    await sql`lock table access_tokens in access exclusive mode`.execute(tx);
    locked.resolve();
    await released.promise;
  });
  await locked.promise;
  const stop = startHousekeeping(db, () => {}, 20);
  try {
    await until(waiting, (count) => count > 0);
    // Long enough for ten further rounds.
    await sleep(200);
    assert.equal(await waiting(), 1);
  } finally {
    released.resolve();
    await holding;
    await other.destroy();
  }
  const left = async () => (await sql`select from access_tokens`.execute(db)).rows.length;
  await until(left, (count) => count === 0);
  await stop();
});
