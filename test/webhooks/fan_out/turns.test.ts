/** Which accounts a leader knows to have events, and in which order it takes these. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import { textArray } from '../../../src/database/arrays.ts';
import { type Database, openDatabase, type Transaction } from '../../../src/database/database.ts';
import { fanOut, type KindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { parseSnapshot } from '../../../src/webhooks/fan_out/outbox_changes.ts';
import type { PassLimits } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { Turns } from '../../../src/webhooks/fan_out/turns.ts';
import { createDatabase } from '../../support/database/database.ts';

const none = textArray([]);
const kinds: KindArrays = { names: none, objects: none, patterns: none, appSubscriptions: 'all' };
const today = '2026-06-02';
const limits: PassLimits = { accounts: 1_000, events: 2_000, deliveries: 5_000 };
const isApart = () => false;

const idOf = (number: number) => `10000000-0000-4000-8000-${String(number).padStart(12, '0')}`;
const numberOf = (account: string) => Number(account.slice(-12));

async function openOutbox(t: TestContext, connectionsMax = 8): Promise<Database> {
  const database = await createDatabase();
  const url = new URL(database.url);
  // As the engine's connections.
  url.searchParams.set('options', `${url.searchParams.get('options') ?? ''} -c enable_seqscan=off`.trim());
  const db = openDatabase({ connectionString: url.href, connectionsMax });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return db;
}

/** Adds a row with one event. @returns its position */
async function addRow(db: Database, number: number): Promise<number> {
  const { rows } = await sql<{ position: string }>`
    insert into outbox (turn, day, positions)
    values (${idOf(number)}::uuid, ${today}::date, array[nextval('event_positions')]) returning positions[1] as position`.execute(
    db,
  );
  return Number(rows[0]?.position);
}

/** Runs a pass. @returns the positions of each account, in order */
async function pass(db: Database, turns: Turns, size: PassLimits = limits): Promise<Map<number, number[]>> {
  await turns.update(db);
  const heavy = { resting: [], entitled: [], heavyShare: size.deliveries, skipsFrom: size.deliveries };
  const range = turns.range({ limits: size, heavy, isApart });
  const taken = new Map<number, number[]>();
  if (range === undefined) return taken;
  const { rows } = await sql<{ turn: string; position: string }>`
    select turn, unnest(positions) as position from outbox order by id`.execute(db);
  const owners = new Map(rows.map(({ turn, position }) => [Number(position), numberOf(turn)]));
  const result = await fanOut(db, kinds, range);
  turns.advance(result);
  for (const position of result.events) {
    const owner = owners.get(position) as number;
    taken.set(owner, [...(taken.get(owner) ?? []), position]);
  }
  return taken;
}

/** Blocks of the outbox and its indexes that this connection has asked for lately. */
async function blocksRead(tx: Transaction): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select sum(pg_stat_get_xact_blocks_fetched(oid))::int as count from pg_class where relname like 'outbox%'`.execute(
    tx,
  );
  return rows[0]?.count ?? 0;
}

test('a snapshot is parsed into its end and the transactions that ran', () => {
  assert.deepEqual(parseSnapshot('10:20:10,14'), { text: '10:20:10,14', end: '20', running: ['10', '14'] });
  assert.deepEqual(parseSnapshot('20:20:'), { text: '20:20:', end: '20', running: [] });
});

test('a row that commits after later rows is found, and comes before rows that are added after it', async (t) => {
  const db = await openOutbox(t);
  const turns = new Turns(today);
  await turns.restart(db);
  const [isAdded, mayCommit] = [Promise.withResolvers<number>(), Promise.withResolvers<void>()];
  const late = db.transaction().execute(async (tx) => {
    isAdded.resolve(await addRow(tx, 1));
    await mayCommit.promise;
  });
  const first = await isAdded.promise;
  const second = await addRow(db, 1);
  assert.deepEqual(await pass(db, turns), new Map([[1, [second]]]));
  mayCommit.resolve();
  await late;
  const third = await addRow(db, 1);
  assert.deepEqual(await pass(db, turns), new Map([[1, [first, third]]]));
  assert.deepEqual(await pass(db, turns), new Map());
  assert.equal(turns.isEmpty, true);
});

test('rows that another session’s snapshot keeps from being vacuumed are not read again', async (t) => {
  const db = await openOutbox(t);
  const turns = new Turns(today);
  await turns.restart(db);
  const isOpen = Promise.withResolvers<void>();
  const mayEnd = Promise.withResolvers<void>();
  const reader = db
    .transaction()
    .setIsolationLevel('repeatable read')
    .execute(async (tx) => {
      await sql`select from outbox`.execute(tx);
      isOpen.resolve();
      await mayEnd.promise;
    });
  await isOpen.promise;
  try {
    for (let round = 0; round < 5; round += 1) {
      await sql`
        insert into outbox (turn, day, positions)
        select ${idOf(1)}::uuid, ${today}::date, array[nextval('event_positions')] from generate_series(1, 2000)`.execute(
        db,
      );
      while ((await pass(db, turns)).size > 0);
    }
    await sql`vacuum outbox`.execute(db);
    const { rows } = await sql<{ dead: number }>`
      select pg_relation_size('outbox')::int / 8192 as dead`.execute(db);
    assert.ok((rows[0]?.dead ?? 0) > 50, 'the dead rows fill many blocks');
    const position = await addRow(db, 1);
    // Counts the blocks of the table and its indexes that one round of the leader asks for.
    const blocks = await db.transaction().execute(async (tx) => {
      const before = await blocksRead(tx);
      await turns.update(tx);
      const heavy = { resting: [], entitled: [], heavyShare: 5_000, skipsFrom: 5_000 };
      const range = turns.range({ limits, heavy, isApart });
      assert.ok(range !== undefined);
      const { events } = await fanOut(tx, kinds, range);
      assert.deepEqual(events, [position]);
      return (await blocksRead(tx)) - before;
    });
    assert.ok(blocks > 0 && blocks < 40, `${blocks} blocks were read`);
  } finally {
    mayEnd.resolve();
    await reader;
  }
});

test('a part of a new leader’s scan reads few blocks, however many rows are dead but not vacuumed', async (t) => {
  const db = await openOutbox(t);
  await db
    .transaction()
    .setIsolationLevel('repeatable read')
    .execute(async (reader) => {
      await sql`set local idle_in_transaction_session_timeout = 0`.execute(reader);
      await sql`select from outbox`.execute(reader);
      await sql`
      insert into outbox (turn, day, positions)
      select ('10000000-0000-4000-8000-' || lpad((number % 1000)::text, 12, '0'))::uuid, ${today}::date, array[number]
      from generate_series(1, 250000) as number`.execute(db);
      await sql`delete from outbox`.execute(db);
      const position = await addRow(db, 1);
      const turns = new Turns(today);
      await turns.restart(db);
      let parts = 0;
      for (; turns.isScanning; parts += 1) {
        const blocks = await db.transaction().execute(async (tx) => {
          const before = await blocksRead(tx);
          await turns.update(tx);
          return (await blocksRead(tx)) - before;
        });
        assert.ok(blocks < 1_100, `${blocks} blocks were read`);
      }
      assert.ok(parts > 1, 'the dead rows fill several parts');
      assert.deepEqual(await pass(db, turns), new Map([[1, [position]]]));
    });
});

test('an account’s earliest row comes first, although the scan finds it last', async (t) => {
  const db = await openOutbox(t);
  // An update moves the row to the end of the table.
  const first = await addRow(db, 1);
  await sql`
    insert into outbox (turn, day, positions)
    select ${idOf(2)}::uuid, ${today}::date, array[nextval('event_positions')] from generate_series(1, 150000)`.execute(
    db,
  );
  const second = await addRow(db, 1);
  await sql`
    insert into outbox (turn, day, positions)
    select ${idOf(2)}::uuid, ${today}::date, array[nextval('event_positions')] from generate_series(1, 150000)`.execute(
    db,
  );
  await sql`update outbox set through_lane = 0 where turn = ${idOf(1)}::uuid and positions[1] = ${first}`.execute(
    db,
  );
  const turns = new Turns(today);
  await turns.restart(db);
  const taken: number[] = [];
  for (let count = 0; count < 50 && taken.length < 2; count += 1) {
    await turns.update(db);
    const heavy = { resting: [], entitled: [], heavyShare: 5_000, skipsFrom: 5_000 };
    const range = turns.range({ limits, heavy, isApart: (account) => numberOf(account) === 2 });
    if (range === undefined) continue;
    const result = await fanOut(db, kinds, range);
    turns.advance(result);
    taken.push(...result.events);
  }
  assert.deepEqual(taken, [first, second]);
});

test('a new leader finds all accounts, also those that do not fit in memory at once', async (t) => {
  const db = await openOutbox(t);
  await sql`
    insert into outbox (turn, day, positions)
    select ('10000000-0000-4000-8000-' || lpad(number::text, 12, '0'))::uuid, ${today}::date,
      array[nextval('event_positions')]
    from generate_series(1, 3000) as number, generate_series(1, 2)`.execute(db);
  const turns = new Turns(today, 700);
  await turns.restart(db);
  const seen = new Map<number, number[]>();
  for (let count = 0; count < 200 && !turns.isEmpty; count += 1) {
    const taken = await pass(db, turns);
    for (const [account, positions] of taken) seen.set(account, [...(seen.get(account) ?? []), ...positions]);
    // An account that the scan has not reached gets a further event.
    if (count === 0) await addRow(db, 2_999);
  }
  assert.equal(turns.isEmpty, true);
  assert.equal(seen.size, 3_000);
  for (const [account, positions] of seen) {
    assert.equal(positions.length, account === 2_999 ? 3 : 2);
    assert.deepEqual(
      positions,
      positions.toSorted((a, b) => a - b),
    );
  }
});

test('rows of a restored dump, whose transactions this database has not reached, are taken', async (t) => {
  const db = await openOutbox(t);
  const turns = new Turns(today);
  const position = await addRow(db, 1);
  await sql`update outbox set added_by = '9000000000'::xid8`.execute(db);
  await turns.restart(db);
  assert.deepEqual(await pass(db, turns), new Map([[1, [position]]]));
  assert.deepEqual(await pass(db, turns), new Map());
});

test('accounts take turns', async (t) => {
  const db = await openOutbox(t);
  const turns = new Turns(today);
  await turns.restart(db);
  for (let count = 0; count < 3; count += 1) for (const number of [1, 2, 3]) await addRow(db, number);
  const size = { accounts: 2, events: 2, deliveries: 5_000 };
  const order: number[][] = [];
  for (let count = 0; count < 4; count += 1) order.push([...(await pass(db, turns, size)).keys()]);
  assert.deepEqual(order, [
    [1, 2],
    [3, 1],
    [2, 3],
    [1, 2],
  ]);
});

type Step = { publisher: number; account: number; act: 'add' | 'commit' | 'abort' | 'pass' };

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.record({
    publisher: fc.nat(3),
    account: fc.nat(2),
    act: fc.constantFrom(
      'add' as const,
      'add' as const,
      'commit' as const,
      'abort' as const,
      'pass' as const,
    ),
  }),
  { minLength: 5, maxLength: 60 },
);

test('whatever commits when, each event is taken once, and none before one that committed before it was added', async (t) => {
  const db = await openOutbox(t);
  const property = fc.asyncProperty(steps, async (plan) => {
    const turns = new Turns(today);
    await turns.restart(db);
    const open = new Map<number, Publisher>();
    /** In which step an event was added, and committed. */
    const events = new Map<number, { account: number; added: number; committed: number }>();
    const taken: number[] = [];
    const runPass = async () => {
      for (const positions of (await pass(db, turns, { accounts: 2, events: 3, deliveries: 9 })).values())
        taken.push(...positions);
    };
    for (const [step, { publisher, account, act }] of plan.entries()) {
      if (act === 'pass') await runPass();
      else if (act === 'add') {
        const own = open.get(publisher) ?? (await beginPublisher(db));
        open.set(publisher, own);
        const position = await own.add(account);
        own.events.push({ position, account, added: step });
      } else {
        const own = open.get(publisher);
        open.delete(publisher);
        await own?.end(act);
        if (act === 'abort' || own === undefined) continue;
        for (const { position, ...event } of own.events) events.set(position, { ...event, committed: step });
      }
    }
    for (const own of open.values()) await own.end('abort');
    for (let count = 0; count < 60; count += 1) await runPass();
    assert.deepEqual(
      taken.toSorted((a, b) => a - b),
      [...events.keys()].sort((a, b) => a - b),
    );
    const places = new Map(taken.map((position, place) => [position, place]));
    for (const [before, one] of events) {
      for (const [after, other] of events) {
        if (one.account !== other.account || one.committed >= other.added) continue;
        assert.ok(
          (places.get(before) as number) < (places.get(after) as number),
          `${before} before ${after}`,
        );
      }
    }
  });
  await fc.assert(property, { numRuns: 25, seed: 20_261_123 });
});

interface Publisher {
  add: (account: number) => Promise<number>;
  end: (act: 'commit' | 'abort') => Promise<void>;
  events: { position: number; account: number; added: number }[];
}

/** Begins a transaction on a connection of its own. */
async function beginPublisher(db: Database): Promise<Publisher> {
  const trx = await db.startTransaction().execute();
  return {
    add: (account) => addRow(trx, account),
    end: async (act) => {
      await (act === 'commit' ? trx.commit() : trx.rollback()).execute();
    },
    events: [],
  };
}
