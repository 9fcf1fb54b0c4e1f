/** The counts behind the health of subscriptions: written in small statements, and slowly when there are many. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../../src/database/database.ts';
import {
  addBacklogs,
  addCounts,
  DeliveryCounts,
  describeCounts,
  readBacklog,
  readCounts,
  readStats,
} from '../../../src/webhooks/log/delivery_stats.ts';
import { timesAsMuch } from '../../support/processor_time.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { addPaused, createApp } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const lanes = Array.from({ length: 1_200 }, (_, index) => 7_000_000 + index);
const at = Date.parse('2026-01-01T12:00:00Z');
const delivered = (lane: number) => ({
  lane,
  attempt: { durationMs: 5, error: null, status: 200 },
  retry: null,
});

test('many counts are written in parts, and counts of a bucket that waits are written with it', async (t) => {
  const rows: number[] = [];
  let onWritten = () => {};
  const pool = openDatabase({
    connectionString: server.databaseUrl,
    connectionsMax: 1,
    onConnect: async (client) => {
      const query = client.query.bind(client) as (...parameters: unknown[]) => Promise<{ rowCount: number }>;
      Object.assign(client, {
        async query(...parameters: unknown[]) {
          const result = await query(...parameters);
          if (!String(parameters[0]).includes('delivery_stats')) return result;
          rows.push(result.rowCount);
          onWritten();
          return result;
        },
      });
    },
  });
  t.after(() => pool.destroy());
  const counts = new DeliveryCounts(pool);
  counts.add(lanes.map(delivered), at);
  const hurry = new AbortController();
  const last = lanes.at(-1) as number;
  onWritten = () => {
    if (rows.length > 1) return;
    // The last lane waits for the last statement.
    counts.add([delivered(last)], at);
    hurry.abort();
  };
  await counts.flush(hurry.signal);
  // Two buckets of each lane, and those of the total.
  assert.deepEqual(rows, [1_002, 1_002, 402]);
  const { rows: found } = await sql<{ lane: string; attempts: string }>`
    select lane, counts[1] as attempts from delivery_stats
    where lane = any(${[last, lanes[0]]}::bigint[]) and seconds = 3600 order by lane`.execute(server.db);
  assert.deepEqual(
    found.map(({ lane, attempts }) => [Number(lane), Number(attempts)]),
    [
      [lanes[0], 1],
      [last, 2],
    ],
  );
});

test('attack: buckets of many subscriptions are summed by the database', async () => {
  const many = lanes.slice(0, 100);
  await sql`
    insert into delivery_stats (lane, seconds, bucket, counts)
    select lane, 3600, to_timestamp(${at / 1_000}::float8) - hour * interval '1 hour', array[hour, 1, 0]::bigint[]
    from unnest(${many}::bigint[]) as lane cross join generate_series(1, 720) as hour`.execute(server.db);
  const range = { since: new Date(at - 720 * 3_600_000), until: new Date(at), seconds: 3_600 };
  const { buckets, totals } = await readStats(server.db, many, range);
  assert.equal(buckets.length, 720);
  assert.equal(buckets[0]?.at.getTime(), range.since.getTime());
  assert.equal(buckets[0]?.outcomes.attempts, 720 * many.length);
  assert.equal(totals.outcomes.attempts, ((720 * 721) / 2) * many.length);
  assert.equal(totals.outcomes.succeeded, 720 * many.length);
  assert.equal(totals.outcomes.failed, 0);
  const read = (those: readonly number[]) => () => readStats(server.db, those, range);
  // To read all rows takes some 50 times as much as those of one.
  const ratio = await timesAsMuch(read(many), read(many.slice(0, 1)));
  assert.ok(ratio < 10, String(ratio));
});

/** Adds deliveries that wait to all lanes of an account: half of them after a failed attempt, and half that were not attempted. */
async function addWaiting(accountId: string, from: number, to: number, isFresh: boolean): Promise<void> {
  await sql`
    with waiting as (
      insert into deliveries (day, lane, sequence, event)
      select (now() at time zone 'utc')::date, lane, sequence, 1
      from subscriptions cross join generate_series(${from}::int, ${to}::int) as sequence
      where account_id = ${accountId}
      returning lane, sequence, day
    ), attempted as (
      insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms)
      select day, lane, sequence, now(), 1, 's', false, 1, 5 from waiting where not ${isFresh}
    )
    insert into retries (lane, sequence, day, state, attempts)
    select lane, sequence, day, 'pending', 1 from waiting where not ${isFresh}`.execute(server.db);
  await sql`
    update lanes set next_sequence = ${to + 1}::int
    where id in (select lane from subscriptions where account_id = ${accountId})`.execute(server.db);
  if (isFresh) return;
  await sql`
    update lane_progress set cursor = ${to}::int
    where lane in (select lane from subscriptions where account_id = ${accountId})`.execute(server.db);
}

test('attack: the backlog of many deliveries takes about as many scans as that of few', async () => {
  const scansOf = async (waiting: number) => {
    const app = await createApp(server);
    await addPaused(server.db, app, 3);
    await addWaiting(app.account.id, 1, waiting, false);
    await addWaiting(app.account.id, waiting + 1, 2 * waiting, true);
    const { rows } = await sql<{ lane: string }>`
      select lane from subscriptions where account_id = ${app.account.id}`.execute(server.db);
    return server.db.transaction().execute(async (tx) => {
      const backlog = await readBacklog(
        tx,
        rows.map(({ lane }) => Number(lane)),
      );
      assert.deepEqual([backlog.pending, backlog.isCapped], [3 * 2 * waiting, false]);
      assert.ok(backlog.oldestAt !== null);
      const { rows: counted } = await sql<{ scans: number }>`
        select sum(idx_scan)::int as scans from pg_stat_xact_user_tables
        where relname ~ '^(deliveries|attempts|retries)'`.execute(tx);
      return counted[0]?.scans;
    });
  };
  const [few = 0, many = 0] = [await scansOf(4), await scansOf(400)];
  // Twice as many at most, should another plan be chosen meanwhile. A look-up of each would be a hundred times as many.
  assert.ok(few > 0 && many <= 2 * few, `${many} beside ${few}`);
});

test('a backlog leaves out what was attempted past the cursor', async () => {
  const app = await createApp(server);
  await addPaused(server.db, app, 1);
  await addWaiting(app.account.id, 1, 4, true);
  const { rows } = await sql<{ lane: string }>`
    update deliveries d set created_at = timestamptz '2026-01-01' + d.sequence * interval '1 day'
    from subscriptions s where s.account_id = ${app.account.id} and d.lane = s.lane
    returning d.lane`.execute(server.db);
  const lane = Number(rows[0]?.lane);
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms)
    select day, lane, sequence, now(), number, 's', false, 1, 5
    from deliveries cross join generate_series(1, 2) as number
    where lane = ${lane} and sequence = 1`.execute(server.db);
  await sql`
    insert into retries (lane, sequence, day, state, attempts)
    select lane, sequence, day, 'cancelled', 0 from deliveries where lane = ${lane} and sequence = 2`.execute(
    server.db,
  );
  const oldestAt = new Date('2026-01-04T00:00:00Z');
  assert.deepEqual(await readBacklog(server.db, [lane]), { pending: 2, isCapped: false, oldestAt });
});

test('sums and backlogs of slices added are those of all subscriptions at once', async () => {
  const app = await createApp(server);
  await addPaused(server.db, app, 30);
  const { rows } = await sql<{ lane: string }>`
    select lane from subscriptions where account_id = ${app.account.id} order by id`.execute(server.db);
  const all = rows.map(({ lane }) => Number(lane));
  const slices = [all.slice(0, 12), all.slice(12, 24), all.slice(24)] as const;
  // Not all have all buckets, and a slice may have the first one or the last alone.
  await sql`
    insert into delivery_stats (lane, seconds, bucket, counts)
    select lane, 3600, to_timestamp(${at / 1_000}::float8) - hour * interval '1 hour',
      array(select (number * 7 + hour * place + count) % 13 from generate_series(1, 26) as count)::bigint[]
    from unnest(${all}::bigint[]) with ordinality as given (lane, number)
      cross join generate_series(1, 40) as hour
      cross join lateral (select (number % 5 + 1)::int as place) as of_lane
    where hour % place = 0`.execute(server.db);
  await addWaiting(app.account.id, 1, 200, false);
  await addWaiting(app.account.id, 201, 400, true);
  await sql`
    update deliveries set created_at = timestamptz '2026-01-01' + (lane % 1000) * interval '1 hour'
    where lane = any(${all}::bigint[])`.execute(server.db);
  const range = { since: new Date(at - 60 * 3_600_000), until: new Date(at), seconds: 3_600 };
  const counted = await Promise.all(slices.map((slice) => readCounts(server.db, slice, range)));
  const sum = await readStats(server.db, all, range);
  assert.equal(sum.buckets.length, 40);
  assert.ok(sum.totals.latencyMs.p50 !== null && Object.keys(sum.totals.errors).length > 0);
  assert.deepEqual(describeCounts(counted.reduce(addCounts)), sum);
  assert.deepEqual(describeCounts(counted.toReversed().reduce(addCounts)), sum);
  const backlogs = await Promise.all(slices.map((slice) => readBacklog(server.db, slice)));
  const backlog = await readBacklog(server.db, all);
  // Each slice is below the limit.
  assert.deepEqual(
    backlogs.map(({ pending, isCapped }) => [pending, isCapped]),
    [4_800, 4_800, 2_400].map((pending) => [pending, false]),
  );
  assert.deepEqual([backlog.pending, backlog.isCapped], [10_000, true]);
  assert.deepEqual(backlogs.reduce(addBacklogs), backlog);
  const some = all.slice(0, 24);
  assert.deepEqual(backlogs.slice(0, 2).reduce(addBacklogs), await readBacklog(server.db, some));
  const none = { pending: 0, isCapped: false, oldestAt: null };
  assert.deepEqual(addBacklogs(none, none), none);
  assert.deepEqual(addBacklogs(none, backlog), backlog);
  assert.deepEqual(addBacklogs(backlog, none), backlog);
});
