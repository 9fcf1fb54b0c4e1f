/**
 * Other ways than the API of articles to wait for a locked row: the endpoint for agents, and apps. Their floods leave others
 * connections, and their waits end.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type RawBuilder, sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { callMcp, mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const platform = createPlatform({ ...shipped, mcp: { enabled: true } });
// The limits of a server that is installed.
const limits = { NUNCIO_CONCURRENT_REQUESTS: '64', NUNCIO_RATE_LIMIT: '600' };
const server = await startTestServer({ after }, limits, 'dev', platform);
const victim = await createApiUser(server);
const scopes = ['read:posts', 'write:posts'];

/** Runs the work while another transaction has the lock. */
async function whileLocked(lock: RawBuilder<unknown>, work: () => Promise<void>): Promise<void> {
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = server.db
    .transaction()
    .execute(async (tx) => {
      await lock.execute(tx);
      locked.resolve();
      await ended.promise;
    })
    .catch((error: Error) => locked.reject(error));
  await locked.promise;
  try {
    await work();
  } finally {
    ended.resolve();
    await holding;
  }
}

/** What waits for locks. */
async function waitingForLocks(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(server.db);
  return rows[0]?.count ?? 0;
}

/** Sends 100 requests that wait for the lock. Others are served. @returns the responses */
async function flood<Response>(
  lock: RawBuilder<unknown>,
  send: () => Promise<Response>,
): Promise<Response[]> {
  const sent: Promise<Response>[] = [];
  await whileLocked(lock, async () => {
    for (let count = 0; count < 100; count += 1) sent.push(send());
    const most: number[] = [];
    await until(
      async () => most.push(await waitingForLocks()),
      () => most.length > 3 && Math.max(...most) >= 3 && most.at(-1) === most.at(-2),
    );
    assert.equal((await victim.request('GET', '/articles')).status, 200);
    assert.ok(Math.max(...most) <= 5, most.join());
  });
  return Promise.all(sent);
}

test('calls of tools that wait for one article', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes });
  const { accessToken } = await mcpToken(server, { account, client, scopes });
  const author = await createApiUser(server, scopes, account);
  const { body } = await author.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  const call = () =>
    callMcp(server, accessToken, 'tools/call', {
      name: 'article_update',
      arguments: { id: body.id, title: 'c' },
    });
  const lock = sql`select from articles where id = ${body.id} for update`;
  const responses = await flood(lock, call);
  assert.ok(responses.some(({ status, body: { result } }) => status === 200 && result?.isError !== true));
  await whileLocked(lock, async () => {
    const { result } = (await call()).body;
    assert.equal(result.isError, true);
    assert.match(result.content[0].text, /Another request is changing the same/);
  });
});

test('changes of one app', async () => {
  const owner = await createConsoleUser(server);
  const made = await owner.request('POST', '/apps', {
    json: { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] },
  });
  const path = `/apps/${made.body.client_id}`;
  const change = () => owner.request('PATCH', path, { json: { client_name: 'Other' } });
  const lock = sql`select from clients where id = ${made.body.client_id} for update`;
  await flood(lock, change);
  await whileLocked(lock, async () => {
    const { status, body } = await change();
    assert.deepEqual([status, body.code], [503, 'busy']);
  });
});

test('an agent reads while articles of thirty users are locked that they change', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes });
  const { accessToken } = await mcpToken(server, { account, client, scopes });
  const changes: (() => Promise<unknown>)[] = [];
  for (let count = 0; count < 30; count += 1) {
    const author = await createApiUser(server, scopes);
    const { body } = await author.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
    const headers = { 'content-type': 'application/merge-patch+json' };
    changes.push(() => author.request('PATCH', `/articles/${body.id}`, { raw: '{"title":"c"}', headers }));
  }
  const sent: Promise<unknown>[] = [];
  await whileLocked(sql`select from articles for update`, async () => {
    for (const change of changes) sent.push(change());
    const counts: number[] = [];
    await until(
      async () => counts.push(await waitingForLocks()),
      () => counts.length > 5 && (counts.at(-1) ?? 0) >= 8 && new Set(counts.slice(-5)).size === 1,
    );
    const { body } = await callMcp(server, accessToken, 'tools/call', {
      name: 'articles_list',
      arguments: {},
    });
    assert.notEqual(body.result.isError, true, JSON.stringify(body));
  });
  await Promise.all(sent);
});
