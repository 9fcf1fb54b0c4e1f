/**
 * Many callers share few connections, and every kind of failure occurs. Each caller gets its own result or error, which
 * agrees with the content of the database.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import pg from 'pg';
import { newId } from '../../src/crypto/ids.ts';
import {
  type Database,
  isDatabaseUnavailable,
  openDatabase,
  type Transaction,
} from '../../src/database/database.ts';
import { createDatabase } from '../support/database/database.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';

const database = await createDatabase();
const proxy = await startDatabaseProxy(database.url);
/** Reads the stored rows on connections without faults. */
const observer = openDatabase({ connectionString: database.url, connectionsMax: 2 });
after(async () => {
  await proxy.close();
  await observer.destroy();
  await database.drop();
});
await sql`create table fuzz_parents (id int primary key)`.execute(observer);
await sql`
  create table fuzz_rows (
    token text primary key,
    n int not null default 0 constraint fuzz_bound check (n < 100),
    parent int references fuzz_parents deferrable initially deferred)`.execute(observer);
await sql`create table fuzz_counts (id int primary key, n int not null default 0)`.execute(observer);
await sql`insert into fuzz_counts (id) values (1), (2)`.execute(observer);
await sql`create table fuzz_wide (id int primary key)`.execute(observer);
await sql`insert into fuzz_wide (id) values (1)`.execute(observer);
// PostgreSQL detects a deadlock at once, not after a second.
await sql
  .raw(`alter database "${new URL(database.url).pathname.slice(1)}" set deadlock_timeout = '20ms'`)
  .execute(observer);

interface Row {
  token: string;
}

/** The work of one caller. It must end with rows of its own token, or with the expected SQLSTATE or error text. */
interface Kind {
  run: (db: Database, token: string) => Promise<readonly Row[]>;
  /** The expected error; undefined if the work succeeds. */
  fails?: string;
  /** Whether successful work leaves a row with its token. */
  writes?: true;
}

const insert = (db: Database | Transaction, token: string) =>
  sql<Row>`insert into fuzz_rows (token) values (${token}) returning token`.execute(db);

/** A value that throws when it is converted, before the statement is sent. */
function unconvertible(token: string): object {
  return {
    toPostgres() {
      throw new Error(`cannot convert ${token}`);
    },
  };
}

/** The rows that the caller gets from its statement. */
async function rowsOf(result: Promise<{ rows: Row[] }>): Promise<Row[]> {
  return (await result).rows;
}

const kinds = {
  read: { run: (db, token) => rowsOf(sql<Row>`select ${token}::text as token`.execute(db)) },
  'read of many rows': {
    run: (db, token) =>
      rowsOf(sql<Row>`select ${token}::text as token from generate_series(1, 50)`.execute(db)),
  },
  'read of a table that grows columns': {
    run: (db, token) => rowsOf(sql<Row>`select ${token}::text as token, w.* from fuzz_wide w`.execute(db)),
  },
  'added column': {
    async run(db, token) {
      await sql.raw(`alter table fuzz_wide add column "c${token}" int`).execute(observer);
      return rowsOf(sql<Row>`select ${token}::text as token, w.* from fuzz_wide w`.execute(db));
    },
  },
  write: { run: (db, token) => rowsOf(insert(db, token)), writes: true },
  transaction: {
    run: (db, token) => rowsOf(db.transaction().execute((tx) => insert(tx, token))),
    writes: true,
  },
  'value that cannot be converted': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`insert into fuzz_rows (token, n) values (${token}, ${unconvertible(token)})`.execute(db),
      ),
    fails: 'cannot convert',
  },
  'value that cannot be converted, in a transaction': {
    run: (db, token) =>
      db.transaction().execute(async (tx) => {
        await insert(tx, token);
        return rowsOf(sql<Row>`select ${unconvertible(token)}::text as token`.execute(tx));
      }),
    fails: 'cannot convert',
  },
  'value of the wrong type': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`insert into fuzz_rows (token, n) values (${token}, ${`no number ${token}`}::int)`.execute(
          db,
        ),
      ),
    fails: '22P02',
  },
  'value with a NUL': {
    run: (db, token) => rowsOf(sql<Row>`select ${`${token}\0`}::text as token`.execute(db)),
    fails: '22021',
  },
  'check that is violated': {
    run: (db, token) =>
      rowsOf(sql<Row>`insert into fuzz_rows (token, n) values (${token}, 100) returning token`.execute(db)),
    fails: '23514',
  },
  'error after some rows': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`select ${token}::text as token, 1 / (20 - n) from generate_series(1, 50) n`.execute(db),
      ),
    fails: '22012',
  },
  'constraint that fails at the commit': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`insert into fuzz_rows (token, parent) values (${token}, -1) returning token`.execute(db),
      ),
    fails: '23503',
  },
  'constraint that fails at the commit of a transaction': {
    run: (db, token) =>
      db.transaction().execute(async (tx) => {
        await insert(tx, token);
        return rowsOf(
          sql<Row>`update fuzz_rows set parent = -1 where token = ${token} returning token`.execute(tx),
        );
      }),
    fails: '23503',
  },
  'serialization failure': {
    run: (db, token) =>
      db
        .transaction()
        .setIsolationLevel('repeatable read')
        .execute(async (tx) => {
          await insert(tx, token);
          await sql`update fuzz_wide set id = id where id = ${1}::int`.execute(observer);
          return rowsOf(
            sql<Row>`update fuzz_wide set id = id where id = ${1}::int returning ${token}::text as token`.execute(
              tx,
            ),
          );
        }),
    fails: '40001',
  },
  'statement that is cancelled': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`
          with written as (insert into fuzz_rows (token) values (${token}) returning token)
          select token, pg_cancel_backend(pg_backend_pid()), pg_sleep(60) from written`.execute(db),
      ),
    fails: '57014',
  },
  'statement that takes too long': {
    run: (db, token) =>
      db.transaction().execute(async (tx) => {
        await insert(tx, token);
        await sql`set local statement_timeout = 10`.execute(tx);
        return rowsOf(sql<Row>`select ${token}::text as token, pg_sleep(60)`.execute(tx));
      }),
    fails: '57014',
  },
  'connection that the database ends': {
    run: (db, token) =>
      rowsOf(
        sql<Row>`
          with written as (insert into fuzz_rows (token) values (${token}) returning token)
          select token, pg_terminate_backend(pg_backend_pid()), pg_sleep(60) from written`.execute(db),
      ),
    fails: '57P01',
  },
  'connections that are cut': {
    async run(db, token) {
      const read = rowsOf(sql<Row>`select ${token}::text as token`.execute(db));
      await new Promise(setImmediate);
      proxy.cut();
      proxy.mend();
      return read;
    },
  },
} satisfies Record<string, Kind> as Record<string, Kind>;

interface Outcome {
  name: string;
  token: string;
  rows?: readonly Row[];
  error?: Error;
}

async function outcomeOf(db: Database, name: string): Promise<Outcome> {
  const token = newId().replaceAll('-', '');
  try {
    return { name, token, rows: await (kinds[name] as Kind).run(db, token) };
  } catch (error) {
    return { name, token, error: error as Error };
  }
}

async function hasRow(token: string): Promise<boolean> {
  const { rows } = await sql`select from fuzz_rows where token = ${token}`.execute(observer);
  return rows.length > 0;
}

/** How often each kind ended as expected without other faults. */
const seen = new Map<string, number>();

async function judge({ name, token, rows, error }: Outcome): Promise<void> {
  const { fails, writes } = kinds[name] as Kind;
  const what = `${name}: ${error?.message ?? JSON.stringify(rows)}`;
  if (error !== undefined && fails !== '57P01' && isDatabaseUnavailable(error)) {
    // The connection broke before the result arrived. The statement was executed completely or not at all, and the error
    // says that the outcome is unknown.
    return;
  }
  seen.set(name, (seen.get(name) ?? 0) + 1);
  if (error === undefined) {
    assert.equal(fails, undefined, what);
    assert.ok(rows !== undefined && rows.length > 0, what);
    for (const row of rows) assert.equal(row.token, token, what);
    assert.equal(await hasRow(token), writes === true, what);
    return;
  }
  if (fails === '57P01') {
    assert.ok(isDatabaseUnavailable(error), what);
    return;
  }
  if (error instanceof pg.DatabaseError) assert.equal(error.code, fails, what);
  else assert.match(error.message, new RegExp(`^${fails} ${token}$`), what);
  if (fails === '22P02') assert.match(error.message, new RegExp(token), what);
  if (fails === '23514') assert.match((error as pg.DatabaseError).detail ?? '', new RegExp(token), what);
  assert.equal(await hasRow(token), false, what);
}

/** Two callers that lock the same two rows in opposite orders: at most one of them is rejected. */
async function deadlock(db: Database): Promise<void> {
  const both = Promise.withResolvers<void>();
  let holding = 0;
  const take = (tx: Transaction, id: number) =>
    sql`update fuzz_counts set n = n + 1 where id = ${id}::int`.execute(tx);
  const tokens = [newId(), newId()] as const;
  const caller = (token: string, first: number, second: number) =>
    db.transaction().execute(async (tx) => {
      await insert(tx, token);
      await take(tx, first);
      holding += 1;
      if (holding === 2) both.resolve();
      await both.promise;
      await take(tx, second);
    });
  const outcomes = await Promise.allSettled([caller(tokens[0], 1, 2), caller(tokens[1], 2, 1)]);
  for (const [index, outcome] of outcomes.entries()) {
    const isWritten = await hasRow(tokens[index] as string);
    assert.equal(isWritten, outcome.status === 'fulfilled');
    if (outcome.status === 'rejected') assert.equal((outcome.reason as pg.DatabaseError).code, '40P01');
  }
  assert.equal(outcomes.filter(({ status }) => status === 'rejected').length, 1);
}

const calm = Object.keys(kinds).filter((name) => !/connection/.test(name));

async function holds(names: string[], waves: string[][], connectionsMax: number): Promise<void> {
  const db = openDatabase({ connectionString: proxy.url, connectionsMax });
  try {
    const outcomes: Promise<Outcome>[] = [];
    for (const wave of [names, ...waves]) {
      outcomes.push(...wave.map((name) => outcomeOf(db, name)));
      await new Promise(setImmediate);
    }
    for (const outcome of await Promise.all(outcomes)) await judge(outcome);
    // After all faults, the next caller gets its result.
    await judge(await outcomeOf(db, 'read'));
  } finally {
    await db.destroy();
  }
}

test('each kind of failure at each position leaves other callers’ results intact', async () => {
  const position = 5;
  for (const name of calm) {
    for (let at = 0; at < position; at += 1) {
      const names = Array.from({ length: position }, (_, index) => (index === at ? name : 'write'));
      await holds(names, [], 2);
    }
  }
  for (const name of calm) assert.ok((seen.get(name) ?? 0) >= position, name);
});

test('callers that fail in every way concurrently get their own results and errors', async () => {
  const wave = fc.array(fc.constantFrom(...Object.keys(kinds)), { minLength: 1, maxLength: 20 });
  await fc.assert(
    fc.asyncProperty(wave, fc.array(wave, { maxLength: 2 }), fc.integer({ min: 1, max: 3 }), holds),
    { seed: 18, numRuns: 60 },
  );
});

test('a deadlock refuses and undoes one of two transactions while other callers continue', async () => {
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 4 });
  try {
    for (let round = 0; round < 5; round += 1) {
      const others = ['write', 'transaction', 'check that is violated', 'read'].map((name) =>
        outcomeOf(db, name),
      );
      await deadlock(db);
      for (const outcome of await Promise.all(others)) await judge(outcome);
    }
  } finally {
    await db.destroy();
  }
});

test('a silent database gives nobody the result of an earlier statement', async () => {
  // This tests the timeout: it is short, and any caller can exceed it.
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 2, resultTimeoutMs: 200 });
  try {
    for (let round = 0; round < 3; round += 1) {
      const asked = ['write', 'read', 'transaction', 'read of many rows', 'read'].map((name) =>
        outcomeOf(db, name),
      );
      await new Promise(setImmediate);
      proxy.freeze();
      const outcomes = await Promise.all(asked);
      proxy.mend();
      outcomes.push(...(await Promise.all(['read', 'write', 'read'].map((name) => outcomeOf(db, name)))));
      for (const outcome of outcomes) await judge(outcome);
    }
  } finally {
    await db.destroy();
  }
});
