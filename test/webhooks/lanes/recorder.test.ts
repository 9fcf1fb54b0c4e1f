/** The recorder: when it writes, and what it writes when its node ends. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { type LaneState, loadLanes } from '../../../src/webhooks/lanes/lane_store.ts';
import type { AttemptRecord, Outcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { Recorder } from '../../../src/webhooks/lanes/recorder.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { addNode } from '../../support/database/other_node.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

/** A recorder with a node of its own, which leases one lane. */
async function openRecorder(
  t: TestContext,
  node: string,
  onWritten: (outcomes: Outcome[]) => void = () => {},
  {
    onError = (error: Error) => assert.fail(error),
    onLost = () => {},
  }: { onError?: (error: Error) => void; onLost?: (lanes: Lane[]) => void } = {},
) {
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe(await createApp(server), { url: subscriber.url });
  await addNode(db, node);
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint
    where lane = (select lane from subscriptions where id = ${id}) returning lane`.execute(db);
  const laneId = Number(rows[0]?.lane);
  const rules = {
    sealer: createSealer(testSecret, 'subscription-secret'),
    cursors: new AgentCursors(testSecret),
    webhookId: 'event' as const,
    appSubscriptions: 'all' as const,
  };
  const [state] = await loadLanes(db, node, [laneId], rules, onError);
  const lane = new Lane(state as LaneState, performance.now(), new Tenant('account', new DeliveryMemory()));
  const recorder = new Recorder({
    db,
    node,
    onLost,
    onWritten: (_lanes, outcomes) => onWritten(outcomes),
    onError,
  });
  const add = (sequence: number) => recorder.add(lane, cancelled(laneId, sequence));
  return { recorder, laneId, lane, add };
}

test('webhooks 64: a flush writes the outcomes that wait behind a statement in flight', async (t) => {
  const { recorder, laneId, add } = await openRecorder(t, '77');
  const flushed = await db.transaction().execute(async (tx) => {
    await sql`select from nodes where id = 77 for update`.execute(tx);
    add(1);
    await until(
      async () =>
        (await sql`select from pg_locks where not granted and pid <> pg_backend_pid()`.execute(db)).rows
          .length,
      (waiting) => waiting > 0,
    );
    add(2);
    return { result: recorder.flush() };
  });
  await flushed.result;
  const { rows: written } = await sql<{ sequence: number }>`
    select sequence::int from retries where lane = ${laneId} order by sequence`.execute(db);
  assert.deepEqual(written, [{ sequence: 1 }, { sequence: 2 }]);
});

test('an outcome after a pause is written at once, and outcomes that arrive meanwhile share the next statement', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const statements = [Promise.withResolvers<number>(), Promise.withResolvers<number>()];
  let count = 0;
  const { add } = await openRecorder(t, '78', (outcomes) => {
    // The statement is still in flight.
    if (count === 0) for (const sequence of [3, 4, 5]) add(sequence);
    statements[count]?.resolve(outcomes.length);
    count += 1;
  });
  add(1);
  add(2);
  assert.equal(await statements[0]?.promise, 2);
  for (let turns = 0; turns < 100; turns += 1) await nextTurn();
  assert.equal(count, 1);
  t.mock.timers.tick(4);
  assert.equal(await statements[1]?.promise, 3);
});

test('an attempt that cannot be stored is omitted from the log, and all deliveries continue', async (t) => {
  const errors: Error[] = [];
  const written: number[] = [];
  const onWritten = (outcomes: Outcome[]) => written.push(...outcomes.map(({ sequence }) => sequence));
  const { recorder, laneId, lane, add } = await openRecorder(t, '79', onWritten, {
    onError: (error) => errors.push(error),
    onLost: () => assert.fail('the lane is not lost'),
  });
  add(1);
  const attempt = { ...emptyAttempt, headers: 'no text in PostgreSQL contains \u0000' };
  recorder.add(lane, { ...pending(laneId, 2), attempt });
  recorder.add(lane, { ...pending(laneId, 3), attempt: emptyAttempt });
  await recorder.flush();
  await until(
    async () => written.length,
    (count) => count === 3,
  );
  assert.ok(errors.length > 0);
  const { rows: retries } = await sql`
    select sequence::int, state, attempts from retries where lane = ${laneId} order by sequence`.execute(db);
  assert.deepEqual(retries, [
    { sequence: 1, state: 'cancelled', attempts: 0 },
    { sequence: 2, state: 'pending', attempts: 1 },
    { sequence: 3, state: 'pending', attempts: 1 },
  ]);
  const { rows: attempts } = await sql`
    select sequence::int from attempts where lane = ${laneId}`.execute(db);
  assert.deepEqual(attempts, [{ sequence: 3 }]);
});

test('a lane whose outcome cannot be written at all is lost, and the outcomes of others are written', async (t) => {
  const lost: Lane[] = [];
  const { recorder, laneId, lane } = await openRecorder(t, '80', () => {}, {
    onError: () => {},
    onLost: (lanes) => lost.push(...lanes),
  });
  const other = await openRecorder(t, '81');
  await sql`update lane_progress set owner = 80 where lane = ${other.laneId}`.execute(db);
  recorder.add(lane, { ...pending(laneId, 1), day: 'no day' });
  recorder.add(other.lane, pending(other.laneId, 1));
  await recorder.flush();
  await until(
    async () => (await sql`select from retries where lane = ${other.laneId}`.execute(db)).rows.length,
    (count) => count === 1,
  );
  assert.deepEqual(lost, [lane]);
});

test('a cursor lags while deliveries are attempted once, and not when one is attempted again', async (t) => {
  const { recorder, laneId, lane } = await openRecorder(t, '82');
  /** Each load of the lane reads all attempts after this. */
  const cursorAfter = async (outcome: Outcome): Promise<unknown> => {
    lane.markDone(outcome.sequence);
    recorder.add(lane, outcome);
    await recorder.flush();
    return (await sql`select cursor::int from lane_progress where lane = ${laneId}`.execute(db)).rows;
  };
  const succeeded = { ...cancelled(laneId, 1), attempt: emptyAttempt, retry: null };
  assert.deepEqual(await cursorAfter(succeeded), [{ cursor: 0 }]);
  assert.deepEqual(await cursorAfter({ ...succeeded, hadRetry: true }), [{ cursor: 1 }]);
});

const emptyAttempt: AttemptRecord = {
  number: 1,
  trigger: 's',
  revision: 1,
  startedAt: performance.now(),
  durationMs: 1,
  firstByteMs: null,
  status: null,
  error: 'timeout',
  connection: null,
  headers: null,
  body: null,
  truncated: false,
};

function pending(lane: number, sequence: number): Outcome {
  return { ...cancelled(lane, sequence), retry: { state: 'pending', attempts: 1, dueMs: 60_000 } };
}

function cancelled(lane: number, sequence: number): Outcome {
  return {
    lane,
    sequence,
    day: new Date().toISOString().slice(0, 10),
    attempt: null,
    retry: { state: 'cancelled', attempts: 0, dueMs: null },
    hadRetry: false,
    wasManual: false,
  };
}
