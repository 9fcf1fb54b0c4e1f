/** What one fan-out pass takes from the outbox, and which heavy accounts it skips. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { textArray } from '../../../src/database/arrays.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { Lease, LeaseLostError } from '../../../src/database/lease.ts';
import { filterPath } from '../../../src/events/filter.ts';
import { type FanOutPass, fanOut, type KindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { HeavyAccounts } from '../../../src/webhooks/fan_out/heavy_accounts.ts';
import { readSnapshot } from '../../../src/webhooks/fan_out/outbox_changes.ts';
import type { PassRange, Visit } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { findNextEvent, type NextEvent, parkEvent } from '../../../src/webhooks/fan_out/parked_events.ts';
import { findSlice } from '../../../src/webhooks/fan_out/slices.ts';
import { Turns } from '../../../src/webhooks/fan_out/turns.ts';
import { createDatabase } from '../../support/database/database.ts';

/** Without kinds no event matches a subscription, so a pass only takes events. */
const none = textArray([]);
const kinds: KindArrays = { names: none, objects: none, patterns: none, appSubscriptions: 'all' };
const limits = { accounts: 1_000, events: 2_000, deliveries: 500 };
const [today, yesterday] = ['2026-06-02', '2026-06-01'];

/** Accounts are visited in the order of their numbers. */
const idOf = (number: number) => `10000000-0000-4000-8000-${String(number).padStart(12, '0')}`;

async function openOutbox(t: TestContext): Promise<Database> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  return db;
}

/** Adds an account with subscriptions, and one outbox row with all of its events. */
async function addAccount(
  db: Database,
  number: number,
  { subscriptions, events, day = today }: { subscriptions: number; events: number; day?: string },
): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    select gen_random_uuid(), ${number * 1_000_000}::bigint + number, 'user', ${idOf(number)}::uuid, 'http://127.0.0.1/',
      '{*}', 'timestamp', ''
    from generate_series(1, ${subscriptions}::int) as number`.execute(db);
  await sql`
    insert into outbox (turn, day, positions)
    select ${idOf(number)}::uuid, ${day}::date, array(
      select nextval('event_positions') from generate_series(1, ${events}::int))`.execute(db);
}

async function eventsLeft(db: Database, number: number): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select coalesce(sum(size), 0)::int as count from outbox where turn = ${idOf(number)}::uuid`.execute(db);
  return rows[0]?.count ?? 0;
}

/** A pass over all accounts, in the order of their numbers. */
async function pass(db: Database, range: Partial<PassRange>, lease?: Lease): Promise<FanOutPass> {
  const turns = new Turns(today);
  await turns.update(db);
  const visits = turns.first(100).toSorted((a, b) => (a.account < b.account ? -1 : 1));
  const { snapshot } = turns;
  const defaults = {
    day: today,
    visits,
    snapshot,
    resting: [],
    entitled: [],
    heavyShare: 250,
    skipsFrom: 250,
    limits,
  };
  return fanOut(db, kinds, { ...defaults, ...range }, lease && { held: lease.held });
}

const numbersOf = (accounts: { account: string }[]) =>
  accounts.map(({ account }) => Number(account.slice(-12)));

test('a pass skips heavy accounts once half of it is taken, and visits the accounts after them', async (t) => {
  const db = await openOutbox(t);
  for (const number of [1, 2, 3, 4]) await addAccount(db, number, { subscriptions: 150, events: 10 });
  await addAccount(db, 5, { subscriptions: 1, events: 1 });
  const { heavy, skipped, visited } = await pass(db, {});
  assert.deepEqual(numbersOf(heavy), [1, 2]);
  assert.deepEqual(numbersOf(skipped), [3, 4]);
  assert.deepEqual(
    visited.map(({ hasMore }) => hasMore),
    [true, true, true, true, false],
  );
  assert.equal(await eventsLeft(db, 1), 9);
  assert.equal(await eventsLeft(db, 3), 10);
  assert.equal(await eventsLeft(db, 5), 0);
});

test('heavy accounts share their part of a pass, with an event each; others are not affected', async (t) => {
  const db = await openOutbox(t);
  for (const number of [1, 2]) await addAccount(db, number, { subscriptions: 100, events: 20 });
  await addAccount(db, 3, { subscriptions: 1, events: 20 });
  const leftAfter = async (heavyShare: number) => {
    await pass(db, { heavyShare, skipsFrom: limits.deliveries, limits: { ...limits, deliveries: 5_000 } });
    return [await eventsLeft(db, 1), await eventsLeft(db, 2), await eventsLeft(db, 3)];
  };
  assert.deepEqual(await leftAfter(600), [17, 17, 0]);
  assert.deepEqual(await leftAfter(399), [16, 16, 0]);
  assert.deepEqual(await leftAfter(0), [15, 15, 0]);
});

test('a filter that is expensive to evaluate counts as deliveries, in passes and in slices', async (t) => {
  const db = await openOutbox(t);
  await addAccount(db, 1, { subscriptions: 20, events: 50 });
  await addAccount(db, 2, { subscriptions: 20, events: 20 });
  const choices = Array.from({ length: 100 }, (_none, index) => index);
  const path = filterPath({ all: Array.from({ length: 10 }, () => ({ path: '/a', in: choices })) });
  await sql`
    update subscriptions set filter_path = ${path}::jsonpath where account_id = ${idOf(1)}::uuid`.execute(db);
  const { rows } = await sql<{
    weight: number;
  }>`select max(filter_weight) as weight from subscriptions`.execute(db);
  const weight = 1 + (rows[0]?.weight ?? 0);
  assert.ok(weight > 10, `a thousand comparisons weigh ${weight}`);
  const { heavy } = await pass(db, { limits: { ...limits, deliveries: 5_000 } });
  assert.deepEqual(
    heavy.map(({ deliveries }) => deliveries),
    [20 * weight],
  );
  assert.equal(await eventsLeft(db, 1), 49);
  assert.equal(await eventsLeft(db, 2), 0);
  const turns = new Turns(today);
  await turns.update(db);
  const slice = await findSlice(db, turns.place(idOf(1)) as Visit, turns.snapshot, 5 * weight);
  const { rows: lanes } = await sql<{ lane: string }>`
    select lane from subscriptions where account_id = ${idOf(1)}::uuid order by lane`.execute(db);
  assert.equal(slice?.upTo, Number(lanes[4]?.lane));
});

test('a pass takes nothing and an event is not parked when another node has become leader', async (t) => {
  const db = await openOutbox(t);
  await addAccount(db, 1, { subscriptions: 1, events: 5 });
  const [former, leader] = ['former', 'leader'].map((holder) => {
    const lease = new Lease({ db, name: 'fan-out', holder, onError: assert.fail });
    t.after(() => lease.forget());
    return lease;
  }) as [Lease, Lease];
  await former.acquire();
  // Paused meanwhile.
  await sql`update leases set expires_at = '-infinity'`.execute(db);
  assert.equal(await leader.acquire(), 'self');
  await assert.rejects(pass(db, {}, former), LeaseLostError);
  const next = await findNextEvent(db, { account: idOf(1), after: 0 }, await readSnapshot(db));
  assert.equal(await parkEvent(db, next as NextEvent, 'reason', former.held), false);
  assert.equal(await eventsLeft(db, 1), 5);
  await pass(db, {}, leader);
  assert.equal(await eventsLeft(db, 1), 0);
});

test('a pass skips an account that rests, and never one whose turn it is', async (t) => {
  const db = await openOutbox(t);
  for (const number of [1, 2, 3, 4]) await addAccount(db, number, { subscriptions: 150, events: 10 });
  const { heavy, skipped } = await pass(db, { resting: [idOf(1)], entitled: [idOf(4)] });
  assert.deepEqual(numbersOf(heavy), [2, 3, 4]);
  assert.deepEqual(numbersOf(skipped), [1]);
});

test('a heavy account has its turns behind accounts just below the limit that fill half of each pass', async (t) => {
  const db = await openOutbox(t);
  const light = Array.from({ length: 12 }, (_, index) => index + 1);
  for (const number of light) await addAccount(db, number, { subscriptions: 31, events: 200 });
  await addAccount(db, 50, { subscriptions: 100, events: 200 });
  const turns = new Turns(today);
  const accounts = new HeavyAccounts();
  for (let count = 0; count < 20; count += 1) {
    await turns.update(db);
    const heavy = accounts.turns(limits, (account) => turns.has(account), 0);
    const range = turns.range({ limits, heavy, isApart: () => false });
    const result = await fanOut(db, kinds, range as PassRange);
    accounts.learn(result, 0, 1, false);
    turns.advance(result);
  }
  const [ofLight, ofHeavy] = [200 - (await eventsLeft(db, 1)), 200 - (await eventsLeft(db, 50))];
  assert.ok(ofHeavy >= ofLight / 2, `${ofHeavy} events, and ${ofLight} of another account`);
});

test('a pass takes events of one day, and says which accounts have others first', async (t) => {
  const db = await openOutbox(t);
  await addAccount(db, 1, { subscriptions: 1, events: 5 });
  await addAccount(db, 2, { subscriptions: 1, events: 5, day: yesterday });
  await addAccount(db, 2, { subscriptions: 0, events: 5 });
  await addAccount(db, 3, { subscriptions: 1, events: 5 });
  await addAccount(db, 3, { subscriptions: 0, events: 5, day: yesterday });
  const { visited } = await pass(db, {});
  assert.deepEqual(
    visited.map(({ hasMore, otherDay }) => ({ hasMore, otherDay })),
    [
      { hasMore: false, otherDay: null },
      { hasMore: true, otherDay: yesterday },
      { hasMore: true, otherDay: null },
    ],
  );
  assert.equal(await eventsLeft(db, 2), 10);
  assert.equal(await eventsLeft(db, 3), 5);
});

test('a pass without a list of accounts takes the rows that the snapshot did not see', async (t) => {
  const db = await openOutbox(t);
  await addAccount(db, 1, { subscriptions: 1, events: 5 });
  const snapshot = await readSnapshot(db);
  await addAccount(db, 2, { subscriptions: 1, events: 5 });
  await addAccount(db, 3, { subscriptions: 1, events: 5_000 });
  const { visited, found } = await pass(db, { visits: null, snapshot });
  assert.deepEqual(numbersOf(visited), [2, 3]);
  assert.deepEqual(numbersOf(found?.accounts ?? []), [2, 3]);
  assert.deepEqual([await eventsLeft(db, 1), await eventsLeft(db, 2)], [5, 0]);
  assert.ok((await eventsLeft(db, 3)) > 0);
  assert.equal(visited[1]?.hasMore, true);
  assert.equal((await pass(db, { visits: null, snapshot: found?.snapshot as never })).rows, 0);
});
