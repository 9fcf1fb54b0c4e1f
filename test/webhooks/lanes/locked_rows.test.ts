/** Another session has locked a row of one lane. Statements that serve many lanes do not wait for it. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import type { Database } from '../../../src/database/database.ts';
import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import { Lane } from '../../../src/webhooks/lanes/lane.ts';
import {
  abandonLanes,
  type LaneState,
  loadLanes,
  postponeLanes,
  releaseLanes,
  storeCursors,
} from '../../../src/webhooks/lanes/lane_store.ts';
import { sweepLanes } from '../../../src/webhooks/lanes/lane_sweep.ts';
import type { Outcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { Recorder } from '../../../src/webhooks/lanes/recorder.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { addNode } from '../../support/database/other_node.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

/** Makes a lane that the node leases. */
async function leaseLane(t: TestContext, node: string): Promise<number> {
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe(await createApp(server), { url: subscriber.url });
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint, due_at = null
    where lane = (select lane from subscriptions where id = ${id}) returning lane`.execute(db);
  return Number(rows[0]?.lane);
}

async function loadLane(node: string, id: number): Promise<Lane> {
  const rules = {
    sealer: createSealer(testSecret, 'subscription-secret'),
    cursors: new AgentCursors(testSecret),
    webhookId: 'event' as const,
    appSubscriptions: 'all' as const,
  };
  const [state] = await loadLanes(db, node, [id], rules, (error) => assert.fail(error));
  return new Lane(state as LaneState, performance.now(), new Tenant('account', new DeliveryMemory()));
}

async function ownersOf(lanes: readonly number[]): Promise<(string | null)[]> {
  const { rows } = await sql<{ owner: string | null }>`
    select p.owner from unnest(${[...lanes]}::bigint[]) with ordinality as given (lane, place)
    join lane_progress p on p.lane = given.lane order by place`.execute(db);
  return rows.map(({ owner }) => owner);
}

/** Locks a row until the work is done. */
async function whileLocked<T>(lock: ReturnType<typeof sql>, work: (tx: Database) => Promise<T>): Promise<T> {
  return db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await lock.execute(tx);
    return work(tx);
  });
}

const progressOf = (lane: number) => sql`select from lane_progress where lane = ${lane} for update`;

function pending(lane: number, sequence: number): Outcome {
  return {
    lane,
    sequence,
    day: new Date().toISOString().slice(0, 10),
    attempt: null,
    retry: { state: 'pending', attempts: 1, dueMs: 60_000 },
    hadRetry: false,
    wasManual: false,
  };
}

for (const table of ['lane_progress', 'retries']) {
  test(`outcomes of other lanes are written while a row of ${table} is locked, and its own afterwards`, async (t) => {
    const node = table === 'retries' ? '91' : '92';
    await addNode(db, node);
    const [locked, other] = [await leaseLane(t, node), await leaseLane(t, node)];
    await sql`
      insert into retries (lane, sequence, day, state, attempts) values (${locked}, 1, current_date, 'pending', 1)`.execute(
      db,
    );
    const lanes = [await loadLane(node, locked), await loadLane(node, other)];
    const written: number[] = [];
    const recorder = new Recorder({
      db,
      node,
      onLost: () => assert.fail('no lane is lost'),
      onWritten: (_lanes, outcomes) => written.push(...outcomes.map(({ lane }) => lane)),
      onError: () => {},
    });
    const record = (lane: Lane) => {
      // Its row must be written.
      lane.failures += 1;
      recorder.add(lane, pending(lane.id, lane.failures));
    };
    await whileLocked(sql`select from ${sql.table(table)} where lane = ${locked} for update`, async () => {
      for (const lane of lanes) record(lane);
      await until(
        async () => written.length,
        (count) => count === 1,
      );
      assert.deepEqual(written, [other]);
      // Later ones as well, without a wait.
      record(lanes[1] as Lane);
      record(lanes[0] as Lane);
      await until(
        async () => written.length,
        (count) => count === 2,
      );
      assert.deepEqual(written, [other, other]);
      assert.ok(recorder.hasOutcomesOf(lanes[0] as Lane));
      assert.ok((lanes[0] as Lane).pausedUntil > performance.now());
    });
    await until(
      async () => written.length,
      (count) => count === 4,
    );
    assert.deepEqual(written.slice(2), [locked, locked]);
    assert.ok(!recorder.hasOutcomesOf(lanes[0] as Lane));
  });
}

test('a resend locks its lane before its retry, as recording outcomes does', async (t) => {
  const subscriber = await startSubscriber(t, (_request, response) => response.writeHead(500).end());
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { body } = await app.request('POST', `/subscriptions/${id}/test`, { json: {} });
  const { rows } = await until(
    () =>
      sql<{ lane: string }>`
      select lane from retries where lane = (select lane from subscriptions where id = ${id})`.execute(db),
    (found) => found.rows.length === 1,
  );
  const lane = Number(rows[0]?.lane);
  let resent = Promise.resolve({ status: 0 });
  await whileLocked(progressOf(lane), async (tx) => {
    resent = app.request('POST', `/deliveries/${body.delivery}/resend`);
    await until(
      () =>
        sql`select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`.execute(
          tx,
        ),
      (waiting) => waiting.rows.length > 0,
    );
    await sql`select from retries where lane = ${lane} for update nowait`.execute(tx);
  });
  assert.equal((await resent).status, 202);
});

test('lanes are released, postponed and taken from dead nodes, except one whose row is locked', async (t) => {
  await addNode(db, '93');
  const lanes = [await leaseLane(t, '93'), await leaseLane(t, '93')] as const;
  const lease = (node: string) =>
    sql`update lane_progress set owner = ${node}::bigint, due_at = null where lane = any(${[...lanes]}::bigint[])`.execute(
      db,
    );
  const release = { head: 0, cursor: 0, dueMs: null };
  const releases = lanes.map((lane) => ({ lane, ...release }));
  const steps: [node: string, work: () => Promise<unknown>][] = [
    ['93', () => releaseLanes(db, '93', releases)],
    ['93', () => postponeLanes(db, '93', lanes)],
    ['93', () => abandonLanes(db, ['93'])],
    // No such node.
    ['94', () => sweepLanes(db, '93', Math.min(...lanes) - 1, 10_000)],
  ];
  for (const [node, work] of steps) {
    await lease(node);
    await whileLocked(progressOf(lanes[0]), work);
    assert.equal((await ownersOf(lanes))[0], node);
    assert.notEqual((await ownersOf(lanes))[1], node);
  }
  await sweepLanes(db, '93', Math.min(...lanes) - 1, 10_000);
  assert.notEqual((await ownersOf(lanes))[0], '94');
});

test('a node that stops stores its cursors, except of a lane whose row is locked', async (t) => {
  await addNode(db, '95');
  const lanes = [await leaseLane(t, '95'), await leaseLane(t, '95')] as const;
  const behind = lanes.map((id) => ({ id, cursor: 3 }));
  await whileLocked(progressOf(lanes[0]), () => storeCursors(db, '95', behind));
  const { rows } = await sql<{ cursor: string }>`
    select p.cursor from unnest(${[...lanes]}::bigint[]) with ordinality as given (lane, place)
    join lane_progress p on p.lane = given.lane order by place`.execute(db);
  assert.deepEqual(rows, [{ cursor: '0' }, { cursor: '3' }]);
});
