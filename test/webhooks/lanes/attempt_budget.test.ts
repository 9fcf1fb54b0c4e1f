/** The budget of stored responses: many accounts cost bounded statements, and each byte counts once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { AttemptBudget } from '../../../src/webhooks/lanes/attempt_budget.ts';
import type { AttemptRecord } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { until } from '../../support/webhooks/apps.ts';

const now = Date.parse('2026-03-04T05:06:07Z');
const attemptOf = (bytes: number) => ({ headers: 'x'.repeat(bytes), body: null }) as AttemptRecord;

test('a flush writes a limited number of accounts, and the next one continues', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const budget = new AttemptBudget(db, 1_000);
  const counts = async () => {
    const { rows } = await sql<{ tenants: number; bytes: number }>`
      select count(*)::int as tenants, coalesce(sum(bytes), 0)::int as bytes from attempt_bytes`.execute(db);
    return rows[0];
  };
  for (let tenant = 0; tenant < 6_000; tenant += 1) budget.apply(`t${tenant}`, attemptOf(10), now);
  await budget.flush();
  assert.deepEqual(await counts(), { tenants: 5_000, bytes: 50_000 });
  // Both at once write each count once.
  await Promise.all([budget.flush(), budget.flush()]);
  assert.deepEqual(await counts(), { tenants: 6_000, bytes: 60_000 });
});

test('what other nodes have counted uses up the budget, and counts of a failed statement are kept', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const [here, there] = [new AttemptBudget(db, 1_000), new AttemptBudget(db, 1_000)];
  there.apply('account', attemptOf(900), now);
  await there.flush();
  here.apply('account', attemptOf(60), now);
  await sql`alter table attempt_bytes rename to away`.execute(db);
  await assert.rejects(here.flush(), /attempt_bytes/);
  await sql`alter table away rename to attempt_bytes`.execute(db);
  await here.flush();
  const attempt = attemptOf(60);
  here.apply('account', attempt, now);
  assert.equal(attempt.isResponseOmitted, true);
  assert.equal(attempt.headers, null);
});

test('counts of earlier days are deleted once a day', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const budget = new AttemptBudget(db, 1_000);
  const day = 86_400_000;
  for (const at of [now, now + day, now + 5 * day]) {
    budget.apply('account', attemptOf(1), at);
    await budget.flush();
  }
  const { rows } = await sql<{ day: string }>`select day::text from attempt_bytes`.execute(db);
  assert.deepEqual(rows, [{ day: '2026-03-09' }]);
});

test('attack: a locked row takes one connection, however often counts are flushed', async (t) => {
  const { db } = await openTestDatabase(t, 5);
  const budget = new AttemptBudget(db, 1_000);
  budget.apply('locked', attemptOf(1), now);
  await budget.flush();
  const flushes: Promise<void>[] = [];
  const countWaiting = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
    return rows[0]?.count ?? 0;
  };
  await db.transaction().execute(async (tx) => {
    await sql`select from attempt_bytes for update`.execute(tx);
    for (let flush = 0; flush < 3; flush += 1) {
      budget.apply('locked', attemptOf(1), now);
      flushes.push(budget.flush());
      await until(countWaiting, (waiting) => waiting > 0);
    }
    assert.equal(await countWaiting(), 1);
  });
  await Promise.all(flushes);
  await budget.flush();
  const { rows } = await sql<{ bytes: string }>`select bytes from attempt_bytes`.execute(db);
  assert.deepEqual(rows, [{ bytes: '4' }]);
});
