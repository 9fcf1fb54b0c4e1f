/**
 * A page of an app's connections looks for the first delivery of each grant, which can take seconds. Those of its members must leave the database to
 * others.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { waitingMax } from '../../src/api/connections.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });
const { db } = server;

/** Statements that look for first deliveries, and wait for the lock of a table. */
async function waitingPages(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%distinct on (s.grant_id)%'`.execute(
    db,
  );
  return rows[0]?.count ?? 0;
}

test('one page of connections is read at once, and a member has few that wait', async () => {
  const app = await createApp(server);
  await subscribe(app, { url: 'http://127.0.0.1:9999/', signature: 'timestamp' });
  await sql`
    insert into connections
      (id, started_at, updated_at, client_id, is_known, account_id, grant_id, outcome, keys, request_ids, source, steps)
    values (gen_random_uuid(), now(), now(), ${app.clientId}, true, ${app.account.id}, ${app.grantId}, 'connected',
      '{}', '{}', '', '[]')`.execute(db);
  const [one, other] = await Promise.all([
    createApiUser(server, ['read:apps']),
    createApiUser(server, ['read:apps']),
  ]);
  for (const { account } of [one, other]) {
    await sql`
      insert into app_members (client_id, account_id, role) values (${app.clientId}, ${account.id}, 'developer')`.execute(
      db,
    );
  }
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = db.transaction().execute(async (tx) => {
    await sql`lock table attempts in access exclusive mode`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const path = `/apps/${app.clientId}/connections`;
  const sent = Array.from({ length: 1 + waitingMax + 3 }, () => one.request('GET', path));
  const responses: number[] = [];
  for (const each of sent) void each.then(({ status }) => responses.push(status));
  // What is above the limit is refused at once.
  await until(
    async () => responses.length,
    (count) => count === 3,
  );
  assert.deepEqual(responses, [503, 503, 503]);
  const others = Array.from({ length: 3 }, () => other.request('GET', path));
  assert.equal((await other.request('GET', '/apps')).status, 200);
  assert.equal(await waitingPages(), 1);
  ended.resolve();
  await holding;
  for (const each of others) assert.equal((await each).status, 200);
  await Promise.all(sent);
  assert.equal(responses.filter((status) => status === 200).length, 1 + waitingMax);
});
