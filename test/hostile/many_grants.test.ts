/**
 * Each authorization writes a grant, so an app or a page that sends the browser there again and again writes very many. The grants
 * of a user and an app have a limit, and a consent to many of them keeps no connections from others.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { inTransaction } from '../../src/database/database.ts';
import { grantsMax, makeRoomForGrant } from '../../src/grants/grant_limit.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  obtainCode,
  obtainCodeForm,
  postForm,
} from '../support/clients/oauth.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const victim = await createApiUser(server);

test('consents of a user with thousands of grants of one app leave the others connections', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await authorize(server, { account, client, scopes: ['read:posts'] });
  // As many as a browser gets in a quarter of an hour, at 600 authorizations a minute.
  await sql`
    insert into grants (id, account_id, client_id, scopes, details)
    select gen_random_uuid(), account_id, client_id, scopes, details
    from grants, generate_series(1, 10000) where account_id = ${account.id}`.execute(server.db);
  const consents = Array.from({ length: 16 }, () =>
    authorize(server, { account, client, scopes: ['read:posts', 'write:posts'] }).catch(() => {}),
  );
  const all = Promise.allSettled(consents);
  let isOver = false;
  void all.then(() => {
    isOver = true;
  });
  const statuses = new Set<number>();
  while (!isOver) statuses.add((await victim.request('GET', '/articles?limit=1')).status);
  assert.deepEqual([...statuses], [200]);
});

interface Pair {
  account: { id: string };
  client: { id: string };
}

/** Adds copies of the user's grants that are older than they. */
async function addOlder({ account, client }: Pair, count: number): Promise<void> {
  await sql`
    insert into grants (id, account_id, client_id, scopes, details, created_at)
    select gen_random_uuid(), account_id, client_id, scopes, details, created_at - n * interval '1 minute'
    from (select * from grants where account_id = ${account.id} and client_id = ${client.id} limit 1) g,
      generate_series(1, ${count}::int) n`.execute(server.db);
}

async function liveGrants({ account, client }: Pair): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from grants
    where account_id = ${account.id} and client_id = ${client.id} and withdrawn_at is null`.execute(
    server.db,
  );
  return rows.map(({ id }) => id);
}

async function newPair() {
  return { account: await createTestAccount(server), client: await createTestClient(server) };
}

test('a user has a limited number of grants of an app, however many authorizations run at once', async () => {
  const pair = await newPair();
  const { browser } = await authorize(server, { ...pair, scopes: ['read:posts'] });
  await addOlder(pair, grantsMax - 5);
  const forms: Awaited<ReturnType<typeof obtainCodeForm>>[] = [];
  // All of them wait for one lock. On a slow machine, the last of many would wait for more than the longest time.
  while (forms.length < 40) {
    const atOnce = Array.from({ length: 8 }, () =>
      obtainCodeForm(server, { ...pair, scopes: ['read:posts'], browser }),
    );
    forms.push(...(await Promise.all(atOnce)));
  }
  assert.ok((await liveGrants(pair)).length <= grantsMax);
  // The oldest ones ended, so each code can be exchanged.
  for (const { form } of forms)
    assert.equal((await postForm(server, '/oauth/token', pair.client, form)).status, 200);
});

test('grants end that nobody uses, and their access tokens with them', async () => {
  const pair = await newPair();
  const device = await authorize(server, { ...pair, scopes: ['read:posts'] });
  const idle = await authorize(server, { ...pair, scopes: ['read:posts'] });
  const listener = await authorize(server, { ...pair, scopes: ['read:posts', 'write:webhooks'] });
  const subscription = await requester(server, listener.accessToken)('POST', '/subscriptions', {
    json: { url: 'http://127.0.0.1:20001/', kinds: ['article.created'] },
  });
  assert.equal(subscription.status, 201, subscription.text);
  await sql`delete from refresh_tokens where grant_id = any(${[idle.grantId, listener.grantId]}::uuid[])`.execute(
    server.db,
  );
  const ids = [device.grantId, idle.grantId, listener.grantId];
  // When they were used is written later.
  await until(
    () => sql`select from grants where id = any(${ids}::uuid[]) and last_used_at is null`.execute(server.db),
    ({ rows }) => rows.length === 0,
  );
  // All three are older than those whose codes were never exchanged.
  await addOlder(pair, grantsMax - 3);
  await sql`
    update grants set created_at = created_at - interval '1 day', last_used_at = last_used_at - interval '1 day'
    where id = any(${ids}::uuid[])`.execute(server.db);
  const { browser } = device;
  const { grantId } = await authorize(server, { ...pair, scopes: ['read:posts'], browser });
  const live = await liveGrants(pair);
  assert.ok(live.length < grantsMax);
  for (const id of [device.grantId, listener.grantId, grantId]) assert.ok(live.includes(id));
  const form = { grant_type: 'refresh_token', refresh_token: device.refreshToken };
  assert.equal((await postForm(server, '/oauth/token', pair.client, form)).status, 200);
  const { rows } = await sql<{ withdrawn_reason: string }>`
    select withdrawn_reason from grants where id = ${idle.grantId}`.execute(server.db);
  assert.deepEqual(rows, [{ withdrawn_reason: 'grant_limit' }]);
  // The time within which every node refuses a withdrawn token.
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  assert.equal((await requester(server, idle.accessToken)('GET', '/articles')).status, 401);
  const { rows: logged } = await sql<{ details: unknown }>`
    select details from audit_entries where kind = 'grant.withdrawn' and grant_id = ${idle.grantId}`.execute(
    server.db,
  );
  assert.deepEqual(logged, [{ details: { reason: 'grant_limit' } }]);
});

test('an app that has refreshed very often is not searched for the grants to end', async () => {
  const pair = await newPair();
  const { grantId, refreshToken } = await authorize(server, { ...pair, scopes: ['read:posts'] });
  await sql`update grants set last_used_at = now() - interval '1 minute' where id = ${grantId}`.execute(
    server.db,
  );
  await addOlder(pair, grantsMax - 1);
  await sql`
    insert into refresh_tokens (digest, grant_id, payload, expires_at, consumed_at)
    select sha256(n::text::bytea), ${grantId}, '{}', now() + interval '1 day', now()
    from generate_series(1, 20000) n`.execute(server.db);
  await sql`analyze refresh_tokens, grants`.execute(server.db);
  for (const mode of planModes) {
    const statements = await captureStatements(mode, () =>
      inTransaction(server.db, (tx) =>
        makeRoomForGrant(tx, { accountId: pair.account.id, clientId: pair.client.id }),
      ),
    );
    assert.ok(statements.length > 1);
    assert.ok(rowsOf(statements) < 2_000, `${mode}: ${rowsOf(statements)} rows`);
    await addOlder(pair, 10);
  }
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', pair.client, form)).status, 200);
});

test('a page that starts very many authorizations ends at most a few devices', async () => {
  const pair = await newPair();
  const { browser } = await authorize(server, { ...pair, scopes: ['read:posts'] });
  await addOlder(pair, grantsMax - 1);
  // Every one is used.
  await sql`
    insert into refresh_tokens (digest, grant_id, payload, created_at, expires_at)
    select sha256(id::text::bytea), id, '{}', created_at, now() + interval '1 day' from grants
    where account_id = ${pair.account.id}
      and not exists (select from refresh_tokens t where t.grant_id = grants.id)`.execute(server.db);
  const devices = await liveGrants(pair);
  // No code of these is exchanged.
  for (let count = 0; count < 50; count += 1)
    await obtainCode(server, { ...pair, scopes: ['read:posts'], browser });
  const live = new Set(await liveGrants(pair));
  assert.ok(live.size <= grantsMax);
  const ended = devices.filter((id) => !live.has(id)).length;
  assert.ok(ended <= 20, `${ended} devices were signed out`);
});

test('a consent to very many grants of an earlier version leaves few of them, with what it confirms', async () => {
  const pair = await newPair();
  await authorize(server, { ...pair, scopes: ['read:posts'] });
  await addOlder(pair, 10_000);
  await authorize(server, { ...pair, scopes: ['read:posts', 'write:posts'] });
  assert.ok((await liveGrants(pair)).length <= grantsMax);
  const { rows } = await sql<{ scopes: string[] }>`
    select distinct scopes from grants
    where account_id = ${pair.account.id} and withdrawn_at is null`.execute(server.db);
  assert.deepEqual(rows, [{ scopes: ['read:posts', 'write:posts'] }]);
});
