import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { deleteByPage } from '../../src/database/batches.ts';
import type { Database } from '../../src/database/database.ts';
import { openTestDatabase } from '../support/database/open_database.ts';

const isExpired = sql`expires_at < now()`;

test('deleting without an index reads a table about once, however many live rows precede', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  await createRows(db, { live: 60_000, expired: 20_000 });
  await db.transaction().execute(async (tx) => {
    const { deleted, next } = await deleteByPage(tx, 'unindexed', isExpired);
    assert.deepEqual({ deleted, next }, { deleted: 20_000, next: 0 });
    const read = await readRows(tx);
    assert.ok(read >= 80_000 && read < 2 * 80_000, `${read} rows were read`);
  });
});

test('a deletion with limits continues where the one before it ended, and then begins again', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  await createRows(db, { live: 0, expired: 20_000 });
  const range = { pagesMax: () => 256, rowsMax: Number.POSITIVE_INFINITY };
  const first = await deleteByPage(db, 'unindexed', isExpired, { ...range, from: 0 });
  assert.equal(first.next, 256);
  const second = await deleteByPage(db, 'unindexed', isExpired, { ...range, from: first.next });
  assert.equal(second.next, 512);
  assert.equal(second.deleted, first.deleted);
  const few = await deleteByPage(db, 'unindexed', isExpired, {
    from: 512,
    pagesMax: (pages) => pages,
    rowsMax: 1,
  });
  assert.equal(few.next, 640);
  const rest = await deleteByPage(db, 'unindexed', isExpired, {
    ...range,
    pagesMax: (pages) => pages,
    from: few.next,
  });
  assert.equal(rest.next, 0);
  assert.equal(first.deleted + second.deleted + few.deleted + rest.deleted, 20_000);
  const shrunk = await deleteByPage(db, 'unindexed', isExpired, { ...range, from: 1_000_000 });
  assert.deepEqual(shrunk, { deleted: 0, next: 0 });
});

async function createRows(db: Database, { live, expired }: { live: number; expired: number }): Promise<void> {
  await sql`create table unindexed (expires_at timestamptz not null, filler text not null)`.execute(db);
  await sql`
    insert into unindexed
    select now() + case when i <= ${live}::int then interval '1 hour' else interval '-1 hour' end, repeat('x', 500)
    from generate_series(1, ${live + expired}::int) i`.execute(db);
}

/** Rows of the table that this transaction has read. */
async function readRows(tx: Database): Promise<number> {
  const { rows } = await sql<{ read: number }>`
    select pg_stat_get_xact_tuples_returned('unindexed'::regclass)::int as read`.execute(tx);
  return rows[0]?.read ?? 0;
}
