/** What one fan-out pass takes of events with large bodies that PostgreSQL has to parse for a filter. No server runs. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { textArray } from '../../../src/database/arrays.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { type FanOutPass, fanOut, type KindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { HeavyAccounts } from '../../../src/webhooks/fan_out/heavy_accounts.ts';
import {
  bytesPerDelivery,
  heavyDeliveriesMin,
  type PassRange,
  passLimits,
} from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { Turns } from '../../../src/webhooks/fan_out/turns.ts';
import { createDatabase } from '../../support/database/database.ts';
import { captureStatements, nodesOf, planModes } from '../../support/database/plans.ts';

/** Without kinds no event matches a subscription, so a pass only takes events. */
const none = textArray([]);
const kinds: KindArrays = { names: none, objects: none, patterns: none, appSubscriptions: 'all' };
/** Costs as much as 200 deliveries. */
const large = 200 * bytesPerDelivery;
/** One byte more would make an account with one subscription a heavy one. */
const light = (heavyDeliveriesMin - 1) * bytesPerDelivery - 1;

interface Scene {
  db: Database;
  today: string;
}

async function openScene(t: TestContext): Promise<Scene> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const { rows } = await sql<{ day: string }>`select event_day()::text as day`.execute(db);
  return { db, today: rows[0]?.day as string };
}

/** Accounts are visited in the order of their numbers. */
const idOf = (number: number) => `10000000-0000-4000-8000-${String(number).padStart(12, '0')}`;

interface Subscriptions {
  count?: number;
  /** How many of them have a filter. */
  filtered?: number;
  /** The app that owns them; default: the account's user. */
  app?: string;
}

async function subscribe(
  { db }: Scene,
  account: number,
  { count = 1, filtered = count, app }: Subscriptions = {},
): Promise<void> {
  await sql`
    insert into subscriptions (id, lane, owner, account_id, client_id, url, kinds, signature, secret, filter, filter_path, filter_digest)
    select gen_random_uuid(), ${account * 1_000_000}::bigint + number, ${app === undefined ? 'user' : 'client'},
      ${app === undefined ? idOf(account) : null}::uuid, ${app ?? null}, 'http://127.0.0.1/', '{*}', 'timestamp', '',
      case when number <= ${filtered}::int then '{}'::json end,
      case when number <= ${filtered}::int then '$.ref == "none"'::jsonpath end,
      case when number <= ${filtered}::int then '\\x01'::bytea end
    from generate_series(1, ${count}::int) as number`.execute(db);
}

/** Adds an outbox row with events of these bytes; null for an event whose body was erased. @returns their positions */
async function publish(
  { db }: Scene,
  account: number,
  bytes: readonly (number | null)[],
  lanes: number[] | null = null,
): Promise<number[]> {
  const { rows } = await sql<{ positions: string[] }>`
    with event as (
      insert into events (id, account_id, kind, body)
      select gen_random_uuid()::text, ${idOf(account)}::uuid, 'push', repeat('1', size)
      from unnest(${bytes}::int[]) with ordinality as given (size, number) order by number
      returning day, position
    )
    insert into outbox (day, turn, positions, lanes)
    select day, ${idOf(account)}::uuid, array_agg(position order by position), ${lanes}::bigint[] from event group by day
    returning positions`.execute(db);
  return rows[0]?.positions.map(Number) ?? [];
}

const repeat = (count: number, bytes: number) => Array.from({ length: count }, () => bytes);

/** A pass over all accounts, in the order of their numbers. */
async function pass({ db, today }: Scene, range: Partial<PassRange> = {}): Promise<FanOutPass> {
  const turns = new Turns(today);
  await turns.update(db);
  const visits = turns.first(1_000).toSorted((a, b) => (a.account < b.account ? -1 : 1));
  const { snapshot } = turns;
  const shares = { resting: [], entitled: [], heavyShare: 1_000, skipsFrom: 1_000 };
  return fanOut(db, kinds, { day: today, visits, snapshot, ...shares, limits: passLimits, ...range });
}

/** How many events of each account each pass takes, until none is left. Checks that none is left out and that they are in order. */
async function takeAll(scene: Scene, published: readonly number[][]): Promise<number[][]> {
  const counts: number[][] = [];
  const taken: number[][] = published.map(() => []);
  for (;;) {
    const { events } = await pass(scene);
    if (events.length === 0) break;
    const ofEach = published.map((own) => events.filter((event) => own.includes(event)));
    for (const [index, own] of ofEach.entries()) taken[index]?.push(...own);
    counts.push(ofEach.map(({ length }) => length));
  }
  assert.deepEqual(taken, published);
  return counts;
}

test('a pass takes as many large bodies as fit in the share of heavy accounts, in order', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1);
  const first = await publish(scene, 1, repeat(3, large));
  const second = await publish(scene, 1, repeat(9, large));
  const { rows } = await sql`select from outbox`.execute(scene.db);
  assert.equal(rows.length, 2);
  // Each costs 201 of 1,000.
  assert.deepEqual(await takeAll(scene, [[...first, ...second]]), [[4], [4], [4]]);
});

test('a pass takes one event of an account, whatever its body costs', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1);
  const published = await publish(scene, 1, repeat(2, large));
  for (const [index, heavyShare] of [200, 0].entries()) {
    const { events, heavy } = await pass(scene, { heavyShare });
    assert.deepEqual(events, [published[index]]);
    assert.deepEqual(heavy, [{ account: idOf(1), deliveries: 201 }]);
  }
});

test('a body counts once for all filters, and those of the account’s apps count as its own', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1, { count: 5, filtered: 3 });
  await subscribe(scene, 2, { count: 2, filtered: 0 });
  await subscribe(scene, 9, { count: 3, filtered: 1, app: 'app' });
  await sql`insert into accounts (id, email, name) values (${idOf(2)}, 'ann@example.com', 'Ann')`.execute(
    scene.db,
  );
  await sql`
    insert into grants (id, account_id, client_id, scopes) values (${newId()}, ${idOf(2)}, 'app', '{read:posts}')`.execute(
    scene.db,
  );
  for (const account of [1, 2]) await publish(scene, account, [large]);
  const { heavy } = await pass(scene);
  assert.deepEqual(
    heavy.map(({ deliveries }) => deliveries),
    [5 + 200, 2 + 3 + 200],
  );
});

test('bodies count nothing without a filter, when erased, and where an event is for certain lanes', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1, { filtered: 0 });
  await subscribe(scene, 2);
  await subscribe(scene, 3);
  await publish(scene, 1, repeat(50, large));
  await publish(
    scene,
    2,
    Array.from({ length: 50 }, () => null),
  );
  // Their partition was dropped.
  await sql`
    insert into outbox (day, turn, positions)
    select ${scene.today}::date, ${idOf(2)}::uuid, array(select nextval('event_positions') from generate_series(1, 50))`.execute(
    scene.db,
  );
  await publish(scene, 3, repeat(50, large), [3_000_001]);
  const { events, heavy } = await pass(scene);
  assert.equal(events.length, 200);
  assert.deepEqual(heavy, []);
});

test('an account’s turn ends before an event that makes it a heavy account, wherever that is', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1);
  const published = [
    ...(await publish(scene, 1, [10, 10, large, large, 10])),
    ...(await publish(scene, 1, [10])),
    ...(await publish(scene, 1, repeat(10, large))),
  ];
  // A turn that begins with a large event has as many events as if all were so large.
  assert.deepEqual(await takeAll(scene, [published]), [[2], [4], [4], [4], [2]]);
});

test('the bodies of all accounts that are not heavy cost half of a pass at most', async (t) => {
  const scene = await openScene(t);
  await subscribe(scene, 1);
  await subscribe(scene, 2);
  await subscribe(scene, 3, { filtered: 0 });
  const cost = Math.floor(light / bytesPerDelivery);
  assert.equal(cost, heavyDeliveriesMin - 2);
  for (const account of [1, 2, 3]) await publish(scene, account, repeat(400, light));
  const { events, heavy, visited } = await pass(scene);
  assert.deepEqual(heavy, []);
  const shareOfEach = Math.floor(passLimits.deliveries / 2 / 2 / cost);
  assert.equal(events.length, 2 * shareOfEach + 400);
  assert.deepEqual(
    visited.map(({ hasMore }) => hasMore),
    [true, true, false],
  );
});

test('accounts with large bodies take turns, and others have one in every pass', async (t) => {
  const scene = await openScene(t);
  const turns = new Turns(scene.today);
  const accounts = new HeavyAccounts();
  for (const account of [1, 2, 3, 4]) {
    await subscribe(scene, account);
    await publish(scene, account, repeat(12, 600 * bytesPerDelivery));
  }
  await subscribe(scene, 5, { filtered: 0 });
  const taken = [1, 2, 3, 4, 5].map(() => 0);
  for (let count = 0; count < 12; count += 1) {
    await publish(scene, 5, [10]);
    await turns.update(scene.db);
    const heavy = accounts.turns(passLimits, (account) => turns.has(account), 0);
    const range = turns.range({ limits: passLimits, heavy, isApart: () => false });
    const result = await fanOut(scene.db, kinds, range as PassRange);
    const { rows } = await sql<{ account: number; count: number }>`
      select right(account_id::text, 1)::int as account, count(*)::int as count from events
      where position = any(${result.events}::bigint[]) group by 1`.execute(scene.db);
    for (const { account, count } of rows) (taken[account - 1] as number) += count;
    assert.ok(
      rows.some(({ account }) => account === 5),
      'the other account has a turn',
    );
    accounts.learn(result, 0, 20, false);
    turns.advance(result);
  }
  assert.equal(taken[4], 12);
  const ofHeavy = taken.slice(0, 4);
  assert.ok(Math.max(...ofHeavy) < 12, `each has a part of its events: ${ofHeavy.join()}`);
  assert.ok(Math.min(...ofHeavy) > 0 && Math.max(...ofHeavy) <= Math.min(...ofHeavy) + 2, ofHeavy.join());
});

for (const mode of planModes) {
  test(`a pass reads lengths only for accounts with a filter, and no more than it may take (${mode})`, async (t) => {
    const scene = await openScene(t);
    await subscribe(scene, 1);
    await subscribe(scene, 2, { filtered: 0 });
    for (let row = 0; row < 10; row += 1) {
      await publish(scene, 1, repeat(500, 10));
      await publish(scene, 2, repeat(500, 10));
    }
    await sql`analyze`.execute(scene.db);
    const statements = await captureStatements(mode, async () => {
      const { events } = await pass(scene);
      assert.equal(events.length, passLimits.events);
    });
    const lookUps = nodesOf(statements).filter(
      (node) => node['Relation Name']?.startsWith('events_') && node['Actual Loops'] > 1,
    );
    // First the lengths, then all events, unless the plan finds earlier that no subscription matches.
    const [lengths, events] = lookUps.map((node) => node['Actual Loops']);
    assert.equal(lengths, passLimits.events / 2);
    assert.ok(events === undefined || events === passLimits.events, `${events} events`);
  });
}
