/** Expired days that deliveries keep, and rounds of retention in which a step fails. No server runs. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { findKeptDays } from '../../../src/webhooks/log/kept_days.ts';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { createDatabase } from '../../support/database/database.ts';
import { buffersOf, captureStatements, planModes } from '../../support/database/plans.ts';

const dayAgo = (days: number) => sql`((now() at time zone 'utc')::date - ${days}::int)`;

interface Scene {
  db: Database;
  url: string;
}

async function openScene(t: TestContext): Promise<Scene> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return { db, url: database.url };
}

/** Adds a subscription that has received deliveries on expired days. @returns its id */
async function addLane(
  db: Database,
  lane: number,
  deliveries: { [daysAgo: number]: number },
): Promise<string> {
  const id = newId();
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${id}, ${lane}, 'user', ${newId()}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(db);
  let last = 0;
  for (const [age, count] of Object.entries(deliveries).toSorted(([a], [b]) => Number(b) - Number(a))) {
    for (const table of ['events', 'deliveries', 'attempts'])
      await sql`select ensure_day_partition(${table}, ${dayAgo(Number(age))})`.execute(db);
    await sql`
      insert into deliveries (day, lane, sequence, event)
      select ${dayAgo(Number(age))}, ${lane}, ${last}::int + number, 1 from generate_series(1, ${count}::int) as number`.execute(
      db,
    );
    last += count;
  }
  await sql`insert into lanes (id, next_sequence) values (${lane}, ${last + 1})`.execute(db);
  await sql`insert into lane_progress (lane) values (${lane})`.execute(db);
  return id;
}

async function attempt(db: Database, lane: number, sequences: number[]): Promise<void> {
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms)
    select day, lane, sequence, now(), 1, 's', false, 1, 1 from deliveries
    where lane = ${lane} and sequence = any(${sequences}::bigint[])`.execute(db);
}

/** The ages in days of the expired days that are left. */
async function daysLeft(db: Database): Promise<number[]> {
  const { rows } = await sql<{ age: number }>`
    select age from (
      select (now() at time zone 'utc')::date - to_date(right(relname, 8), 'YYYYMMDD') as age
      from pg_class where relkind = 'r' and relname ~ '^deliveries_\\d{8}$') as each
    where age > 30 order by 1`.execute(db);
  return rows.map(({ age }) => age);
}

test('a day is kept while one delivery waits, also between others that were attempted', async (t) => {
  const { db } = await openScene(t);
  const slow = await addLane(db, 1, { 40: 3, 35: 2, 33: 1 });
  await attempt(db, 1, [1, 3, 4, 5]);
  assert.deepEqual(await findKeptDays(db), { count: 3, oldest: await textOf(db, 40), subscriptions: [slow] });
  await applyRetention(db);
  assert.deepEqual(await daysLeft(db), [33, 40]);
  await attempt(db, 1, [2]);
  await applyRetention(db);
  assert.deepEqual(await daysLeft(db), [33]);
  await sql`update lane_progress set cursor = 6 where lane = 1`.execute(db);
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at) values (1, 6, ${dayAgo(33)}, 'pending', 1, now())`.execute(
    db,
  );
  await applyRetention(db);
  assert.deepEqual((await findKeptDays(db)).subscriptions, [slow]);
  assert.deepEqual(await daysLeft(db), [33]);
  await sql`update subscriptions set state = 'disabled'`.execute(db);
  await applyRetention(db);
  assert.deepEqual(await daysLeft(db), []);
  assert.deepEqual(await findKeptDays(db), { count: 0, oldest: null, subscriptions: [] });
});

async function textOf(db: Database, age: number): Promise<string> {
  const { rows } = await sql<{ day: string }>`select ${dayAgo(age)}::text as day`.execute(db);
  return rows[0]?.day as string;
}

for (const mode of planModes) {
  test(`the search for waiting deliveries reads little, however many wait (${mode})`, async (t) => {
    const { db } = await openScene(t);
    for (const lane of [1, 2, 3]) await addLane(db, lane, { 33: 20_000, 31: 20_000 });
    await sql`analyze`.execute(db);
    const statements = await captureStatements(mode, () => applyRetention(db).then(() => undefined));
    const searches = statements.filter(({ text }) => text.includes('is_pending'));
    assert.equal(searches.length, 2);
    assert.ok(buffersOf(searches) < 500, `${buffersOf(searches)} buffers`);
    assert.deepEqual(await daysLeft(db), [31, 33]);
  });
}

test('steps of retention run although others fail, and a day is kept that could not be searched', async (t) => {
  const { db, url } = await openScene(t);
  await addLane(db, 1, { 40: 1 });
  await sql`update lane_progress set cursor = 1`.execute(db);
  await sql`
    insert into event_ids (id, content, created_at) values ('old', '', now() - interval '40 days')`.execute(
    db,
  );
  await sql`
    insert into lane_epochs (lane, first, tag, began_at)
    select 1, number, 0, now() - interval '50 days' from generate_series(1, 2) as number`.execute(db);
  await sql`
    insert into parked_events (position, day, turn, reason) values (1, ${dayAgo(40)}, ${newId()}, 'a reason')`.execute(
    db,
  );
  await sql`
    create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`.execute(
    db,
  );
  await sql`create trigger refuse before delete on parked_events for each row execute function refuse()`.execute(
    db,
  );
  const left = async () => {
    const { rows } = await sql<{ name: string }>`
      select 'event id' as name from event_ids union all select 'epoch' from lane_epochs where lane = 1
      union all select 'parked event' from parked_events order by 1`.execute(db);
    return rows.map(({ name }) => name);
  };
  assert.deepEqual(await left(), ['epoch', 'epoch', 'event id', 'parked event']);
  const impatient = openDatabase({ connectionString: url, connectionsMax: 1, statementTimeoutMs: 500 });
  t.after(() => impatient.destroy());
  await db.transaction().execute(async (tx) => {
    await sql`lock table lane_progress in access exclusive mode`.execute(tx);
    const beat = setInterval(() => void sql`select 1`.execute(tx).catch(() => {}), 1_000);
    try {
      await assert.rejects(applyRetention(db, impatient), (error: AggregateError) => {
        const text = error.errors.map(({ message }) => message).join('\n');
        assert.match(text, /^deliveries of \d{4}-\d\d-\d\d: canceling statement due to statement timeout$/m);
        assert.match(text, /^parked_events: refused$/m);
        for (const { message } of error.errors) assert.ok(error.message.includes(message));
        return true;
      });
    } finally {
      clearInterval(beat);
    }
  });
  assert.deepEqual(await left(), ['epoch', 'parked event']);
  assert.deepEqual(await daysLeft(db), [40]);
  await sql`drop trigger refuse on parked_events`.execute(db);
  await applyRetention(db);
  assert.deepEqual(await left(), ['epoch']);
  assert.deepEqual(await daysLeft(db), []);
});
