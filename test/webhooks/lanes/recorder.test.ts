/** The recorder: when it writes, and what it writes when its node ends. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { type LaneState, loadLanes } from '../../../src/webhooks/lanes/lane_store.ts';
import type { Outcome } from '../../../src/webhooks/lanes/outcome_policy.ts';
import { Recorder } from '../../../src/webhooks/lanes/recorder.ts';
import { Tenant, WaitingMemory } from '../../../src/webhooks/lanes/waiting_memory.ts';
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
) {
  const subscriber = await startSubscriber(t);
  const { id } = await subscribe(await createApp(server), { url: subscriber.url });
  await sql`
    insert into nodes (id, host, process, alive_until)
    values (${node}::bigint, 'elsewhere', ${`${node} 1`}, now() + interval '1 hour')`.execute(db);
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint
    where lane = (select lane from subscriptions where id = ${id}) returning lane`.execute(db);
  const laneId = Number(rows[0]?.lane);
  const rules = {
    sealer: createSealer(testSecret, 'subscription-secret'),
    appSubscriptions: 'all' as const,
  };
  const onError = (error: Error) => assert.fail(error);
  const [state] = await loadLanes(db, node, [laneId], rules, onError);
  const lane = new Lane(state as LaneState, performance.now(), new Tenant('account', new WaitingMemory()));
  const recorder = new Recorder({
    db,
    node,
    onLost: () => {},
    onWritten: (_lanes, outcomes) => onWritten(outcomes),
    onError,
  });
  const add = (sequence: number) => recorder.add(lane, cancelled(laneId, sequence));
  return { recorder, laneId, add };
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
