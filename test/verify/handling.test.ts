/** Each delivery once, and in order, with the stores in memory, PostgreSQL and SQLite. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { DatabaseSync } from 'node:sqlite';
import { describe, type TestContext, test } from 'node:test';
import pg from 'pg';
import {
  type DeliveryStore,
  HandlingError,
  inOrder,
  memoryStore,
  once,
  postgresStore,
  sqliteStore,
} from '../../src/verify/verify.ts';
import { createForeignDatabase } from '../support/database/database.ts';

const source = readFileSync(new URL('../../src/verify/stores.ts', import.meta.url), 'utf8');
/** The statements of the doc comments, which the documentation shows, too. */
const [postgresTable, sqliteTable] = [...source.matchAll(/^ \*\s+(create table[\s\S]*?\n \*\s+\))$/gm)].map(
  ([, text = '']) => text.replaceAll(/^ \*/gm, ''),
) as [string, string];

async function openPool(t: TestContext): Promise<pg.Pool> {
  const database = await createForeignDatabase();
  const pool = new pg.Pool({ connectionString: database.url });
  // `end` does not wait for the server, so dropping the database may still close a connection.
  pool.on('error', () => {});
  t.after(async () => {
    await pool.end();
    await database.drop();
  });
  await pool.query(postgresTable);
  return pool;
}

const stores: Record<string, (t: TestContext) => Promise<DeliveryStore>> = {
  memory: async () => memoryStore(),
  PostgreSQL: async (t) => postgresStore(await openPool(t)),
  SQLite: async (t) => {
    const database = new DatabaseSync(':memory:');
    t.after(() => database.close());
    database.exec(sqliteTable);
    return sqliteStore(database);
  },
};

const lane = '5b0c7a41-9e2d-8f3a-8c41';
const delivery = (sequence: number, start = lane) => ({
  id: `${start}-${sequence.toString(16).padStart(12, '0')}`,
  sequence,
});
const withCode = (code: string) => (error: unknown) => error instanceof HandlingError && error.code === code;

const unwanted = () => assert.fail('it was handled before');

/** A handler that waits until it is told to end. */
function waiting() {
  const { promise: started, resolve: start } = Promise.withResolvers<void>();
  const { promise: ended, resolve: end, reject: fail } = Promise.withResolvers<void>();
  const handler = () => {
    start();
    return ended;
  };
  return { started, end, fail, handler };
}

for (const [name, open] of Object.entries(stores)) {
  describe(`handled deliveries in ${name}`, () => {
    test('once runs the handler of an id once, in any order of ids', async (t) => {
      const handle = once(await open(t));
      const handled: number[] = [];
      for (const sequence of [2, 1, 2, 300, 1, 2]) {
        const isNew = !handled.includes(sequence);
        const one = { ...delivery(sequence), kind: 'push' };
        const result = await handle(one, ({ kind, sequence: given }) => {
          assert.equal(kind, 'push');
          handled.push(given);
        });
        assert.equal(result, isNew);
      }
      assert.deepEqual(handled, [2, 1, 300]);
    });

    test('a delivery whose handler has failed is handled when it is retried', async (t) => {
      const store = await open(t);
      for (const handle of [once(store), inOrder(store)]) {
        const failure = new Error('the disk is full');
        for (let attempt = 1; attempt <= 2; attempt += 1) {
          await assert.rejects(
            handle(delivery(7), async () => Promise.reject(failure)),
            failure,
          );
        }
        const throwing = () => {
          throw failure;
        };
        await assert.rejects(handle(delivery(7), throwing), failure);
        assert.equal(await handle(delivery(7), () => {}), true);
        assert.equal(await handle(delivery(7), throwing), false);
      }
    });

    test('of concurrent duplicates one is handled, and the others are busy', async (t) => {
      const store = await open(t);
      for (const handle of [once(store), inOrder(store)]) {
        const results = await Promise.allSettled(
          Array.from({ length: 10 }, async () =>
            handle(delivery(9), () => new Promise((end) => setTimeout(end, 50))),
          ),
        );
        const handled = results.filter((each) => each.status === 'fulfilled' && each.value);
        assert.equal(handled.length, 1);
        for (const each of results) {
          if (each.status === 'rejected') assert.ok(withCode('busy')(each.reason), String(each.reason));
        }
        const first = waiting();
        const running = handle(delivery(10), first.handler);
        await first.started;
        await assert.rejects(handle(delivery(10), unwanted), withCode('busy'));
        first.fail(new Error('failed'));
        await assert.rejects(running);
        assert.equal(await handle(delivery(10), () => {}), true);
      }
    });

    test('a claim expires, and then its holder can neither complete nor release the next one', async (t) => {
      const store = await open(t);
      const dead = waiting();
      const late = waiting();
      const abandoned = once(store, { leaseMs: 0 })(delivery(1), dead.handler);
      await dead.started;
      const second = once(store)(delivery(1), late.handler);
      await late.started;
      dead.fail(new Error('too late'));
      await assert.rejects(abandoned, /too late/);
      await assert.rejects(once(store)(delivery(1), unwanted), withCode('busy'), 'still claimed');
      late.end();
      assert.equal(await second, true);
      assert.equal(await once(store)(delivery(1), unwanted), false);
    });

    test('inOrder handles ascending sequences, one at a time, and refuses one after a later one', async (t) => {
      const handle = inOrder(await open(t));
      const handled: number[] = [];
      const run = (sequence: number, start = lane) =>
        handle(delivery(sequence, start), () => handled.push(sequence));
      // A cancelled delivery leaves a gap.
      for (const sequence of [5, 6, 8]) assert.equal(await run(sequence), true);
      assert.equal(await run(8), false);
      await assert.rejects(run(7), withCode('out-of-order'));
      const first = waiting();
      const running = handle(delivery(9), first.handler);
      await first.started;
      await assert.rejects(run(10), withCode('busy'));
      // Another subscription, and the same one after a failover, have an order of their own.
      assert.equal(await run(1, 'aaaaaaaa-9e2d-8f3a-8c41'), true);
      assert.equal(await run(6, '5b0c7a41-9e2d-8f3b-8c41'), true);
      first.end();
      await running;
      assert.equal(await run(10), true);
      assert.equal(await run(2 ** 40), true);
      assert.deepEqual(handled, [5, 6, 8, 1, 6, 10, 2 ** 40]);
    });

    test('once and inOrder share a store, whatever the ids are', async (t) => {
      const store = await open(t);
      for (const id of ['__proto__', 'constructor', "'; drop table nuncio_handled", 'ü', 'x'.repeat(255)]) {
        assert.equal(await once(store)({ id, sequence: 1 }, () => {}), true);
        assert.equal(await once(store)({ id, sequence: 1 }, unwanted), false);
        await assert.rejects(inOrder(store)({ id, sequence: 1 }, unwanted), TypeError);
      }
      await assert.rejects(inOrder(store)({ ...delivery(1), sequence: 2 }, unwanted), TypeError);
      assert.equal(await inOrder(store)(delivery(1), () => {}), true);
      assert.equal(await once(store)(delivery(1), () => {}), true);
    });
  });
}

test('a delivery is recorded with the changes of its transaction in PostgreSQL, or with none', async (t) => {
  const pool = await openPool(t);
  await pool.query('create table effects (id text)');
  const receive = async (end: 'commit' | 'rollback' | 'error', during?: () => Promise<unknown>) => {
    const client = await pool.connect();
    try {
      await client.query('begin');
      const isNew = await once(postgresStore(client))(delivery(1), async () => {
        await client.query("insert into effects values ('1')");
        await during?.();
        if (end === 'error') await client.query('select 1 / 0');
      });
      await client.query(end);
      return isNew;
    } catch (error) {
      await client.query('rollback');
      throw error;
    } finally {
      client.release();
    }
  };
  await assert.rejects(receive('error'), /division by zero/);
  assert.equal(await receive('rollback'), true);
  // A concurrent duplicate waits for the end of the first transaction.
  const second: Promise<boolean>[] = [];
  const first = await receive('commit', async () => second.push(receive('commit')));
  assert.equal(first, true);
  assert.equal(await second[0], false);
  assert.deepEqual((await pool.query('select * from effects')).rows, [{ id: '1' }]);
});

test('of many connections to PostgreSQL one handles a delivery', async (t) => {
  const pool = await openPool(t);
  const runs: number[] = [];
  for (let sequence = 1; sequence <= 20; sequence += 1) {
    const results = await Promise.allSettled(
      Array.from({ length: 8 }, () =>
        once(postgresStore(pool))(delivery(sequence), () => {
          runs.push(sequence);
        }),
      ),
    );
    for (const each of results) {
      if (each.status === 'rejected') assert.ok(withCode('busy')(each.reason), String(each.reason));
    }
  }
  assert.deepEqual(
    runs,
    Array.from({ length: 20 }, (_each, index) => index + 1),
  );
  const { rows } = await pool.query(
    'select count(*)::int as count from nuncio_handled where position = 1 and token is null',
  );
  assert.deepEqual(rows, [{ count: 20 }]);
});

test('the memory store forgets the oldest, but nothing that is being handled', async () => {
  const store = memoryStore({ max: 2 });
  const handle = once(store);
  const first = waiting();
  const running = handle(delivery(1), first.handler);
  await first.started;
  for (const sequence of [2, 3, 4]) await handle(delivery(sequence), () => {});
  await assert.rejects(handle(delivery(1), unwanted), withCode('busy'));
  first.end();
  await running;
  assert.equal(await handle(delivery(4), unwanted), false);
  assert.equal(await handle(delivery(2), () => {}), true, 'forgotten');
});

test('tables have other names, in a schema, and no SQL', async (t) => {
  const pool = await openPool(t);
  await pool.query('create schema hooks');
  await pool.query(postgresTable.replace('nuncio_handled', 'hooks.handled'));
  const handle = once(postgresStore(pool, { table: 'hooks.handled' }));
  assert.equal(await handle(delivery(1), () => {}), true);
  assert.equal(await handle(delivery(1), () => {}), false);
  for (const table of ['', 'a b', 'a.b.c', 'a;drop table b', '"a"'])
    assert.throws(() => postgresStore(pool, { table }), TypeError);
});
