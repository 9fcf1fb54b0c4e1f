/** Recoveries take turns by time: a step of one account may take long, and those of another are short. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { stepRecovery } from '../../../src/webhooks/fan_out/recovery.ts';
import { RecoveryTurns } from '../../../src/webhooks/fan_out/recovery_turns.ts';
import { createDatabase } from '../../support/database/database.ts';

const kinds = kindArrays(createCatalogue((await loadPlatform(null)).eventKinds));
/** A recovery takes a step for each day, also for one without events. */
const days = 30;
const slowMs = 100;

async function openEmpty(t: TestContext): Promise<Database> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return db;
}

/** Adds recoveries of an account, each with a step for each of the last days. */
async function addRecoveries(db: Database, lane: number, turn: string, count = 1): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, 'user', ${newId()}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(
    db,
  );
  await sql`insert into lanes (id) values (${lane})`.execute(db);
  await sql`insert into lane_progress (lane) values (${lane})`.execute(db);
  await sql`
    insert into recoveries (id, lane, turn, since, until, states, phase, missing_day)
    select gen_random_uuid(), ${lane}, ${turn}, now() - interval '90 days', now(), '{missing}', 'missing',
      (now() at time zone 'utc')::date - ${days - 1}::int
    from generate_series(1, ${count}::int)`.execute(db);
}

/** Makes each step of a lane's recoveries take long. */
async function slowDown(db: Database, lane: number): Promise<void> {
  await sql`
    create function dawdle() returns trigger language plpgsql as
    ${sql.lit(`begin perform pg_sleep(${slowMs / 1_000}); return new; end`)}`.execute(db);
  await sql`
    create trigger dawdle before update on recoveries for each row when (old.lane = ${sql.lit(lane)}) execute function dawdle()`.execute(
    db,
  );
}

/** Runs one step. @returns whose it was, and how long it took; null if there was none */
async function step(db: Database, turns: RecoveryTurns): Promise<{ turn: string; ms: number } | null> {
  const begunAt = performance.now();
  if (!(await stepRecovery(db, kinds, turns))) return null;
  return { turn: turns.after, ms: performance.now() - begunAt };
}

async function statesOf(db: Database): Promise<string[]> {
  const { rows } = await sql<{ state: string }>`select distinct state from recoveries`.execute(db);
  return rows.map(({ state }) => state);
}

test('an account whose steps are slow has its next turn when the others have used as much time', async (t) => {
  const db = await openEmpty(t);
  await addRecoveries(db, 1, 'a-slow');
  await addRecoveries(db, 2, 'b-quick');
  await slowDown(db, 1);
  const turns = new RecoveryTurns();
  let quickMs = 0;
  const taken = { 'a-slow': 0, 'b-quick': 0 };
  while (taken['b-quick'] < days) {
    const { turn, ms } = (await step(db, turns)) as { turn: keyof typeof taken; ms: number };
    taken[turn] += 1;
    if (turn === 'b-quick') quickMs += ms;
    else
      assert.ok((taken[turn] - 1) * slowMs <= quickMs, `step ${taken[turn]} after ${quickMs} ms of others`);
  }
  assert.ok(taken['a-slow'] >= 1);
  // Alone, the slow account does not rest.
  while ((await step(db, turns)) !== null) taken['a-slow'] += 1;
  assert.equal(taken['a-slow'], days);
  assert.deepEqual(await statesOf(db), ['done']);
});

test('an account that is new has its turn at once, also beside one with many recoveries', async (t) => {
  const db = await openEmpty(t);
  await addRecoveries(db, 1, 'a-many', 3);
  await addRecoveries(db, 2, 'b-one');
  await slowDown(db, 1);
  const turns = new RecoveryTurns();
  assert.equal((await step(db, turns))?.turn, 'a-many');
  assert.equal((await step(db, turns))?.turn, 'b-one');
  await addRecoveries(db, 3, '0-new');
  assert.equal((await step(db, turns))?.turn, '0-new');
});

test('accounts that rest are forgotten when they have nothing to do, and their number is limited', async (t) => {
  const turns = new RecoveryTurns();
  for (let number = 0; number < 3_000; number += 1) turns.use(`account-${number}`, 10 + number);
  assert.ok(turns.resting.length <= 1_000, `${turns.resting.length} rest`);
  assert.ok(turns.resting.includes('account-2999'));
  const db = await openEmpty(t);
  await addRecoveries(db, 1, 'account-2999');
  assert.equal((await step(db, turns))?.turn, 'account-2999');
  assert.deepEqual(turns.resting, ['account-2999']);
  turns.use('account-1', 7);
  assert.equal(turns.advance(), true);
  assert.equal(turns.advance(), true);
  assert.equal(turns.advance(), false);
});

test('recoveries of disabled subscriptions wait, and are not searched in each step of others', async (t) => {
  const db = await openEmpty(t);
  await addRecoveries(db, 1, 'disabled', 3);
  await addRecoveries(db, 2, 'others');
  await sql`update subscriptions set state = 'disabled' where lane = 1`.execute(db);
  const turns = new RecoveryTurns();
  assert.equal((await step(db, turns))?.turn, 'others');
  assert.ok(turns.resting.includes('disabled'));
  while ((await step(db, turns)) !== null);
  assert.deepEqual((await statesOf(db)).toSorted(), ['done', 'running']);
  await sql`update subscriptions set state = 'active' where lane = 1`.execute(db);
  assert.equal((await step(db, new RecoveryTurns()))?.turn, 'disabled');
});

test('a call looks once at each account that has nothing to run, however short their waits', async (t) => {
  const db = await openEmpty(t);
  for (const lane of [1, 2, 3]) await addRecoveries(db, lane, `disabled ${lane}`);
  await sql`update subscriptions set state = 'disabled'`.execute(db);
  const turns = new RecoveryTurns();
  const looked: string[] = [];
  turns.wait = (turn) => {
    looked.push(turn);
    if (looked.length > 30) throw new Error('the call does not end');
  };
  assert.equal(await step(db, turns), null);
  assert.deepEqual(looked, ['disabled 1', 'disabled 2', 'disabled 3']);
});
