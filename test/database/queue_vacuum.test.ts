/** Truncation of a queue table. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { QueueVacuum } from '../../src/database/queue_vacuum.ts';
import { createDatabase } from '../support/database/database.ts';

test('a row that commits while a truncation waits for its lock is kept, whatever the default isolation is', async (t) => {
  const database = await createDatabase();
  const url = new URL(database.url);
  const options = url.searchParams.get('options') ?? '';
  url.searchParams.set('options', `${options} -c default_transaction_isolation=repeatable\\ read`.trim());
  const db = openDatabase({ connectionString: url.href, connectionsMax: 6 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const add = sql`
    insert into outbox (turn, day, positions)
    select '10000000-0000-4000-8000-000000000001', '2026-06-02', array[number] from generate_series(1, ${sql.lit(120_000)}) as number`;
  let waits = 0;
  for (let round = 0; round < 50 && waits < 3; round += 1) {
    await add.execute(db);
    await sql`delete from outbox`.execute(db);
    const publisher = await db.startTransaction().execute();
    await sql`
      insert into outbox (turn, day, positions)
      values ('10000000-0000-4000-8000-000000000001', '2026-06-02', '{1}')`.execute(publisher);
    new QueueVacuum(db, 'outbox').start(true);
    for (let look = 0; look < 100; look += 1) {
      const { rows } = await sql`
        select from pg_locks where relation = 'outbox'::regclass and mode = 'AccessExclusiveLock' and not granted`.execute(
        db,
      );
      if (rows.length === 0) continue;
      waits += 1;
      break;
    }
    await publisher.commit().execute();
    // Follows the truncation, if that goes on.
    await sql`lock table outbox in access exclusive mode`.execute(db).catch(() => {});
    const { rows } = await sql`select from outbox`.execute(db);
    assert.equal(rows.length, 1);
    await sql`truncate outbox`.execute(db);
  }
  assert.ok(waits > 0, 'no truncation waited');
});
