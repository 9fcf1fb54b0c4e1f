/** When a grant was last used, which users and applications see. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { createGrant } from '../../src/grants/grant.ts';
import { GrantUse } from '../../src/grants/grant_use.ts';
import { findConnectedApp, firstApps, listConnectedApps } from '../../src/oauth/connected_apps.ts';
import { authorize, createTestAccount, createTestClient, postForm } from '../support/clients/oauth.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

test('a token that is issued counts as a use of its grant', async (t) => {
  const server = await startTestServer(t);
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: ['read:posts'] });
  const { grantId, refreshToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const hoursSince = async () => {
    const { rows } = await sql<{ hours: number | null }>`
      select extract(epoch from now() - last_used_at)::float8 / 3600 as hours from grants where id = ${grantId}`.execute(
      server.db,
    );
    return rows[0]?.hours ?? null;
  };
  await until(hoursSince, (hours) => hours !== null);
  await sql`update grants set last_used_at = now() - interval '3 hours' where id = ${grantId}`.execute(
    server.db,
  );
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', client, form)).status, 200);
  await until(hoursSince, (hours) => (hours as number) < 1);
  const app = await findConnectedApp(server.db, account.id, grantId as string);
  assert.ok((app?.lastUsedAt.getTime() ?? 0) > Date.now() - 3_600_000);
});

test('a grant that a session has locked does not keep the use of others from being written', async (t) => {
  const { db } = await openTestDatabase(t, 3);
  const account = newId();
  await sql`insert into accounts (id, email, name) values (${account}, 'ann@example.com', '')`.execute(db);
  const [locked, other] = [
    await createGrant(db, { accountId: account, clientId: 'locked', scopes: [] }),
    await createGrant(db, { accountId: account, clientId: 'other', scopes: [] }),
  ];
  const use = new GrantUse(db, (error) => assert.fail(error as Error));
  await db.transaction().execute(async (tx) => {
    await sql`select from grants where id = ${locked} for update`.execute(tx);
    for (const id of [locked, other]) use.add(id);
    await use.stop();
  });
  const { rows } = await sql<{ id: string }>`select id from grants where last_used_at is not null`.execute(
    db,
  );
  assert.deepEqual(rows, [{ id: other }]);
});

test('attack: the list of connected apps does not read the refresh tokens of a grant', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const account = newId();
  await sql`insert into accounts (id, email, name) values (${account}, 'ann@example.com', '')`.execute(db);
  const grant = await createGrant(db, { accountId: account, clientId: 'app', scopes: ['read:posts'] });
  await sql`
    insert into refresh_tokens (digest, grant_id, payload, expires_at, consumed_at)
    select sha256(i::text::bytea), ${grant}::uuid, '{}', now() + interval '1 day', now()
    from generate_series(1, 5000) i`.execute(db);
  await sql`analyze`.execute(db);
  for (const mode of planModes) {
    const statements = await captureStatements(mode, async () => {
      const { apps } = await listConnectedApps(db, account, firstApps, 25);
      assert.equal(apps.length, 1);
    });
    assert.ok(rowsOf(statements) < 100, `${mode}: ${rowsOf(statements)} rows`);
  }
});
