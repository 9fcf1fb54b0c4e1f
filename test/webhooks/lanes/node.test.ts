/** A node's view of the database's clock: it tells a step of the clock from a slow statement. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { Node } from '../../../src/webhooks/lanes/node.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

/** A node that the test renews, on a monotonic clock that the test can move forward. */
async function openNode(t: TestContext) {
  const steps: number[] = [];
  const realNow = performance.now.bind(performance);
  let aheadMs = 0;
  t.mock.method(performance, 'now', () => realNow() + aheadMs);
  const node = new Node(db, {
    name: null,
    onError: (error) => assert.fail(error),
    onLost() {},
    onClockBack: (stepMs) => steps.push(stepMs),
    onEpoch() {},
  });
  await node.join();
  t.after(() => node.leave());
  return {
    steps: () => [...steps],
    passTime(ms: number) {
      aheadMs += ms;
    },
    /** Removes the node's row, so that the node renews itself with the next heartbeat. */
    async renew() {
      await sql`delete from nodes where id = ${node.id}`.execute(db);
      await node.heartbeat();
    },
    /** Renews the node in a statement that takes this long on the node's clock. */
    async renewSlowly(ms: number) {
      await sql`delete from nodes where id = ${node.id}`.execute(db);
      const begun: Promise<void>[] = [];
      const blocking = db.transaction().execute(async (tx) => {
        // The insert of the node waits for this transaction.
        await sql`
          insert into nodes (id, host, process, alive_until)
          values (${node.id}::bigint, 'elsewhere', '1 1', now())`.execute(tx);
        // Moves the start of the statement back by `ms`.
        aheadMs -= ms;
        begun.push(node.heartbeat());
        await until(
          async () =>
            (await sql`select from pg_locks where not granted and pid <> pg_backend_pid()`.execute(db)).rows
              .length,
          (waiting) => waiting > 0,
        );
        aheadMs += ms;
        throw new Error('taken back');
      });
      await assert.rejects(blocking, /taken back/);
      await Promise.all(begun);
    },
  };
}

test('a node reports how far the database’s clock went back', async (t) => {
  const { steps, passTime, renew } = await openNode(t);
  await renew();
  assert.deepEqual(steps(), []);
  // Time passes only on the node, so the database's clock appears to go back.
  passTime(60_000);
  await renew();
  assert.equal(steps().length, 1);
  assert.ok(Math.abs((steps()[0] ?? 0) - 60_000) < 5_000, String(steps()));
});

test('a node reports no step of less than five seconds, and none forward', async (t) => {
  const { steps, passTime, renew } = await openNode(t);
  passTime(4_000);
  await renew();
  passTime(-60_000);
  await renew();
  assert.deepEqual(steps(), []);
});

test('a node reports no step after a renewal that took eleven seconds', async (t) => {
  const { steps, renew, renewSlowly } = await openNode(t);
  // The database reads its clock at the end of the statement, and the node assumes the middle. The clock seems to be
  // 5.5 s ahead, and 5.5 s behind at the next renewal.
  await renewSlowly(11_000);
  await renew();
  assert.deepEqual(steps(), []);
});
