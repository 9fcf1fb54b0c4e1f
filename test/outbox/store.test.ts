/** The outbox in PostgreSQL and SQLite without a server: append, read, rejected events and the lease. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { describe, test } from 'node:test';
import pg from 'pg';
import { type NewEvent, postgresOutbox, sqliteOutbox } from '../../src/outbox/outbox.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { databases, openOutbox, pushes } from '../support/publishing/application_outbox.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { until } from '../support/webhooks/apps.ts';

const everything = { events: 1_000, bytes: 8_000_000 };
const leaseMs = 5_000;

for (const database of databases) {
  describe(`outbox in ${database}`, () => {
    test('append makes events visible in the order of the calls when the transaction commits', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      await append(pushes('a', ['1', '2', '3']));
      await append(pushes({ external_id: 'user-4711' }, ['4']));
      await append(pushes({ external_id: 4711 }, ['5']));
      const events = await outbox.read(everything);
      assert.deepEqual(
        events.map(({ id, account, kind }) => [id, account, kind]),
        [
          ['1', 'a', 'push'],
          ['2', 'a', 'push'],
          ['3', 'a', 'push'],
          ['4', { external_id: 'user-4711' }, 'push'],
          ['5', { external_id: '4711' }, 'push'],
        ],
      );
      assert.deepEqual(JSON.parse(events[0]?.body ?? '').ref, 'refs/heads/1');
    });

    test('append stores no event when the transaction is rolled back', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      await append(pushes('a', ['1']), 'rollback');
      assert.equal(await outbox.hasWaiting(), false);
      assert.deepEqual(await outbox.read(everything), []);
    });

    test('append creates an id when none is given', async (t) => {
      const { append } = await openOutbox(t, database);
      const [one, two] = await append([
        { kind: 'push', account: 'a', body: null },
        { kind: 'push', account: 'a', body: null },
      ]);
      assert.match(one ?? '', /^[0-9a-f-]{36}$/);
      assert.notEqual(one, two);
    });

    test('append ignores a repeated id with the same content and throws when the content differs', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      const event = { kind: 'push', account: 'a', body: { n: 1 }, id: 'same' };
      assert.deepEqual(await append([event, event]), ['same', 'same']);
      assert.deepEqual(await append([event]), ['same']);
      for (const change of [
        { body: { n: 2 } },
        { kind: 'pull' },
        { account: 'b' },
        { account: { external_id: 'a' } },
      ]) {
        await assert.rejects(append([{ ...event, ...change }]), /different event with the id same/);
        await assert.rejects(
          append([
            { ...event, id: 'new', ...change },
            { ...event, ...change },
          ]),
          /same/,
        );
      }
      assert.deepEqual(
        (await outbox.read(everything)).map(({ id }) => id),
        ['same'],
      );
    });

    test('append stores every string unchanged', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      const body = {
        text: 'NUL \0, half \ud800 of a pair, \u2028, "quotes", \\, $1, ?, \u{1f4e8}',
        "'; drop table x; --": { __proto__: null, deep: [[[-0, 1e21, 1.5, true, null]]] },
      };
      const external = { external_id: "o'brien\\ \u{1f4e8} %s $1 ?" };
      await append([{ kind: "it's", account: external, body, id: '"x\'' }]);
      const [event] = await outbox.read(everything);
      assert.equal(event?.body, JSON.stringify(body));
      assert.deepEqual([event?.account, event?.kind, event?.id], [external, "it's", '"x\'']);
    });

    test('append throws when no server would accept the event', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      const good: NewEvent = { kind: 'push', account: 'a', body: {}, id: 'x' };
      const wrong: Record<string, unknown>[] = [
        { kind: '' },
        { kind: 7 },
        { kind: 'a\0' },
        { kind: 'x'.repeat(256) },
        { account: '' },
        { account: null },
        { account: { external_id: '' } },
        { account: { external_id: 'x'.repeat(256) } },
        { account: { external_id: '\ud800' } },
        { account: { external_id: 'a\nb' } },
        { id: '' },
        { id: 'with space' },
        { id: 'ä' },
        { id: 'x'.repeat(256) },
        { body: undefined },
        { body: () => {} },
        { body: 1n },
        { body: 'x'.repeat(262_143) },
        { body: 'ä'.repeat(131_072) },
      ];
      for (const change of wrong) {
        await assert.rejects(
          append([{ ...good, ...change } as NewEvent]),
          TypeError,
          `${JSON.stringify(Object.keys(change))}`,
        );
      }
      assert.equal(await outbox.hasWaiting(), false);
      await append([
        { ...good, body: 'x'.repeat(262_142), account: { external_id: '\u{1f4e8}'.repeat(255) } },
      ]);
      assert.equal((await outbox.read(everything))[0]?.body.length, 262_144);
    });

    test('read stops at the limits of events and bytes and always returns one event', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      const body = (bytes: number) => 'x'.repeat(bytes - 2);
      await append(
        [100, 100, 200_000, 100].map((bytes, index) => {
          return { kind: 'push', account: 'a', body: body(bytes), id: String(index) };
        }),
      );
      const ids = async (events: number, bytes: number) =>
        (await outbox.read({ events, bytes })).map(({ id }) => id).join();
      assert.equal(await ids(2, 8_000_000), '0,1');
      assert.equal(await ids(10, 1), '0');
      assert.equal(await ids(10, 100), '0');
      assert.equal(await ids(10, 101), '0,1');
      assert.equal(await ids(10, 201), '0,1,2');
      assert.equal(await ids(10, 200_201), '0,1,2,3');
    });

    test('rejected events are listed with their reason, retried with a new body and discarded', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      const before = Date.now() - 2_000;
      await append(pushes({ external_id: 'u' }, ['1', '2', '3', '4']));
      const events = await outbox.read(everything);
      assert.ok(await outbox.hold('me', leaseMs));
      const bad = events.slice(1).map(({ position }) => ({ position, reason: "it's bad" }));
      await outbox.reject('another', bad);
      assert.equal((await outbox.stats()).rejected, 0, 'the lease is another one');
      await outbox.reject('me', bad);
      assert.deepEqual(
        (await outbox.read(everything)).map(({ id }) => id),
        ['1'],
      );
      const listed = await outbox.rejected.list();
      assert.deepEqual(
        listed.map(({ id, reason, account }) => [id, reason, account]),
        ['2', '3', '4'].map((id) => [id, "it's bad", { external_id: 'u' }]),
      );
      const [first] = listed;
      assert.deepEqual(first?.body, pushes('u', ['2'])[0]?.body);
      for (const at of [first?.createdAt, first?.rejectedAt]) {
        assert.ok(
          at instanceof Date && at.getTime() > before && at.getTime() < Date.now() + 2_000,
          String(at),
        );
      }
      assert.equal((await outbox.rejected.list({ limit: 1 })).length, 1);
      assert.deepEqual(
        (await outbox.rejected.list({ after: first?.position ?? '' })).map(({ id }) => id),
        ['3', '4'],
      );
      assert.equal(await outbox.rejected.retry('2', { body: 'corrected' }), true);
      assert.equal(await outbox.rejected.retry('2'), false, 'it waits already');
      assert.equal(await outbox.rejected.retry('nothing'), false);
      await assert.rejects(outbox.rejected.retry('3', { body: undefined }), TypeError);
      assert.equal(await outbox.rejected.discard('1'), false, 'it was not rejected');
      assert.equal(await outbox.rejected.discard('3'), true);
      assert.equal(await outbox.rejected.retryAll(), 1);
      const waiting = await outbox.read(everything);
      assert.deepEqual(
        waiting.map(({ id }) => id),
        ['1', '2', '4'],
      );
      assert.equal(waiting[1]?.body, '"corrected"');
    });

    test('stats counts waiting and rejected events and returns the age of the first waiting event', async (t) => {
      const { outbox, append } = await openOutbox(t, database);
      assert.deepEqual(await outbox.stats(), { waiting: 0, rejected: 0, oldestMs: null });
      await append(pushes('a', ['1', '2', '3']));
      await outbox.hold('me', leaseMs);
      const [event] = await outbox.read({ events: 1, bytes: 1 });
      await outbox.reject('me', [{ position: event?.position ?? '', reason: 'bad' }]);
      const { waiting, rejected, oldestMs } = await outbox.stats();
      assert.deepEqual([waiting, rejected], [2, 1]);
      assert.ok(oldestMs !== null && oldestMs >= 0);
    });

    test('one relay has the lease until it releases it or the lease expires', async (t) => {
      const { outbox, another, query } = await openOutbox(t, database);
      const other = await another();
      const taken = await Promise.all(
        ['a', 'b', 'c', 'd'].map((holder, index) => (index % 2 === 0 ? outbox : other).hold(holder, leaseMs)),
      );
      assert.equal(taken.filter(Boolean).length, 1);
      const holder = ['a', 'b', 'c', 'd'][taken.indexOf(true)] as string;
      assert.equal(await other.hold(holder, leaseMs), true, 'it renews its own');
      await other.release('somebody else');
      assert.equal(await other.hold('e', leaseMs), false);
      await outbox.release(holder);
      assert.equal(await other.hold('e', leaseMs), true);
      // The lease has expired.
      await query(
        database === 'SQLite'
          ? `update nuncio_outbox_lease set until = ${Date.now() - 1}`
          : `update nuncio_outbox_lease set until = clock_timestamp() - interval '1 ms'`,
      );
      assert.equal(await outbox.hold('f', leaseMs), true);
    });

    test('a lease can be taken when it is from before the clock was set back', async (t) => {
      const { outbox, query } = await openOutbox(t, database);
      assert.ok(await outbox.hold('a', leaseMs));
      const year = 31_536_000_000;
      await query(
        database === 'SQLite'
          ? `update nuncio_outbox_lease set until = until + ${year}`
          : `update nuncio_outbox_lease set until = until + interval '1 year'`,
      );
      assert.equal(await outbox.hold('b', leaseMs), true);
      assert.equal(await outbox.hold('a', leaseMs), false);
    });

    test('table accepts every name that can be quoted', async (t) => {
      const names = {
        table: `x"; drop table "y'; --\\ $nuncio$ $1 ? \u{1f4e8}`,
        schema: `s"'.\\ $$ public`,
      };
      const { outbox, append } = await openOutbox(t, database, names);
      await outbox.setUp();
      await append(pushes('a', ['1', '2']));
      await append(pushes('a', ['2']));
      await outbox.hold('me', leaseMs);
      const [one, two] = await outbox.read(everything);
      await outbox.forget([one?.position ?? '']);
      await outbox.reject('me', [{ position: two?.position ?? '', reason: 'bad' }]);
      assert.deepEqual(await outbox.stats(), { waiting: 0, rejected: 1, oldestMs: null });
      assert.equal((await outbox.rejected.list()).length, 1);
      assert.equal(await outbox.rejected.retryAll(), 1);
      await outbox.release('me');
    });
  });
}

test('setUp creates the tables once when several processes call it, and its SQL works in a migration', async (t) => {
  const database = await createForeignDatabase();
  const pool = new pg.Pool({ connectionString: database.url, max: 8 }).on('error', () => {});
  t.after(async () => {
    await pool.end();
    await database.drop();
  });
  // Calls meet between their checks and their inserts only now and then.
  for (let round = 1; round <= 100; round++) {
    const { setUp } = postgresOutbox({ pool, table: `outbox_${round}` });
    await Promise.all(Array.from({ length: 8 }, () => setUp()));
  }
  const outbox = postgresOutbox({ pool });
  await outbox.setUp();
  assert.equal(await outbox.hasWaiting(), false);
  await pool.query('create schema other');
  await pool.query(`begin; set local search_path = other; ${outbox.sql} commit`);
  assert.equal(await postgresOutbox({ pool, schema: 'other' }).hasWaiting(), false);
});

test('setUp succeeds without the right to create tables when the tables exist', async (t) => {
  const database = await createForeignDatabase();
  const pool = new pg.Pool({ connectionString: database.url, max: 1 }).on('error', () => {});
  t.after(async () => {
    await pool.query('reset role; drop owned by outbox_user; drop role outbox_user');
    await pool.end();
    await database.drop();
  });
  const outbox = postgresOutbox({ pool });
  await outbox.setUp();
  await pool.query(`
    create role outbox_user;
    grant select, insert, update, delete on nuncio_outbox, nuncio_outbox_lease to outbox_user;
    revoke create on schema public from public, outbox_user;
    set role outbox_user`);
  await outbox.setUp();
  await outbox.append(pool, { kind: 'push', account: 'a', body: {} });
  assert.equal((await outbox.read(everything)).length, 1);
});

test('read returns no uncommitted event when the application shares its PostgreSQL connection', async (t) => {
  const database = await createForeignDatabase();
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  t.after(async () => {
    await client.end();
    await database.drop();
  });
  const outbox = postgresOutbox({ pool: client });
  await outbox.setUp();
  await client.query('begin');
  await outbox.append(client, { kind: 'push', account: 'a', body: {} });
  assert.equal(await outbox.hasWaiting(), false);
  assert.deepEqual(await outbox.read(everything), []);
  await client.query('commit');
  assert.equal((await outbox.read(everything)).length, 1);
});

test('read returns no uncommitted event when the application shares its SQLite connection', async (t) => {
  const connection = new DatabaseSync(':memory:');
  t.after(() => connection.close());
  const outbox = sqliteOutbox({ database: connection });
  await outbox.setUp();
  connection.exec('begin');
  outbox.append(connection, { kind: 'push', account: 'a', body: {} });
  const read = outbox.read(everything);
  let isRead = false;
  read.then(() => {
    isRead = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(isRead, false);
  connection.exec('rollback');
  assert.deepEqual(await read, []);
  const impatient = sqliteOutbox({ database: connection, busyTimeoutMs: 0 });
  connection.exec('begin');
  await assert.rejects(impatient.hasWaiting(), /within a transaction/);
  connection.exec('commit');
});

test('hold and hasWaiting wait without blocking the process when the SQLite file is locked', async (t) => {
  const file = join(await temporaryFolder(t), 'locked.sqlite');
  const [mine, other] = [new DatabaseSync(file), new DatabaseSync(file)];
  t.after(() => {
    mine.close();
    other.close();
  });
  const outbox = sqliteOutbox({ database: mine, busyTimeoutMs: 600_000 });
  await outbox.setUp();
  // Without WAL a writer also blocks readers.
  other.exec('begin exclusive');
  const held = outbox.hold('me', leaseMs);
  const waiting = outbox.hasWaiting();
  let ticks = 0;
  await until(
    async () => {
      ticks += 1;
      return ticks;
    },
    (count) => count >= 5,
  );
  const impatient = sqliteOutbox({ database: mine, busyTimeoutMs: 0 });
  await assert.rejects(impatient.hold('me', leaseMs), /locked/);
  other.exec('commit');
  assert.equal(await held, true);
  assert.equal(await waiting, false);
});

test('postgresOutbox and sqliteOutbox throw a TypeError when an option is invalid', () => {
  const pool = { query: async () => ({ rows: [] }) };
  for (const table of ['', 'a\0b', 'x'.repeat(51), '\ud800', 'ä'.repeat(26)]) {
    assert.throws(() => postgresOutbox({ pool, table }), TypeError);
    assert.throws(() => sqliteOutbox({ database: new DatabaseSync(':memory:'), table }), TypeError);
  }
  assert.throws(() => postgresOutbox({ pool, schema: '' }), TypeError);
  assert.throws(() => postgresOutbox({} as never), TypeError);
  assert.throws(() => sqliteOutbox({} as never), TypeError);
  assert.throws(() => sqliteOutbox({ database: new DatabaseSync(':memory:'), busyTimeoutMs: -1 }), TypeError);
});
