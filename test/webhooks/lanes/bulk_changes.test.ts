/** Changes of many lanes at once: they take one connection and few statements, and other lanes continue. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { searchPathStatement } from '../../../src/database/schema.ts';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { EventCache } from '../../../src/webhooks/fan_out/event_cache.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { BackgroundTasks } from '../../../src/webhooks/lanes/background_tasks.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { LaneHolds } from '../../../src/webhooks/lanes/lane_holds.ts';
import { LaneLoader } from '../../../src/webhooks/lanes/lane_loader.ts';
import { LeasedLanes } from '../../../src/webhooks/lanes/leased_lanes.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { addNode } from '../../support/database/other_node.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const node = '1000';
await addNode(db, node);
const count = 20;

/** A loader with a few lanes of its node in memory, and the statements that it sends from then on. */
async function openLoader(t: TestContext) {
  const app = await createApp(server);
  for (let made = 0; made < count; made += 1) await subscribe(app, { url: 'https://hooks.example/' });
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint
    where lane in (select lane from subscriptions where account_id = ${app.account.id}) returning lane`.execute(
    db,
  );
  const ids = rows.map(({ lane }) => Number(lane));
  const statements: string[] = [];
  const pool = openDatabase({
    connectionString: server.databaseUrl,
    connectionsMax: 2,
    onConnect: async (client) => {
      const query = client.query.bind(client) as (...parameters: unknown[]) => unknown;
      Object.assign(client, {
        query(...parameters: unknown[]) {
          statements.push(String(parameters[0]));
          return query(...parameters);
        },
      });
    },
  });
  t.after(() => pool.destroy());
  const onError = (error: Error) => assert.fail(error);
  const [lanes, background] = [new LeasedLanes(), new BackgroundTasks(onError)];
  const shared = { db: pool, node, lanes, background, onAccountHeld() {} };
  const loader: LaneLoader = new LaneLoader({
    ...shared,
    cache: new EventCache(),
    holds: new LaneHolds({ ...shared, onOver: (over) => loader.load(over) }),
    kinds: kindArrays(createCatalogue([])),
    sealer: createSealer(testSecret, 'subscription-secret'),
    cursors: new AgentCursors(testSecret),
    webhookId: 'event',
    isStopping: () => false,
    onChange() {},
    onError,
  });
  await loader.load(ids);
  statements.length = 0;
  return { loader, pool, ids, statements, all: () => ids.map((id) => lanes.get(id) as Lane) };
}

/** Locks the table that every load reads. @returns ends the lock */
async function lockProgress(t: TestContext): Promise<() => Promise<void>> {
  const session = new pg.Client({ connectionString: server.databaseUrl });
  await session.connect();
  await session.query(searchPathStatement(server.databaseUrl));
  await session.query('begin');
  await session.query('lock table lane_progress in access exclusive mode');
  let isOver = false;
  const end = async () => {
    if (isOver) return;
    isOver = true;
    await session.end();
  };
  t.after(end);
  return end;
}

const readsLanes = (text: string) => text.includes('lane_progress');

test('changed lanes are loaded together, and leave connections for others', async (t) => {
  const { loader, pool, ids, statements, all } = await openLoader(t);
  await sql`update subscriptions set rate_limit = 7, revision = 2 where lane = any(${ids}::bigint[])`.execute(
    db,
  );
  const unlock = await lockProgress(t);
  // One by one, as changes arrive.
  const loaded = Promise.all(ids.slice(0, 12).map((id) => loader.load([id])));
  await until(
    async () => statements.filter(readsLanes).length,
    (sent) => sent > 0,
  );
  await sql`select 1`.execute(pool);
  await unlock();
  await loaded;
  assert.equal(statements.filter(readsLanes).length, 1);
  assert.deepEqual(
    all().map(({ revision }) => revision),
    ids.map((_, index) => (index < 12 ? 2 : 1)),
  );
});

test('lanes of ended subscriptions are closed without being loaded', async (t) => {
  const { loader, ids, statements, all } = await openLoader(t);
  await sql`update subscriptions set state = 'ended', ended_at = now() where lane = any(${ids}::bigint[])`.execute(
    db,
  );
  for (const lane of all()) lane.hold();
  await loader.load(ids);
  assert.equal(statements.filter(readsLanes).length, 0);
  // They are not on hold any more, so the node releases them.
  assert.ok(all().every(({ isOpen, isOnHold }) => !isOpen && !isOnHold));
  assert.equal(loader.loading().length, 0);
});

async function countFalseHints(): Promise<number> {
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  return Number(/^nuncio_false_hints_total\{.*lane_changed.*\} (\d+)$/m.exec(metrics)?.[1] ?? 0);
}

async function countReadingProgress(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle' and query like '%lane_progress%'`.execute(
    db,
  );
  return rows[0]?.count ?? 0;
}

test('a lane that has not changed continues while more lanes are announced than a node lists', async (t) => {
  // Without a response, the lane stays leased.
  const subscriber = await startSubscriber(t, () => {});
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const publisher = await createPublisher(server);
  await publish(publisher, app.account, [1]);
  await subscriber.waitFor(1);
  // Its own news must have been read: a lane that is read again waits for that.
  await sql`select announce('lane_changed', 'nothing')`.execute(db);
  await until(countFalseHints, (hints) => hints > 0);
  await until(countReadingProgress, (reading) => reading === 0);
  const unlock = await lockProgress(t);
  await sql`select announce('lane_changed', number::text) from generate_series(1, 3000) as number`.execute(
    db,
  );
  await until(countFalseHints, (hints) => hints >= 100);
  await publish(publisher, app.account, [2]);
  await subscriber.waitFor(2);
  await unlock();
});
