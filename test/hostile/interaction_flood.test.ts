/** A flood of authorization requests, which anyone can open, does not delay the end of an account's sessions. */

import '../support/database/plans.ts';
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
} from '../support/clients/oauth.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const { db } = server;

test('attack: many open authorization requests, while the sessions of an account end', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  await new TestBrowser(server.baseUrl).open(
    authorizationUrl(server, client, { scope: 'read:posts', ...pkce }),
  );
  await sql`
    insert into interactions (uid, payload, expires_at)
    select 'flood-' || n, payload, expires_at from interactions, generate_series(1, 20000) as n`.execute(db);
  await sql`
    insert into interactions (uid, payload, expires_at)
    select 'submitted', payload || jsonb_build_object('result', jsonb_build_object('login',
      jsonb_build_object('accountId', ${account.id}::text))), expires_at
    from interactions where uid = 'flood-1'`.execute(db);
  await sql`analyze interactions`.execute(db);
  for (const mode of planModes) {
    const statements = await captureStatements(mode, () =>
      db.transaction().execute((tx) => endSessions(tx, account.id)),
    );
    assert.ok(statements.length >= 7, `${statements.length} statements`);
    assert.ok(rowsOf(statements) < 100, `${mode}: reads ${rowsOf(statements)} rows`);
  }
  const { rows } = await sql`select from interactions where uid = 'submitted'`.execute(db);
  assert.equal(rows.length, 0);
});
