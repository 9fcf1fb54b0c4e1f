/** What is kept how long is a setting: the tables that it applies to, and what reports it. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { readConnections } from '../../../src/connections/connection_store.ts';
import { runHousekeeping } from '../../../src/oauth/housekeeping.ts';
import { createPlatform, type PlatformError } from '../../../src/platform.ts';
import { applyRetention, countExpiringParked } from '../../../src/webhooks/log/retention.ts';
import { startTestServer } from '../../support/servers/server.ts';

const platform = createPlatform({
  retention: {
    deliveriesDays: 10,
    responsesDays: 3,
    rejectedDays: 5,
    auditDays: 20,
    connectionsDays: 2,
    mailsDays: 4,
  },
});
const server = await startTestServer({ after }, {}, 'dev', platform);
const { db } = server;

const ago = (days: number) => sql`now() - make_interval(days => ${days}::int)`;
const dayAgo = (days: number) => sql`(now() at time zone 'utc')::date - ${days}::int`;

async function days(table: string, day: ReturnType<typeof sql>): Promise<number[]> {
  const { rows } = await sql<{ days: number }>`
    select (now() at time zone 'utc')::date - (${day})::date as days from ${sql.table(table)} where ${day} < now() - interval '1 hour'
    order by 1`.execute(db);
  return rows.map((row) => row.days);
}

test('events, deliveries and attempts are kept for the configured days, in whole partitions', async () => {
  for (const age of [9, 10, 11, 12]) {
    for (const table of ['events', 'deliveries', 'attempts'])
      await sql`select ensure_day_partition(${table}, ${dayAgo(age)})`.execute(db);
    await sql`insert into events (day, id, kind, body) values (${dayAgo(age)}, ${`aged-${age}`}, 'push', '{}')`.execute(
      db,
    );
    await sql`
      insert into deliveries (day, lane, sequence, event) values (${dayAgo(age)}, 1, ${100 - age}::int, 1)`.execute(
      db,
    );
    await sql`
      insert into parked_events (position, day, turn, reason)
      values (${age}, ${dayAgo(age)}, gen_random_uuid(), 'a reason')`.execute(db);
  }
  assert.equal(await countExpiringParked(db), 4);
  await applyRetention(db);
  for (const table of ['events', 'deliveries', 'parked_events'])
    assert.deepEqual(await days(table, sql`day`), [9, 10], table);
});

test('responses are deleted earlier than deliveries, and their attempts stay', async () => {
  const count = 2_500;
  for (const age of [2, 3, 4, 6]) {
    await sql`select ensure_day_partition('attempts', ${dayAgo(age)})`.execute(db);
    await sql`
      insert into attempts (day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms, headers, body)
      select ${dayAgo(age)}, 2, number, ${ago(age)}, 1, 's', 200, false, 1, 5, '{"a":"b"}', repeat('x', 200)::bytea
      from generate_series(1, ${count}::int) as number`.execute(db);
  }
  const kept = async () => {
    const { rows } = await sql<{ days: number; attempts: number; responses: number; omitted: number }>`
      select (now() at time zone 'utc')::date - day as days, count(*)::int as attempts,
        count(*) filter (where headers is not null or body is not null)::int as responses,
        count(*) filter (where response_omitted)::int as omitted
      from attempts where lane = 2 group by day order by 1`.execute(db);
    return rows.map((row) => Object.values(row));
  };
  const expected = [
    [2, count, count, 0],
    [3, count, count, 0],
    [4, count, 0, count],
    [6, count, 0, count],
  ];
  await applyRetention(db);
  assert.deepEqual(await kept(), expected);
  const versions = async () =>
    (await sql`select ctid from attempts where lane = 2 order by day, sequence`.execute(db)).rows;
  const before = await versions();
  await applyRetention(db);
  assert.deepEqual(await versions(), before, 'a second run changes no row');
});

test('rejected events expire only if configured, and publishers are unblocked', async () => {
  const add = (age: number) =>
    sql`
    insert into rejected_events (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at, rejected_at)
    values (gen_random_uuid(), 'a', 'e', false, 'push', '{}', 2, 'wrong', '[]', ${ago(age)}, ${ago(age)})`.execute(
      db,
    );
  for (const age of [4, 6, 40]) await add(age);
  await sql`update intake set is_blocked = true`.execute(db);
  await sql`update retention set rejected_days = null`.execute(db);
  await applyRetention(db);
  assert.equal((await days('rejected_events', sql`rejected_at`)).length, 3);
  await sql`update retention set rejected_days = 5`.execute(db);
  await applyRetention(db);
  assert.deepEqual(await days('rejected_events', sql`rejected_at`), [4]);
  const { rows } = await sql<{ is_blocked: boolean }>`select is_blocked from intake`.execute(db);
  assert.deepEqual(rows, [{ is_blocked: false }]);
});

test('the audit log, traces and mails are kept for the configured days', async () => {
  for (const age of [1, 3, 5, 19, 21]) {
    await sql`insert into audit_entries (at, kind) values (${ago(age)}, 'test.entry')`.execute(db);
    await sql`
      insert into connections (id, started_at, updated_at, is_known, outcome, keys, request_ids, source, steps)
      values (gen_random_uuid(), ${ago(age)}, now(), false, 'open', '{}', '{}', '', '[]')`.execute(db);
    await sql`
      insert into mails (id, kind, address, created_at, sent_at)
      values (gen_random_uuid(), 'test', 'a@example.com', ${ago(age)}, now())`.execute(db);
  }
  assert.equal((await readConnections(db, {}, 10)).length, 1, 'readers do not wait for housekeeping');
  await runHousekeeping(db);
  assert.deepEqual(await days('audit_entries', sql`at`), [1, 3, 5, 19]);
  assert.deepEqual(await days('connections', sql`started_at`), [1]);
  assert.deepEqual(await days('mails', sql`created_at`), [1, 3]);
});

test('wrong settings are refused with what to write instead', () => {
  const problems = (retention: unknown) => {
    try {
      createPlatform({ retention: retention as object });
    } catch (error) {
      return (error as PlatformError).problems.join('\n');
    }
    return null;
  };
  const wrong: [unknown, RegExp][] = [
    [{ deliveriesDays: 6 }, /^retention\.deliveriesDays: must be an integer from 7 to 366 \(days\)$/],
    [{ deliveriesDays: 30.5 }, /must be an integer/],
    [{ auditDays: '90' }, /^retention\.auditDays: must be an integer from 1 to 3660/],
    [{ auditDays: null }, /^retention\.auditDays/],
    [{ rejectedDays: 0 }, /or null to keep them$/],
    [{ responsesDays: 31 }, /^retention\.responsesDays: must be at most retention\.deliveriesDays/],
    [{ bodiesDays: 3 }, /^retention\.bodiesDays: is not a known setting; there are deliveriesDays, /],
    [[], /must be an object/],
    [7, /^retention: must be an object$/],
  ];
  for (const [given, expected] of wrong) assert.match(problems(given) ?? 'accepted', expected);
  assert.equal(problems({ deliveriesDays: 366, rejectedDays: null }), null);
  assert.equal(createPlatform({ retention: { deliveriesDays: 8 } }).retention.responsesDays, 8);
});
