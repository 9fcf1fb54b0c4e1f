/** The counts behind the health of subscriptions: written in small statements, and slowly when there are many. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../../src/database/database.ts';
import { DeliveryCounts, readStats } from '../../../src/webhooks/log/delivery_stats.ts';
import { timesAsMuch } from '../../support/processor_time.ts';
import { startTestServer } from '../../support/servers/server.ts';

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
