/**
 * `npx node bench/recoveries.ts [events]`: what a stranger's recovery waits for beside one whose steps are as expensive as they may be.
 * The expensive one replays large bodies through the largest filter; the stranger's has 200 short steps. The steps run as in an
 * engine, one at a time on one connection, until the stranger's recovery is done.
 */

import { sql } from 'kysely';
import { createAccount } from '../src/accounts/account.ts';
import { newId } from '../src/crypto/ids.ts';
import { type Database, openDatabase } from '../src/database/database.ts';
import { createCatalogue } from '../src/events/catalogue.ts';
import { type Filter, filterPath } from '../src/events/filter.ts';
import { loadPlatform } from '../src/platform.ts';
import { kindArrays } from '../src/webhooks/fan_out/fan_out.ts';
import { stepRecovery } from '../src/webhooks/fan_out/recovery.ts';
import { RecoveryTurns } from '../src/webhooks/fan_out/recovery_turns.ts';
import { openBench } from './deliveries/support.ts';

const [heavyLane, strangerLane] = [1, 2];
const bodyBytes = 262_144;
/** 200 steps of a recovery of failed deliveries. */
const deliveries = 100_000;

/** @returns the account */
async function subscribe(db: Database, lane: number): Promise<string> {
  const { id } = await createAccount(db, { email: `${newId()}@example.com`, password: null });
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, 'user', ${id}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(db);
  await sql`insert into lanes (id) values (${lane})`.execute(db);
  await sql`insert into lane_progress (lane) values (${lane})`.execute(db);
  return id;
}

/** Events from before the subscription, whose bodies take long to parse, and a filter of 64 KiB that none meets. */
async function prepareHeavy(db: Database, events: number): Promise<void> {
  const account = await subscribe(db, heavyLane);
  for (let added = 0; added < events; added += 500) {
    await sql`
      insert into events (id, account_id, kind, body, created_at)
      select gen_random_uuid()::text, ${account}, 'push', '{"ref":"","n":[1' || repeat(',1', ${bodyBytes / 2}::int) || ']}',
        now() - interval '5 minutes'
      from generate_series(1, ${Math.min(500, events - added)}::int)`.execute(db);
  }
  const texts = (from: number) =>
    Array.from({ length: 100 }, (_none, index) => `${from + index}`.padEnd(95, 'x'));
  const filter: Filter = {
    any: Array.from({ length: 6 }, (_none, index) => ({ path: '/ref', in: texts(index * 100) })),
  };
  await sql`
    update subscriptions set filter = ${JSON.stringify(filter)}::json, filter_path = ${filterPath(filter)}::jsonpath,
      filter_digest = '', created_position = pg_sequence_last_value('event_positions')
    where lane = ${heavyLane}`.execute(db);
}

async function prepareStranger(db: Database): Promise<void> {
  await subscribe(db, strangerLane);
  await sql`
    insert into deliveries (day, lane, sequence, event)
    select event_day(), ${strangerLane}, number, number from generate_series(1, ${deliveries}::int) as number`.execute(
    db,
  );
  await sql`update lanes set next_sequence = ${deliveries + 1} where id = ${strangerLane}`.execute(db);
  await sql`update lane_progress set cursor = ${deliveries} where lane = ${strangerLane}`.execute(db);
}

async function recover(db: Database, lane: number, state: 'missing' | 'failed'): Promise<void> {
  await sql`
    insert into recoveries (id, lane, turn, since, until, states, phase, missing_day)
    select ${newId()}, lane, account_id::text, now() - interval '1 hour', now(), array[${state}],
      ${state === 'missing' ? 'missing' : 'resending'},
      case when ${state === 'missing'} then (now() at time zone 'utc')::date end
    from subscriptions where lane = ${lane}`.execute(db);
}

/** Runs steps until the stranger's recovery is done. */
async function run(db: Database, name: string): Promise<void> {
  const turns = new RecoveryTurns();
  const begunAt = performance.now();
  let [steps, longestMs] = [0, 0];
  for (;;) {
    const stepAt = performance.now();
    if (!(await stepRecovery(db, kinds, turns))) break;
    steps += 1;
    longestMs = Math.max(longestMs, performance.now() - stepAt);
    const { rows } = await sql<{ lane: string; missing_position: string }>`
      select lane, missing_position from recoveries where state = 'running'`.execute(db);
    if (rows.some(({ lane }) => Number(lane) === strangerLane)) continue;
    console.log(
      `${name}: the stranger's is done; heavy events read: ${rows[0]?.missing_position ?? 'all or none'}`,
    );
    break;
  }
  const seconds = ((performance.now() - begunAt) / 1_000).toFixed(1);
  console.log(`${name}: ${seconds} s, ${steps} steps, the longest ${longestMs.toFixed(0)} ms`);
}

const events = Number(process.argv[2] ?? 8_000);
const kinds = kindArrays(createCatalogue((await loadPlatform(null)).eventKinds));
const bench = await openBench();
const db = openDatabase({ connectionString: bench.databaseUrl, connectionsMax: 1 });
try {
  await prepareHeavy(db, events);
  await prepareStranger(db);
  await sql`analyze`.execute(db);
  await recover(db, strangerLane, 'failed');
  await run(db, 'alone');
  await recover(db, heavyLane, 'missing');
  await recover(db, strangerLane, 'failed');
  await run(db, 'beside');
} finally {
  await db.destroy();
  await bench.close();
}
process.exit();
