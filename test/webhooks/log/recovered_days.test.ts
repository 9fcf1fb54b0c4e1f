/** Lists of deliveries between two times, of a lane in which recovered deliveries of old days have newer sequences. No server runs. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { openDatabase } from '../../../src/database/database.ts';
import type { DeliveryStatus } from '../../../src/webhooks/log/delivery.ts';
import { listDeliveries, scannedMax } from '../../../src/webhooks/log/delivery_list.ts';
import type { Subscription } from '../../../src/webhooks/subscriptions/subscription.ts';
import { createDatabase } from '../../support/database/database.ts';
import { captureStatements, planModes, rowsOf } from '../../support/database/plans.ts';

const lane = 1;
const olderDays = 3;
const recovered = 3 * scannedMax;

test('a page of failed deliveries since a time reads no more where older ones were recovered', async (t) => {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const id = newId();
  const day = sql`(now() at time zone 'utc')::date - case when number in (1, ${recovered}::int) then 0 else ${olderDays}::int end`;
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${id}, ${lane}, 'user', ${newId()}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(db);
  await sql`insert into lanes (id, next_sequence) values (${lane}, ${recovered + 1})`.execute(db);
  await sql`insert into lane_progress (lane, cursor) values (${lane}, ${recovered})`.execute(db);
  for (const table of ['events', 'deliveries', 'attempts']) {
    const old = sql`(now() at time zone 'utc')::date - ${olderDays}::int`;
    await sql`select ensure_day_partition(${table}, ${old})`.execute(db);
  }
  await sql`
    insert into events (day, position, id, kind, body)
    select distinct on (1) ${day}, 1, 'event', 'push', '{}' from generate_series(1, ${recovered}::int) number`.execute(
    db,
  );
  for (const [table, columns, values] of [
    ['deliveries', sql`event`, sql`1`],
    ['retries', sql`state, attempts`, sql`'failed', 6`],
  ] as const) {
    await sql`
      insert into ${sql.table(table)} (day, lane, sequence, ${columns})
      select ${day}, ${lane}, number, ${values} from generate_series(1, ${recovered}::int) number`.execute(
      db,
    );
  }
  await sql`analyze retries, deliveries`.execute(db);

  const filter = { status: 'failed' as DeliveryStatus, kind: null, since: new Date(Date.now() - 3_600_000) };
  for (const mode of planModes) {
    const found: number[] = [];
    let before: number | null = null;
    let pages = 0;
    do {
      let page = { deliveries: [], more: null } as Awaited<ReturnType<typeof listDeliveries>>;
      const statements = await captureStatements(mode, async () => {
        page = await listDeliveries(db, { id, lane } as Subscription, filter, 50, before);
      });
      assert.ok(rowsOf(statements) < 3 * scannedMax, `${rowsOf(statements)} rows`);
      found.push(...page.deliveries.map(({ sequence }) => sequence));
      before = page.more;
      pages += 1;
    } while (before !== null);
    assert.deepEqual([found, pages], [[recovered, 1], recovered / scannedMax]);
  }
});
