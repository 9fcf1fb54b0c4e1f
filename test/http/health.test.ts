/** Health: `/livez` covers the process, `/readyz` its database and this node's workers. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import Fastify from 'fastify';
import { sql } from 'kysely';
import { registerHealth } from '../../src/http/health.ts';
import { type ApiResponse, requester } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const request = requester(server);
const ask = () => request('GET', '/readyz');

test('health endpoints report the process, the database and the workers', async () => {
  for (const path of ['/livez', '/readyz']) {
    const { status, headers, body } = await request('GET', path);
    assert.equal(status, 200);
    assert.equal(body.status, 'ok');
    assert.equal(headers.get('cache-control'), 'no-store');
  }
  assert.deepEqual((await ask()).body.checks, {
    database: 'ok',
    fan_out: 'ok',
    sending: 'ok',
    intake: 'ok',
  });
});

// A lock on each table blocks one worker while the database responds to others.
for (const [worker, table] of [
  ['fan_out', 'outbox'],
  ['sending', 'subscriptions'],
  ['intake', 'inbox'],
] as const) {
  test(`the server is not ready while ${worker} is stuck, and ready afterwards`, async () => {
    const isDown = ({ status, body }: ApiResponse) => status === 503 && body.detail.includes(worker);
    await server.db.transaction().execute(async (tx) => {
      // The test holds the lock for longer than the timeout of a node.
      await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
      await sql`lock table ${sql.table(table)} in access exclusive mode`.execute(tx);
      const { body, headers } = await until(ask, isDown);
      assert.equal(body.code, 'workers-down');
      assert.ok(Number(headers.get('retry-after')) > 0);
      assert.equal((await request('GET', '/livez')).status, 200);
    });
    await until(ask, ({ status }) => status === 200);
  });
}

test('attack: requests for /readyz at the same time, which have no limit, share one look', async (t) => {
  const app = Fastify();
  t.after(() => app.close());
  let looks = 0;
  registerHealth(app, server.db, async () => {
    looks += 1;
    return {};
  });
  const all = await Promise.all(Array.from({ length: 500 }, () => app.inject('/readyz')));
  assert.deepEqual(new Set(all.map(({ statusCode }) => statusCode)), new Set([200]));
  // A look may end before the last requests come.
  assert.ok(looks < 50, `${looks} looks`);
  await app.inject('/readyz');
  assert.ok(looks >= 2, 'a later request looks again');
});
