/** What a list of subscriptions costs. No server runs. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { listSubscriptions } from '../../../src/webhooks/subscriptions/subscription_lists.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { captureStatements, rowsOf } from '../../support/database/plans.ts';

test('a list planned while there were few subscriptions does not compare all of them with all lanes', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  const accountId = newId();
  const add = (account: string, count: number) =>
    sql`
      with made as (
        insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
        select gen_random_uuid(), ('x' || substr(md5(random()::text), 1, 13))::bit(52)::bigint, 'user', ${account}, 'http://127.0.0.1/',
          '{push}', 'timestamp', ''
        from generate_series(1, ${count}::int)
        returning lane
      )
      insert into lane_progress (lane) select lane from made`.execute(db);
  await sql`alter table subscriptions set (autovacuum_enabled = false)`.execute(db);
  await sql`alter table lane_progress set (autovacuum_enabled = false)`.execute(db);
  await add(accountId, 1);
  await sql`analyze subscriptions, lane_progress`.execute(db);
  const list = async () => {
    const { found } = await listSubscriptions(db, { kind: 'user', accountId }, 10, null);
    assert.equal(found.length, 1);
  };
  await captureStatements('force_generic_plan', list);
  const count = 1_000;
  await add(newId(), count);
  const rows = rowsOf(await captureStatements('force_generic_plan', list));
  assert.ok(rows < 10 * count, `${rows} rows`);
});
