/** How the deliveries of a lane are numbered. No server runs. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { textArray } from '../../../src/database/arrays.ts';
import type { Database } from '../../../src/database/database.ts';
import { beginEpoch } from '../../../src/database/epoch.ts';
import { fanOut, type KindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { passLimits } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { Turns } from '../../../src/webhooks/fan_out/turns.ts';
import { releaseLanes } from '../../../src/webhooks/lanes/lane_store.ts';
import { settleLanes } from '../../../src/webhooks/log/numbering.ts';
import { sendTest } from '../../../src/webhooks/log/resend.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import type { Subscription } from '../../../src/webhooks/subscriptions/subscription.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { addNode } from '../../support/database/other_node.ts';

const none = textArray([]);
const kinds: KindArrays = { names: none, objects: none, patterns: none, appSubscriptions: 'all' };
const account = newId();
/** What `sendTest` reads of a subscription. */
const ofLane = { id: newId(), lane: 1 } as Subscription;

async function openLane(t: TestContext): Promise<Database> {
  const { db } = await openTestDatabase(t, 6);
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${ofLane.id}, 1, 'user', ${account}, 'http://127.0.0.1/', '{*}', 'timestamp', '')`.execute(db);
  await sql`insert into lanes (id) values (1)`.execute(db);
  await sql`insert into lane_progress (lane) values (1)`.execute(db);
  return db;
}

/** Leaves as many dead versions of rows as some minutes beside an old snapshot, so that fan-out no longer counts in the lanes’ rows. */
async function addDeadVersions(db: Database): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    select gen_random_uuid(), 100 + number, 'user', ${newId()}, 'http://127.0.0.1/', '{*}', 'timestamp', ''
    from generate_series(1, 3000) as number`.execute(db);
  await sql`insert into lanes (id) select 100 + number from generate_series(1, 3000) as number`.execute(db);
  await db.connection().execute(async (connection) => {
    await sql`delete from lanes where id > 100`.execute(connection);
    await sql`select pg_stat_force_next_flush()`.execute(connection);
  });
}

const dayAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10);

/** Adds events of a day to the outbox. */
async function publish(db: Database, count: number, day = dayAgo(0), lane = 1): Promise<void> {
  for (const table of ['events', 'deliveries', 'attempts'])
    await sql`select ensure_day_partition(${table}, ${day}::date)`.execute(db);
  await sql`
    with event as (
      insert into events (day, id, account_id, kind, body)
      select ${day}::date, gen_random_uuid()::text, ${account}, 'push', '{}' from generate_series(1, ${count}::int)
      returning position
    )
    insert into outbox (day, turn, positions, lanes)
    select ${day}::date, ${account}, array_agg(position order by position), array[${lane}::bigint] from event`.execute(
    db,
  );
}

/** A pass over all events of a day. */
async function pass(db: Database, day = dayAgo(0)): Promise<number[]> {
  const turns = new Turns(day);
  await turns.update(db);
  const shares = { resting: [], entitled: [], heavyShare: 1_000, skipsFrom: 1_000 };
  const range = {
    day,
    visits: turns.first(10),
    snapshot: turns.snapshot,
    ...shares,
    limits: passLimits,
  };
  const { additions } = await fanOut(db, kinds, range);
  return additions.flatMap(({ first, events }) => events.map((_event, index) => first + index));
}

async function fanOutOf(db: Database, count: number, day?: string, lane?: number): Promise<number[]> {
  await publish(db, count, day, lane);
  return pass(db, day);
}

interface Tail {
  row: string;
  next: number;
  day: string | null;
  newest: number;
}

async function readTail(db: Database): Promise<Tail> {
  const { rows } = await sql<Tail>`
    select ctid::text as row, next_sequence::int as next, day::text, newest_sequence(lanes)::int as newest
    from lanes where id = 1`.execute(db);
  return rows[0] as Tail;
}

/** Checks that the lane's numbers are 1, 2, 3 … */
async function assertGapless(db: Database, count: number, lane = 1): Promise<void> {
  const { rows } = await sql<{ numbers: number[] }>`
    select array_agg(sequence::int order by sequence) as numbers from deliveries where lane = ${lane}::bigint`.execute(
    db,
  );
  assert.deepEqual(
    rows[0]?.numbers,
    Array.from({ length: count }, (_, index) => index + 1),
  );
}

/** Waits until a session waits for a lock. */
async function untilWaiting(db: Database): Promise<void> {
  for (;;) {
    const { rows } = await sql<{ waits: boolean }>`
      select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock') as waits`.execute(
      db,
    );
    if (rows[0]?.waits) return;
  }
}

/** A transaction that stays open until `commit` is called. */
async function hold<T>(db: Database, work: (tx: Database) => Promise<T>) {
  const begun = Promise.withResolvers<T>();
  const end = Promise.withResolvers<void>();
  const done = db.transaction().execute(async (tx) => {
    begun.resolve(await work(tx));
    await end.promise;
  });
  done.catch(begun.reject);
  return {
    result: await begun.promise,
    async commit() {
      end.resolve();
      await done;
    },
  };
}

test('fan-out counts in the lane’s row, and beside an old snapshot changes it once a day', async (t) => {
  const db = await openLane(t);
  assert.deepEqual(await fanOutOf(db, 2), [1, 2]);
  const counted = await readTail(db);
  assert.deepEqual([counted.next, counted.day], [3, null]);
  await addDeadVersions(db);
  assert.deepEqual(await fanOutOf(db, 1), [3]);
  const first = await readTail(db);
  assert.equal(first.day, dayAgo(0));
  for (let count = 4; count <= 20; count += 1) assert.deepEqual(await fanOutOf(db, 1), [count]);
  const last = await readTail(db);
  assert.deepEqual([last.row, last.next, last.newest], [first.row, first.next, 20]);
  await sql`vacuum lanes`.execute(db);
  assert.deepEqual(await fanOutOf(db, 2), [21, 22]);
  const again = await readTail(db);
  assert.deepEqual([again.next, again.day], [23, null]);
  await assertGapless(db, 22);
});

test('numbers continue over days, in whichever order these come, and after tests', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  const yesterday = dayAgo(1);
  assert.deepEqual(await fanOutOf(db, 1, yesterday), [1]);
  assert.deepEqual(await fanOutOf(db, 2, yesterday), [2, 3]);
  assert.deepEqual(await fanOutOf(db, 1), [4]);
  assert.deepEqual(await fanOutOf(db, 2), [5, 6]);
  assert.deepEqual(await fanOutOf(db, 1, yesterday), [7]);
  assert.deepEqual(await fanOutOf(db, 1, yesterday), [8]);
  await sendTest(db, ofLane, null);
  assert.deepEqual((await readTail(db)).newest, 9);
  assert.deepEqual(await fanOutOf(db, 1), [10]);
  await sendTest(db, ofLane, null);
  await sendTest(db, ofLane, null);
  assert.deepEqual(await fanOutOf(db, 1), [13]);
  await assertGapless(db, 13);
});

test('a pass counts the test that it waited for, and a test the pass', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  await fanOutOf(db, 3);
  await publish(db, 2);
  const tested = await hold(db, (tx) => sendTest(tx, ofLane, null));
  const passing = pass(db);
  await untilWaiting(db);
  await tested.commit();
  assert.deepEqual(await passing, [5, 6]);
  await publish(db, 2);
  const passed = await hold(db, (tx) => pass(tx));
  const testing = sendTest(db, ofLane, null);
  await untilWaiting(db);
  await passed.commit();
  await testing;
  await assertGapless(db, 9);
});

test('passes and tests at the same time leave no gap and give no number twice', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  const tests = async () => {
    for (let count = 0; count < 40; count += 1) await sendTest(db, ofLane, null);
  };
  const passes = async () => {
    for (let count = 0; count < 40; count += 1) await fanOutOf(db, 2, dayAgo(count % 2));
  };
  await Promise.all([tests(), tests(), passes()]);
  await assertGapless(db, 160);
});

test('a statement that has locked the lane sees what was committed while it waited', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  await fanOutOf(db, 1);
  const other = await hold(db, async (tx) => {
    await sql`select pg_advisory_xact_lock(5)`.execute(tx);
  });
  const reading = sql<{ before: string; now: string }>`
    select newest_sequence(l) as before, newest_sequence_now(l.id) as now
    from (select pg_advisory_xact_lock(5) offset 0) as waited cross join lanes l`.execute(db);
  await untilWaiting(db);
  await fanOutOf(db, 1);
  await other.commit();
  assert.deepEqual((await reading).rows, [{ before: '1', now: '2' }]);
});

test('a lane is not released while a pass adds to it, nor with an unknown delivery', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  await addNode(db, '5');
  await sql`update lane_progress set owner = 5`.execute(db);
  await fanOutOf(db, 1);
  const release = (head: number) => releaseLanes(db, '5', [{ lane: 1, head, cursor: head, dueMs: null }]);
  await publish(db, 1);
  const passed = await hold(db, (tx) => pass(tx));
  assert.deepEqual(await release(1), []);
  await passed.commit();
  assert.deepEqual(await release(1), []);
  assert.deepEqual(await release(2), [1]);
});

test('beside a node of an earlier version, next_sequence counts everything', async (t) => {
  const db = await openLane(t);
  const join = () =>
    sql`insert into nodes (id, host, process, alive_until, generation) values (7, 'a', '1', now(), 1)`.execute(
      db,
    );
  await join();
  await addDeadVersions(db);
  await fanOutOf(db, 2);
  await fanOutOf(db, 2);
  const beside = await readTail(db);
  assert.deepEqual([beside.day, beside.next, beside.newest], [null, 5, 4]);
  await sql`delete from nodes`.execute(db);
  await fanOutOf(db, 2);
  await fanOutOf(db, 2);
  const after = await readTail(db);
  assert.deepEqual([after.day, after.next, after.newest], [dayAgo(0), 7, 8]);
  await assert.rejects(join, { code: 'NUN01' });
  // What such a node would add to a lane.
  const { rows } = await sql<{ first: number }>`
    update lanes set next_sequence = next_sequence + 2 where id = 1 returning next_sequence::int - 2 as first`.execute(
    db,
  );
  assert.deepEqual(rows, [{ first: 9 }]);
});

test('numbers outlive the day that retention drops, which it keeps while the lane is locked', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  const [long, past] = [dayAgo(41), dayAgo(40)];
  await fanOutOf(db, 1, long);
  await fanOutOf(db, 2, past);
  await fanOutOf(db, 2, past);
  assert.deepEqual((await readTail(db)).day, past);
  await sql`update subscriptions set state = 'disabled'`.execute(db);
  const days = async () => {
    const { rows } = await sql<{ name: string }>`
      select relname as name from pg_class where relkind = 'r' and relname ~ '^deliveries_'
        and right(relname, 8) <= to_char(now() - interval '39 days', 'YYYYMMDD') order by 1`.execute(db);
    return rows.map(({ name }) => name.slice(-8));
  };
  const locked = await hold(db, async (tx) => {
    await sql`select from lanes for update`.execute(tx);
  });
  await applyRetention(db);
  assert.deepEqual(await days(), [past.replaceAll('-', '')]);
  await locked.commit();
  await applyRetention(db);
  assert.deepEqual(await days(), []);
  await sql`update subscriptions set state = 'active'`.execute(db);
  assert.deepEqual(await fanOutOf(db, 1), [6]);
});

test('an epoch begins after the newest delivery, and moves cursors back that are beyond it', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  await fanOutOf(db, 2);
  await fanOutOf(db, 3);
  await sql`update lane_progress set cursor = 5`.execute(db);
  await beginEpoch(db);
  const { rows } = await sql<{ first: number; cursor: number }>`
    select first::int, cursor::int from lane_epochs join lane_progress using (lane)`.execute(db);
  assert.deepEqual(rows, [{ first: 6, cursor: 5 }]);
  await sql`update lane_progress set cursor = 9`.execute(db);
  await beginEpoch(db);
  const { rows: moved } = await sql`select cursor::int from lane_progress`.execute(db);
  assert.deepEqual(moved, [{ cursor: 0 }]);
});

test('a lane that is settled while a late pass adds to it gives no number twice', async (t) => {
  const db = await openLane(t);
  await addDeadVersions(db);
  const [past, last, count] = [dayAgo(1), 5_000, 600];
  // Many lanes before it: the statement locks it some milliseconds after it has begun.
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    select gen_random_uuid(), lane, 'user', ${newId()}, 'http://127.0.0.1/', '{*}', 'timestamp', ''
    from (select 3999 + generate_series(1, ${count}::int) union all select ${last}::int) as each (lane)`.execute(
    db,
  );
  await sql`insert into lanes (id) select lane from subscriptions where lane >= 4000`.execute(db);
  for (let round = 0; round < 40; round += 1) {
    await sql`update lanes set day = ${past}::date where id between 4000 and 4999`.execute(db);
    await fanOutOf(db, 1, past, last);
    await publish(db, 1, past, last);
    await Promise.all([pass(db, past), sleep(round % 8).then(() => settleLanes(db, dayAgo(0)))]);
    await fanOutOf(db, 1, undefined, last);
    await assertGapless(db, 3 * (round + 1), last);
  }
});
