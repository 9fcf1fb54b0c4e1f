/** What it costs to find the agents' subscriptions that mostly fail. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { holdFailingAgents } from '../../../src/webhooks/subscriptions/agent_hold.ts';
import { captureStatements, planModes, rowsOf } from '../../support/database/plans.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { addAgentWebhook } from '../../support/webhooks/agents.ts';
import { createApp } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

/** Adds attempts of deliveries up to a sequence, the last of which failed. The lane is paused, so nothing is sent. */
async function addLane(attempts: number, failures: number): Promise<number> {
  const { lane } = await addAgentWebhook(server, await createApp(server), 'http://127.0.0.1:9/');
  await sql`
    update lane_progress set cursor = ${attempts}::bigint, paused_until = now() + interval '1 day' where lane = ${lane}`.execute(
    db,
  );
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms, error)
    select (now() at time zone 'utc')::date - number % 2, ${lane}, number, now() - interval '10 minutes', 1, 's', false, 1,
      1, case when number > ${attempts - failures}::int then 'timeout' end
    from generate_series(1, ${attempts}::int) as number`.execute(db);
  return lane;
}

test('attack: very many attempts of a lane are not read again after each failure', async () => {
  for (const mode of planModes) {
    const lane = await addLane(30_000, 900);
    await sql`analyze attempts`.execute(db);
    const statements = await captureStatements(mode, () => holdFailingAgents(db, [lane]));
    const rows = rowsOf(statements);
    assert.ok(rows < 3_000, `${mode}: ${rows} rows`);
  }
});

test('a lane is held if its newest deliveries fail, whatever became of thousands before them', async () => {
  const [failing, other] = [await addLane(5_000, 1_000), await addLane(5_000, 900)];
  assert.equal(await holdFailingAgents(db, [failing, other]), 1);
});

test('one statement looks at fifty lanes at most', async () => {
  const lane = await addLane(200, 200);
  const lanes = Array.from({ length: 120 }, (_none, index) => -1 - index);
  let held = 0;
  const statements = await captureStatements('force_custom_plan', async () => {
    held = await holdFailingAgents(db, [...lanes, lane]);
  });
  assert.deepEqual([statements.length, held], [3, 1]);
});
