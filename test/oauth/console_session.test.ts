/** The console's grant continues when its page is reloaded in the same browser by the same user. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createTestAccount, postForm, type TestAccount } from '../support/clients/oauth.ts';
import { consoleClientOf, signInToConsole } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });

async function grantsOf({ id }: TestAccount) {
  const { rows } = await sql<{ id: string; scopes: string[]; withdrawn_at: Date | null }>`
    select id, scopes, withdrawn_at from grants
    where account_id = ${id} and client_id = ${consoleClientId} order by created_at`.execute(server.db);
  return rows;
}

async function auditOf({ id }: TestAccount): Promise<string[]> {
  const { rows } = await sql<{ kind: string }>`
    select kind from audit_entries where account_id = ${id} and client_id = ${consoleClientId}
    order by at`.execute(server.db);
  return rows.map(({ kind }) => kind);
}

function refresh(tokens: Record<string, unknown>) {
  const form = { grant_type: 'refresh_token', refresh_token: String(tokens.refresh_token) };
  return postForm(server, '/oauth/token', consoleClientOf(server), form);
}

test('reloading the console keeps its grant and adds nothing to the audit log', async () => {
  const account = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const loads = [];
  for (let load = 0; load < 3; load += 1) {
    loads.push((await signInToConsole(server, account, {}, browser)).tokens);
  }
  assert.equal((await grantsOf(account)).length, 1);
  assert.deepEqual(await auditOf(account), ['grant.created']);
  // Each load has its own tokens and does not affect those of another tab.
  for (const tokens of loads) assert.equal((await refresh(tokens)).status, 200);
});

test('the console has one grant per browser, and signing out in one browser leaves the others', async () => {
  const account = await createTestAccount(server);
  const { tokens: here } = await signInToConsole(server, account);
  const { tokens: there } = await signInToConsole(server, account);
  assert.equal((await grantsOf(account)).length, 2);
  await postForm(server, '/oauth/revoke', consoleClientOf(server), { token: String(there.refresh_token) });
  assert.equal((await refresh(there)).status, 400);
  assert.equal((await refresh(here)).status, 200);
});

test('the console never continues with a withdrawn grant', async () => {
  const account = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const { tokens } = await signInToConsole(server, account, {}, browser);
  await sql`update grants set withdrawn_at = now() where account_id = ${account.id}`.execute(server.db);
  const again = await signInToConsole(server, account, {}, browser);
  assert.equal((await refresh(tokens)).status, 400);
  assert.equal((await refresh(again.tokens)).status, 200);
  assert.deepEqual(
    (await grantsOf(account)).map(({ withdrawn_at: at }) => at === null),
    [false, true],
  );
});

test('the console never continues with another user’s grant when a second user signs in to the browser', async () => {
  const [first, second] = [await createTestAccount(server), await createTestAccount(server)];
  const browser = new TestBrowser(server.baseUrl);
  await signInToConsole(server, first, {}, browser);
  await signInToConsole(server, second, { prompt: 'login' }, browser);
  assert.deepEqual([(await grantsOf(first)).length, (await grantsOf(second)).length], [1, 1]);
});

test('the console gets a new grant when the scopes differ, and a former administrator loses the admin scopes', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const browser = new TestBrowser(server.baseUrl);
  const scope = 'openid read:apps admin';
  await signInToConsole(server, account, { scope }, browser);
  await sql`update accounts set is_admin = false where id = ${account.id}`.execute(server.db);
  const { tokens } = await signInToConsole(server, account, { scope }, browser);
  assert.equal(tokens.scope, 'openid read:apps');
  await signInToConsole(server, account, { scope: 'openid' }, browser);
  assert.deepEqual(
    (await grantsOf(account)).map(({ scopes }) => scopes.join(' ')),
    ['admin openid read:apps', 'openid read:apps', 'openid'],
  );
});
