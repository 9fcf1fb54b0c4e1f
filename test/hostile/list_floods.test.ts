/**
 * Lists that no index has in their order read all that their owner has. Those of a few users must leave the database's processors and
 * connections to others.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { waitingMax } from '../../src/collections/list_turns.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const scopes = ['read:posts', 'write:posts'];

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

test('attack: one app of a user has all lists that may wait, and another app’s comes before most', async () => {
  const account = await createTestAccount(server);
  const connectApp = async () => {
    const client = await createTestClient(server, { scopes });
    return requester(server, (await mintAccessToken(server, { account, client, scopes })).accessToken);
  };
  const [hostile, quiet] = [await connectApp(), await connectApp()];
  const path = '/articles?state=draft&sort=-published_at';
  const responses: string[] = [];
  const send = async (name: string, request: typeof quiet) => {
    const { status } = await request('GET', path);
    responses.push(`${name} ${status}`);
  };
  let sent: Promise<unknown> | undefined;
  await server.db.transaction().execute(async (tx) => {
    await sql`lock table articles in access exclusive mode`.execute(tx);
    const flood = Array.from({ length: 2 + waitingMax + 1 }, () => send('hostile', hostile));
    await until(
      async () => responses,
      ([first]) => first === 'hostile 503',
    );
    sent = Promise.all([...flood, send('quiet', quiet)]);
    // It waits as well.
    await until(waitingLists, (count) => count === 2);
    assert.equal((await quiet('GET', '/api')).status, 200);
  });
  await sent;
  assert.equal(responses.length, 2 + waitingMax + 2);
  assert.ok(responses.slice(0, 8).includes('quiet 200'), responses.join(', '));
});
