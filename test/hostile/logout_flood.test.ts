/** Users sign out again and again: the notices of other users do not wait for those. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { addLogoutNotice } from '../../src/oauth/logout/notice.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);

async function createReceiver(path: string) {
  const metadata = { backchannel_logout_uri: site.url(path), backchannel_logout_session_required: false };
  return createTestClient(server, { metadata });
}

async function waiting(accountId: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from logout_notices
    where account_id = ${accountId} and attempts = 0 and delivered_at is null`.execute(server.db);
  return rows[0]?.count ?? 0;
}

test('a user’s many notices to an app take turns with those of its other users', async () => {
  site.serve('/slow', (_request, response) => void setTimeout(() => response.writeHead(204).end(), 20));
  const hostile = await createTestAccount(server);
  const other = await createTestAccount(server);
  const app = await createReceiver('/slow');
  for (let count = 0; count < 200; count += 1) {
    await addLogoutNotice(server.db, { clientId: app.id, accountId: hostile.id, sessionId: null });
  }
  const before = await waiting(hostile.id);
  await addLogoutNotice(server.db, { clientId: app.id, accountId: other.id, sessionId: null });
  const left = await until(
    async () => ({ others: await waiting(other.id), hostile: await waiting(hostile.id) }),
    ({ others }) => others === 0,
  );
  assert.ok(before - left.hostile < 40, `${before - left.hostile} of ${before} were sent before`);
});

test('a user’s notices to many apps that hang leave places for the notices of others', async () => {
  site.serve('/hangs', () => {});
  site.serve('/responds', { status: 204, body: '' });
  const hostile = await createTestAccount(server);
  const other = await createTestAccount(server);
  const apps = await Promise.all(Array.from({ length: 30 }, () => createReceiver('/hangs')));
  const app = await createReceiver('/responds');
  for (let count = 0; count < 20; count += 1) {
    for (const { id } of apps) {
      await addLogoutNotice(server.db, { clientId: id, accountId: hostile.id, sessionId: null });
    }
  }
  await addLogoutNotice(server.db, { clientId: app.id, accountId: other.id, sessionId: null });
  // All hostile notices are older than the other one. The server looks for due notices by itself.
  await until(
    async () => ({ others: await waiting(other.id), hostile: await waiting(hostile.id) }),
    ({ others, hostile }) => others === 0 || hostile < 500,
  );
  assert.equal(await waiting(other.id), 0);
});

test('as many users as there are places, with thousands of older notices, take turns with others', async () => {
  site.serve('/late', (_request, response) => void setTimeout(() => response.writeHead(204).end(), 300));
  const hostile = await Promise.all(Array.from({ length: 20 }, () => createTestAccount(server)));
  const other = await createTestAccount(server);
  const apps = await Promise.all(Array.from({ length: 25 }, () => createReceiver('/late')));
  const app = await createReceiver('/responds');
  await sql`
    insert into logout_notices (id, client_id, account_id)
    select gen_random_uuid(), client, account
    from unnest(${apps.map(({ id }) => id)}::text[]) client, unnest(${hostile.map(({ id }) => id)}::uuid[]) account,
      generate_series(1, 6)`.execute(server.db);
  const left = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int from logout_notices
      where account_id = any(${hostile.map(({ id }) => id)}::uuid[]) and attempts = 0`.execute(server.db);
    return rows[0]?.count ?? 0;
  };
  const all = await left();
  await until(left, (count) => count < all);
  await addLogoutNotice(server.db, { clientId: app.id, accountId: other.id, sessionId: null });
  const before = await left();
  const sent = await until(
    async () => ({ others: await waiting(other.id), hostile: before - (await left()) }),
    ({ others, hostile: count }) => others === 0 || count > 500,
  );
  assert.ok(sent.hostile < 200, `${sent.hostile} of ${before} were sent before`);
});
