/**
 * Few expensive reads of all users are done at once. One that has its turn must not wait for a connection behind other requests of its user,
 * which may be many, and slow: everybody would wait for these.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { requester } from '../support/clients/api_client.ts';
import { callTool, mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const platform = createPlatform({ ...shipped, mcp: { enabled: true, management: true } });
const limits = { NUNCIO_CONCURRENT_REQUESTS: '64' };
const server = await startTestServer({ after }, limits, 'dev', platform);
const { db } = server;
/** Of 11 connections, an app of a user has so many if it has all that it may. */
const shareOfApp = 3;
const scopes = ['read:posts', 'read:webhooks', 'read:apps'];

async function createUser() {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes });
  const { accessToken } = await mintAccessToken(server, { account, client, scopes });
  const agent = await mcpToken(server, { account, client, scopes });
  return { account, request: requester(server, accessToken), agentToken: agent.accessToken };
}

async function countWaiting(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
  return rows[0]?.count ?? 0;
}

/** Calls a function while requests of a user for the path wait for the lock of a table, with all connections that the user may have, and behind these. */
async function whileReadsWait(
  { request }: Awaited<ReturnType<typeof createUser>>,
  path: string,
  table: string,
  work: () => Promise<void>,
): Promise<void> {
  const reads: Promise<{ status: number }>[] = [];
  try {
    await db.transaction().execute(async (tx) => {
      await sql`lock table ${sql.table(table)} in access exclusive mode`.execute(tx);
      for (let count = 0; count < 8; count += 1) reads.push(request('GET', path));
      await until(countWaiting, (count) => count >= shareOfApp);
      await work();
    });
  } finally {
    await Promise.allSettled(reads);
  }
}

test('attack: lists without an index get connections while other requests of their user wait', async () => {
  const [hostile, stranger] = [await createUser(), await createUser()];
  const path = '/articles?state=draft&sort=-published_at';
  await whileReadsWait(hostile, '/subscriptions', 'subscriptions', async () => {
    const lists = [hostile, hostile, hostile, stranger].map(({ request }) => request('GET', path));
    for (const { status } of await Promise.all(lists)) assert.equal(status, 200);
  });
});

test('attack: tools of agents get connections while other requests of their user wait', async () => {
  const [hostile, stranger] = [await createUser(), await createUser()];
  await whileReadsWait(hostile, '/articles', 'articles', async () => {
    const agents = [hostile, hostile, hostile, stranger];
    const calls = agents.map(({ agentToken }) => callTool(server, agentToken, 'apps_list'));
    for (const result of await Promise.all(calls))
      assert.notEqual(result.isError, true, JSON.stringify(result));
  });
});
