/**
 * The end of an app with very many grants locks all of them until it commits. Whoever withdraws some of these grants, or signs out of the
 * app, from any number of networks, leaves connections to reads, sign-in and tokens.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type RawBuilder, sql } from 'kysely';
import { formsOf, type TestBrowser } from '../support/browser/browser.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  authorize,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const limits = { NUNCIO_CONCURRENT_REQUESTS: '64', NUNCIO_TRUST_PROXY: '127.0.0.1' };
const server = await startTestServer({ after }, limits);
const { db } = server;
const victim = await createApiUser(server);
const victimApp = await createTestClient(server);
/** As many as the connections for requests, and some. */
const count = 16;
const network = (n: number) => ({ 'x-forwarded-for': `203.0.113.${n + 1}` });
const networkOfSite = (n: number) => ({ 'x-forwarded-for': `2001:db8:1:${n.toString(16)}::1` });

async function waitingForLocks(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
  return rows[0]?.count ?? 0;
}

/** Waits until a number of requests wait for locks that stays the same for a while. @returns it */
async function stableWaits(least: number): Promise<number> {
  const counts: number[] = [];
  await until(
    async () => counts.push(await waitingForLocks()),
    () => counts.length > 5 && (counts.at(-1) ?? 0) >= least && new Set(counts.slice(-5)).size === 1,
  );
  return counts.at(-1) ?? 0;
}

/** Sends requests while another transaction has the lock, and checks that others are served until all of these requests have ended. */
async function flood(lock: RawBuilder<unknown>, send: (n: number) => Promise<number>): Promise<number[]> {
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  const { promise: locked, resolve: begin, reject } = Promise.withResolvers<void>();
  const holding = db
    .transaction()
    .execute(async (tx) => {
      await lock.execute(tx);
      begin();
      await ended;
    })
    .catch(reject);
  await locked;
  try {
    const sent = Promise.all(Array.from({ length: count }, (_none, n) => send(n)));
    await stableWaits(8);
    assert.equal((await victim.request('GET', '/articles?limit=1')).status, 200);
    assert.match(await clientToken(server, victimApp, ['read:posts']), /./);
    // Each gives up, although the lock is still held.
    return await sent;
  } finally {
    end();
    await holding;
  }
}

test('refresh tokens that are revoked, or used again after their successors', async () => {
  const account = await createTestAccount(server);
  // Without deliveries, so that there is nothing to put on hold first.
  const client = await createTestClient(server, {
    scopes: ['read:posts'],
    grantTypes: ['authorization_code', 'refresh_token'],
  });
  const tokens: string[] = [];
  let browser: TestBrowser | undefined;
  for (let n = 0; n < count; n += 1) {
    const authorized = await authorize(server, {
      account,
      client,
      scopes: ['read:posts'],
      ...(browser && { browser }),
    });
    browser = authorized.browser;
    tokens.push(authorized.refreshToken);
  }
  const lock = sql`select from grants where client_id = ${client.id} for update`;
  const statuses = await flood(lock, async (n) => {
    const { status } = await postForm(
      server,
      '/oauth/revoke',
      client,
      { token: tokens[n] as string },
      network(n),
    );
    return status;
  });
  assert.deepEqual([...new Set(statuses)], [503]);
  await sql`
    update refresh_tokens set consumed_at = now() - interval '1 hour'
    where grant_id in (select id from grants where client_id = ${client.id})`.execute(db);
  const form = (n: number) => ({ grant_type: 'refresh_token', refresh_token: tokens[n] as string });
  const replays = await flood(
    lock,
    async (n) => (await postForm(server, '/oauth/token', client, form(n), network(n))).status,
  );
  assert.deepEqual([...new Set(replays)], [503]);
});

test('users who sign out of the app', async () => {
  const metadata = { backchannel_logout_uri: 'https://app.example/logout' };
  const client = await createTestClient(server, { metadata });
  const account = await createTestAccount(server);
  const pages: { browser: TestBrowser; action: string; fields: Record<string, string> }[] = [];
  for (let n = 0; n < count; n += 1) {
    const { browser } = await authorize(server, { account, client, scopes: ['read:posts'] });
    const page = await browser.open(`${server.baseUrl}/oauth/logout`);
    const [form] = formsOf(page.text);
    pages.push({ browser, action: form?.action ?? '', fields: { ...form?.fields, logout: 'yes' } });
  }
  const statuses = await flood(sql`select from clients where id = ${client.id} for update`, async (n) => {
    const { browser, action, fields } = pages[n] as (typeof pages)[number];
    const body = new URLSearchParams(fields);
    return (await browser.request(action, { method: 'POST', body, headers: network(n) })).status;
  });
  assert.deepEqual([...new Set(statuses)], [303]);
});

test('a user whose sessions are being deleted, who sends their browser from many networks of one site', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { browser } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const lock = sql`select from login_sessions where account_id = ${account.id} for update`;
  const ended = Promise.withResolvers<void>();
  const locked = Promise.withResolvers<void>();
  const holding = db.transaction().execute(async (tx) => {
    await lock.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const url = authorizationUrl(server, client, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
  });
  const sent = Promise.all(
    Array.from({ length: count }, (_none, n) => browser.request(url, { headers: networkOfSite(n) })),
  );
  try {
    assert.ok((await stableWaits(1)) <= 5);
    assert.equal((await victim.request('GET', '/articles?limit=1')).status, 200);
  } finally {
    ended.resolve();
    await holding;
  }
  assert.ok((await sent).some(({ status }) => status === 302));
});

test('a user whose account is being deleted, who sends their browsers from many networks', async () => {
  const account = await createTestAccount(server);
  const { id } = account;
  const user = await createApiUser(server, ['read:posts', 'write:posts'], account);
  const { body } = await user.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  const client = await createTestClient(server);
  const { browser } = await authorize(server, { account, client, scopes: ['read:posts'] });
  await sql`update accounts set external_id = 'deleted' where id = ${id}`.execute(db);
  const application = await createTestClient(server, { scopes: ['write:accounts'] });
  const authorization = `Bearer ${await clientToken(server, application, ['write:accounts'])}`;
  const ended = Promise.withResolvers<void>();
  const locked = Promise.withResolvers<void>();
  // An account with very much takes as long to delete.
  const holding = db.transaction().execute(async (tx) => {
    await sql`select from articles where id = ${body.id} for update`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const deleting = fetch(`${server.baseUrl}/accounts/${id}`, {
    method: 'DELETE',
    headers: { authorization },
  });
  try {
    await stableWaits(1);
    const url = authorizationUrl(server, client, {
      code_challenge: createPkce().challenge,
      code_challenge_method: 'S256',
      scope: 'read:posts',
    });
    const responses = await Promise.all(
      Array.from({ length: count }, (_none, n) => browser.request(url, { headers: network(n) })),
    );
    assert.deepEqual([...new Set(responses.map(({ status }) => status))], [303]);
  } finally {
    ended.resolve();
    await holding;
  }
  assert.equal((await deleting).status, 204);
});
