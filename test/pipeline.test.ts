/** Statements that share a connection: each has its own answer, and none is lost with another's. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { isDatabaseUnavailable, openDatabase } from '../src/database/database.ts';
import { openPipeline } from '../src/database/pipeline.ts';
import { createDatabase } from './support/database.ts';

const database = await createDatabase();
const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
const pipeline = openPipeline({ connectionString: database.url, connectionsMax: 2 });
after(async () => {
  await pipeline.destroy();
  await db.destroy();
  await database.drop();
});

async function double(n: number): Promise<number> {
  const { rows } = await sql<{ n: number; pid: number }>`
    select ${n}::int * 2 as n, pg_backend_pid() as pid`.execute(pipeline);
  return rows[0]?.n ?? Number.NaN;
}

async function connections(): Promise<number[]> {
  const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(pipeline);
  return rows.map((row) => row.pid);
}

test('many statements at once are answered each by its own, on no more connections than allowed', async () => {
  const numbers = Array.from({ length: 500 }, (_, index) => index);
  assert.deepEqual(
    await Promise.all(numbers.map(double)),
    numbers.map((n) => n * 2),
  );
  const pids = (await Promise.all(numbers.map(connections))).flat();
  assert.equal(new Set(pids).size, 2);
});

test('one that fails takes nothing with it: not those before, not those behind', async () => {
  await sql`create table numbers (n int primary key)`.execute(db);
  const insert = (n: number) => sql`insert into numbers (n) values (${n})`.execute(pipeline);
  const outcomes = await Promise.allSettled([
    insert(1),
    insert(1),
    insert(2),
    double(3),
    insert(2),
    insert(3),
  ]);
  const [first, second, third, fourth, fifth, sixth] = outcomes.map((outcome) => outcome.status);
  // Which of two comes first is not said: by themselves they go over two connections.
  assert.deepEqual([first, second].sort(), ['fulfilled', 'rejected']);
  assert.deepEqual([third, fifth].sort(), ['fulfilled', 'rejected']);
  assert.deepEqual([fourth, sixth], ['fulfilled', 'fulfilled']);
  const { rows } = await sql<{ n: number }>`select n from numbers order by n`.execute(db);
  assert.deepEqual(
    rows.map((row) => row.n),
    [1, 2, 3],
  );
});

test('what comes in one turn is one transaction, committed before anybody is answered', async () => {
  const xids = await Promise.all(
    Array.from({ length: 10 }, async () => {
      const { rows } = await sql<{ xid: string; kept: boolean }>`
        select pg_current_xact_id()::text as xid, ${true}::boolean as kept`.execute(pipeline);
      const xid = rows[0]?.xid as string;
      const { rows: seen } = await sql<{ status: string }>`
        select pg_xact_status(${xid}::xid8) as status`.execute(db);
      assert.equal(seen[0]?.status, 'committed');
      return xid;
    }),
  );
  assert.equal(new Set(xids).size, 1);
});

test('one that is refused has done nothing of what the others did, and each is done once', async () => {
  await sql`create table counts (n int not null check (n < 3))`.execute(db);
  await sql`insert into counts values (0)`.execute(db);
  const count = () => sql`update counts set n = n + ${1}::int`.execute(pipeline);
  const outcomes = await Promise.allSettled([count(), count(), count(), double(4), count()]);
  assert.deepEqual(outcomes.map((outcome) => outcome.status).sort(), [
    'fulfilled',
    'fulfilled',
    'fulfilled',
    'rejected',
    'rejected',
  ]);
  const { rows } = await sql<{ n: number }>`select n from counts`.execute(db);
  assert.equal(rows[0]?.n, 2);
});

test('what was prepared before a column was added is prepared anew, together and by itself', async () => {
  await sql`create table wide (n int)`.execute(db);
  await sql`insert into wide values (1)`.execute(db);
  const read = () => sql`select * from wide where n = ${1}::int`.execute(pipeline);
  await Promise.all([read(), read()]);
  await sql`alter table wide add column more text default 'x'`.execute(db);
  for (const { rows } of await Promise.all([read(), read(), read()]))
    assert.deepEqual(rows, [{ n: 1, more: 'x' }]);
  await sql`alter table wide add column still text default 'y'`.execute(db);
  assert.deepEqual((await read()).rows, [{ n: 1, more: 'x', still: 'y' }]);
});

test('a transaction is refused: others would be in it', async () => {
  await assert.rejects(
    pipeline.transaction().execute(() => double(1)),
    /connection of its own/,
  );
  assert.equal(await double(2), 4);
});

test('a connection that breaks fails what is under way on it, and the next statement has another', async () => {
  const waiting = sql`select pg_sleep(60)`.execute(pipeline);
  const behind = double(1);
  const refused = Promise.all([
    assert.rejects(waiting, isDatabaseUnavailable),
    assert.rejects(behind, isDatabaseUnavailable),
  ]);
  let ended = 0;
  while (ended === 0) {
    const { rows } = await sql`
      select pg_terminate_backend(pid) from pg_stat_activity
      where query like '%pg_sleep(60)' and datname = current_database() and pid <> pg_backend_pid()`.execute(
      db,
    );
    ended = rows.length;
  }
  await refused;
  assert.equal(await double(21), 42);
});
