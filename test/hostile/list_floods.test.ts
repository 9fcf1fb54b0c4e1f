/**
 * Lists that no index has in their order read all that their owner has. Those of a few users must leave the database's processors and
 * connections to others.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { waitingMax } from '../../src/collections/list_turns.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

/** Lists that have read the table's lock and wait for it. */
async function waitingLists(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%_fitting%'`.execute(
    server.db,
  );
  return rows[0]?.count ?? 0;
}

test('two lists without an index are read at once, and a user has few that wait', async () => {
  const [one, other, stranger] = await Promise.all([
    createApiUser(server),
    createApiUser(server),
    createApiUser(server),
  ]);
  const { status, body: article } = await stranger.request('POST', '/articles', { json: { title: 'a' } });
  assert.equal(status, 201);
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = server.db.transaction().execute(async (tx) => {
    await sql`lock table articles in access exclusive mode`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const path = '/articles?state=draft&sort=-published_at';
  const sent = Array.from({ length: 2 + waitingMax + 3 }, () => one.request('GET', path));
  const responses: number[] = [];
  for (const each of sent) void each.then((response) => responses.push(response.status));
  // What is above the limit is refused at once.
  await until(
    async () => responses.length,
    (count) => count === 3,
  );
  assert.deepEqual(responses, [503, 503, 503]);
  const others = Array.from({ length: 4 }, () => other.request('GET', path));
  await until(waitingLists, (count) => count === 2);
  // A list with an index needs no turn.
  const indexed = stranger.request('GET', '/articles?state=draft');
  await until(waitingLists, (count) => count === 3);
  ended.resolve();
  await holding;
  assert.deepEqual(
    (await indexed).body.items.map(({ id }: { id: string }) => id),
    [article.id],
  );
  for (const each of others) assert.equal((await each).status, 200);
  await Promise.all(sent);
  assert.equal(responses.filter((each) => each === 200).length, 2 + waitingMax);
});
