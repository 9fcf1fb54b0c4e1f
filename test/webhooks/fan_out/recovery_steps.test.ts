/** What the steps of a recovery read and lock. No server runs, so nothing else takes the jobs. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { type Filter, filterPath } from '../../../src/events/filter.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { passLimits } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { stepRecovery } from '../../../src/webhooks/fan_out/recovery.ts';
import { createDatabase } from '../../support/database/database.ts';
import { buffersOf, captureStatements, nodesOf, planModes } from '../../support/database/plans.ts';
import { until } from '../../support/webhooks/apps.ts';

const kinds = kindArrays(createCatalogue((await loadPlatform(null)).eventKinds));
const lane = 4_711;
const early = 50;

interface Scene {
  db: Database;
  account: string;
}

/** A user's subscription with events from before it, and deliveries of its own. */
async function openScene(t: TestContext, deliveries = 0): Promise<Scene> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 8 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const account = newId();
  await sql`insert into accounts (id, email, name) values (${account}, 'ann@example.com', 'Ann')`.execute(db);
  await addEvents(db, account, early);
  await sql`update events set created_at = created_at - interval '5 minutes'`.execute(db);
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, 'user', ${account}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(
    db,
  );
  await sql`insert into lanes (id, next_sequence) values (${lane}, ${deliveries + 1})`.execute(db);
  await sql`insert into lane_progress (lane, cursor) values (${lane}, ${deliveries})`.execute(db);
  await addEvents(db, account, deliveries);
  await sql`
    insert into deliveries (day, lane, sequence, event)
    select day, ${lane}, row_number() over (order by position), position from events
    where position > (select created_position from subscriptions)`.execute(db);
  return { db, account };
}

async function addEvents(db: Database, account: string, count: number): Promise<void> {
  await sql`
    insert into events (id, account_id, kind, body)
    select gen_random_uuid()::text, ${account}, 'push', '{}' from generate_series(1, ${count}::int)`.execute(
    db,
  );
}

async function addRecovery(db: Database, state: 'missing' | 'succeeded'): Promise<void> {
  await sql`
    insert into recoveries (id, lane, since, until, states, phase, missing_day)
    values (gen_random_uuid(), ${lane}, now() - interval '1 hour', now(), array[${state}],
      ${state === 'missing' ? 'missing' : 'resending'},
      case when ${state === 'missing'} then (now() at time zone 'utc' - interval '1 hour')::date end)`.execute(
    db,
  );
}

async function finish(db: Database): Promise<void> {
  while (await stepRecovery(db, kinds));
}

/** The events that recoveries have added, and the sequences of all deliveries. */
async function readLane(db: Database): Promise<{ added: string[]; sequences: number[] }> {
  const { rows } = await sql<{ sequence: string; event: string; replayed: boolean | null }>`
    select sequence, event, replayed from deliveries where lane = ${lane} order by sequence`.execute(db);
  return {
    added: rows.filter(({ replayed }) => replayed).map(({ event }) => event),
    sequences: rows.map(({ sequence }) => Number(sequence)),
  };
}

const countTo = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

/** Runs the work while another session holds a lock. */
async function whileLocked(
  db: Database,
  lock: ReturnType<typeof sql>,
  work: () => Promise<void>,
): Promise<void> {
  await db.transaction().execute(async (tx) => {
    await lock.execute(tx);
    // Otherwise the database ends the transaction.
    const beat = setInterval(() => void sql`select 1`.execute(tx).catch(() => {}), 1_000);
    try {
      await work();
    } finally {
      clearInterval(beat);
    }
  });
}

/** Resolves when this number of sessions waits for a lock. */
async function waiting(db: Database, count: number): Promise<void> {
  const ask = async () => {
    const { rows } = await sql`
      select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`.execute(
      db,
    );
    return rows.length;
  };
  await until(ask, (found) => found === count);
}

for (const mode of planModes) {
  test(`a step reads no deliveries of the lane but those that recoveries have added (${mode})`, async (t) => {
    const { db } = await openScene(t, 20_000);
    await sql`analyze`.execute(db);
    await addRecovery(db, 'missing');
    await finish(db);
    await addRecovery(db, 'missing');
    const statements = await captureStatements(mode, () => finish(db));
    const reads = nodesOf(statements).filter((node) => node['Relation Name']?.startsWith('deliveries'));
    const rows = reads.map(
      (node) => node['Actual Loops'] * (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)),
    );
    assert.equal(
      rows.reduce((sum, count) => sum + count, 0),
      early,
    );
    assert.ok(buffersOf(statements) < 20_000);
    assert.equal((await readLane(db)).added.length, early);
  });
}

/**
 * Makes the subscription one of an app that thousands use, and gives the account thousands of apps. No grant allows to read the events, so no
 * look-up ends early.
 */
async function giveGrants(db: Database, account: string, owner: 'grant' | 'client'): Promise<void> {
  const before = sql`now() - interval '1 day'`;
  await sql`
    insert into clients (id, name, metadata) select 'app-' || n, '', '{}' from generate_series(1, 2000) as n`.execute(
    db,
  );
  await sql`
    insert into grants (id, account_id, client_id, created_at)
    select gen_random_uuid(), ${account}, 'app-' || n, ${before} from generate_series(1, 2000) as n`.execute(
    db,
  );
  await sql`
    with users as (
      insert into accounts (id, email, name)
      select gen_random_uuid(), n || '@example.com', '' from generate_series(1, 4000) as n returning id
    )
    insert into grants (id, account_id, client_id, created_at) select gen_random_uuid(), id, 'app-7', ${before} from users`.execute(
    db,
  );
  await sql`
    update subscriptions set owner = ${owner}, client_id = 'app-7',
      account_id = case when ${owner} = 'grant' then account_id end,
      grant_id = case when ${owner} = 'grant' then (
        select id from grants where account_id = ${account} and client_id = 'app-7') end`.execute(db);
  await sql`analyze`.execute(db);
}

for (const owner of ['grant', 'client'] as const) {
  for (const mode of planModes) {
    test(`attack: a step reads one grant for each event of an account with thousands of apps (${owner}, ${mode})`, async (t) => {
      const { db, account } = await openScene(t);
      await giveGrants(db, account, owner);
      await addRecovery(db, 'missing');
      const statements = await captureStatements(mode, () => finish(db));
      const reads = nodesOf(statements).filter((node) => node['Relation Name'] === 'grants');
      const rows = reads.map(
        (node) => node['Actual Loops'] * (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)),
      );
      assert.equal(
        rows.reduce((sum, count) => sum + count, 0),
        early,
      );
    });
  }
}

test('a step that finds its lane locked ends at once, and the next one adds the events', async (t) => {
  const { db } = await openScene(t);
  await addRecovery(db, 'missing');
  await whileLocked(
    db,
    sql`update lanes set next_sequence = next_sequence + 1 where id = ${lane}`,
    async () => {
      assert.equal(await stepRecovery(db, kinds), true);
      assert.equal((await readLane(db)).added.length, 0);
    },
  );
  await finish(db);
  const { added, sequences } = await readLane(db);
  assert.equal(added.length, early);
  assert.deepEqual(
    sequences,
    countTo(early).map((sequence) => sequence + 1),
  );
});

test('a step does not lock its lane while it searches', async (t) => {
  const { db } = await openScene(t);
  await addRecovery(db, 'missing');
  let step: Promise<boolean> | undefined;
  await whileLocked(db, sql`lock table accounts in access exclusive mode`, async () => {
    step = stepRecovery(db, kinds);
    await waiting(db, 1);
    const { rows } = await sql`select from lanes where id = ${lane} for update nowait`.execute(db);
    assert.equal(rows.length, 1);
  });
  await step;
  await finish(db);
  assert.equal((await readLane(db)).added.length, early);
});

test('two recoveries that find the same events at the same time add each of them once', async (t) => {
  const { db } = await openScene(t, 10);
  await addRecovery(db, 'missing');
  await addRecovery(db, 'missing');
  let steps: Promise<boolean>[] = [];
  await whileLocked(db, sql`lock table accounts in access exclusive mode`, async () => {
    steps = [stepRecovery(db, kinds), stepRecovery(db, kinds)];
    await waiting(db, 2);
  });
  assert.deepEqual(await Promise.all(steps), [true, true]);
  await finish(db);
  const { added, sequences } = await readLane(db);
  assert.equal(added.length, early);
  assert.equal(new Set(added).size, early);
  assert.deepEqual(sequences, countTo(early + 10));
  const { rows } = await sql<{ added: string; state: string }>`
    select added, state from recoveries order by added`.execute(db);
  assert.deepEqual(
    rows.map(({ added, state }) => [Number(added), state]),
    [
      [0, 'done'],
      [early, 'done'],
    ],
  );
});

/** Gives the subscription a filter that compares a value with about 64 KiB of others. @returns its weight */
async function setHeavyFilter(db: Database): Promise<number> {
  const choices = (from: number) =>
    Array.from({ length: 100 }, (_, index) => `${from + index}-`.padEnd(95, 'x'));
  const conditions = Array.from({ length: 6 }, (_, index) => ({ path: '/ref', in: choices(index * 100) }));
  const filter: Filter = { any: [...conditions, { path: '/ref', eq: 'wanted' }] };
  const { rows } = await sql<{ filter_weight: number }>`
    update subscriptions set filter = ${JSON.stringify(filter)}::json, filter_path = ${filterPath(filter)}::jsonpath, filter_digest = '\\x01'
    returning filter_weight`.execute(db);
  return rows[0]?.filter_weight as number;
}

/** The position up to which the recovery has read, for each of its steps. */
async function walk(db: Database): Promise<number[]> {
  const positions: number[] = [];
  while (await stepRecovery(db, kinds)) {
    const { rows } = await sql<{ position: string; at: string }>`
      select missing_position as position from recoveries`.execute(db);
    if (Number(rows[0]?.position) > 0) positions.push(Number(rows[0]?.position));
  }
  return positions;
}

test('a step takes as many events as its filter and their bodies permit, and none is left out', async (t) => {
  const { db } = await openScene(t);
  const weight = await setHeavyFilter(db);
  assert.ok(weight > 100, `the filter weighs ${weight}`);
  const bytes = 100_000;
  // Every second event is wanted. One is too large for any step.
  await sql`
    update events set body = json_build_object('ref', case when position % 2 = 0 then 'wanted' else 'other' end,
      'text', repeat('x', case when position = ${early / 2}::int then 3000000 else ${bytes}::int end))::text`.execute(
    db,
  );
  await addRecovery(db, 'missing');
  const positions = await walk(db);
  const max = Math.floor(passLimits.deliveries / (1 + weight + bytes / 500));
  const taken = positions.map((position, index) => position - (positions[index - 1] ?? 0));
  assert.ok(taken.length > early / max, `${taken}`);
  for (const count of taken) assert.ok(count >= 1 && count <= max, `a step took ${count} events`);
  assert.ok(taken.filter((count) => count === max).length >= 2, 'steps are full');
  const large = positions.indexOf(early / 2);
  assert.equal(taken[large], 1, 'the large event has a step of its own');
  const { added, sequences } = await readLane(db);
  const { rows } = await sql<{ position: string }>`
    select position from events where position % 2 = 0 order by position`.execute(db);
  assert.deepEqual(
    added,
    rows.map(({ position }) => position),
  );
  assert.deepEqual(sequences, countTo(early / 2));
});

test('a step counts no bodies if the subscription has no filter', async (t) => {
  const { db } = await openScene(t);
  await sql`update events set body = json_build_object('text', repeat('x', 1000000))::text`.execute(db);
  await addRecovery(db, 'missing');
  assert.equal((await walk(db)).length, 0, 'one step reads the whole day');
  assert.equal((await readLane(db)).added.length, early);
});

test('a recovery skips the sequences whose deliveries are gone', async (t) => {
  const { db } = await openScene(t, 10);
  const far = 10_000_000;
  await sql`update deliveries set sequence = ${far} + sequence where sequence > 5`.execute(db);
  await sql`update lanes set next_sequence = ${far} + 11`.execute(db);
  await sql`update lane_progress set cursor = ${far} + 10`.execute(db);
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms)
    select day, lane, sequence, now(), 1, 's', false, 1, 1 from deliveries`.execute(db);
  await addRecovery(db, 'succeeded');
  let steps = 0;
  while (await stepRecovery(db, kinds)) steps += 1;
  const { rows } = await sql<{ resent: string; state: string }>`select resent, state from recoveries`.execute(
    db,
  );
  assert.deepEqual(rows, [{ resent: '10', state: 'done' }]);
  assert.ok(steps <= 4, `${steps} steps`);
});

test('attack: a step takes no longer for a lane that was disabled very many times', async (t) => {
  const { db } = await openScene(t, 500);
  const ranges = 5_000;
  await sql`
    insert into held_ranges (lane, first, last)
    select ${lane}::bigint, 2 * number - 1, 2 * number - 1 from generate_series(1, ${ranges}::int) as number`.execute(
    db,
  );
  // The deliveries of the first ranges are no longer kept.
  await sql`update deliveries set sequence = sequence + ${2 * ranges}::int where lane = ${lane}`.execute(db);
  await sql`insert into held_ranges (lane, first, last) values (${lane}, ${2 * ranges + 1}, ${2 * ranges + 400})`.execute(
    db,
  );
  await sql`update lane_progress set cursor = ${2 * ranges + 400} where lane = ${lane}`.execute(db);
  await sql`analyze`.execute(db);
  await sql`
    insert into recoveries (id, lane, since, until, states)
    values (gen_random_uuid(), ${lane}, now() - interval '1 hour', now() + interval '1 hour', '{held}')`.execute(
    db,
  );
  const statements = await captureStatements('force_custom_plan', () => finish(db));
  const ofRanges = nodesOf(statements).filter((node) => node['Relation Name'] === 'held_ranges');
  const rows = ofRanges.map(
    (node) => node['Actual Loops'] * (node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0)),
  );
  assert.ok(rows.length > 0);
  assert.ok(rows.reduce((sum, count) => sum + count, 0) <= 1_000);
  const { rows: resent } = await sql<{ resent: string }>`select resent from recoveries`.execute(db);
  assert.equal(resent[0]?.resent, '400');
});
