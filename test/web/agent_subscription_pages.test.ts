/** What agents are told of, on the account page. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient, type TestAccount } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { addAgentSubscription } from '../support/webhooks/agent_subscriptions.ts';

const server = await startTestServer({ after });
const { db } = server;
const client = await createTestClient(server, { name: 'An assistant' });

async function subscribed(account: TestAccount, given = '{"amount":{"$gte":100}}') {
  const { grantId } = await mcpToken(server, { account, client, scopes: ['read:profile'] });
  const app = { grantId: grantId as string, clientId: client.id, account };
  const fields = { name: 'invoice.paid', scope: 'read:profile', arguments: given };
  const made = await addAgentSubscription(db, app, fields);
  assert.ok(made);
  return made.subscription;
}

async function open({ email, password }: TestAccount) {
  const browser = new TestBrowser(server.baseUrl);
  const form = await browser.open(`${server.baseUrl}/account`);
  return { browser, page: await browser.submit(form, { email, password }) };
}

async function stateOf(id: string) {
  const { rows } = await sql<{ state: string }>`select state from subscriptions where id = ${id}`.execute(db);
  return rows[0]?.state;
}

test('agents 80: the account page says what an app is told of and until when, and stops it', async () => {
  const account = await createTestAccount(server);
  const { id, expiresAt } = await subscribed(account);
  const { browser, page } = await open(account);
  assert.match(page.text, /It is told when:/);
  assert.match(page.text, /An invoice of the user was paid\./);
  assert.match(page.text, /Only if amount is at least <code>100<\/code>\./);
  const hour = expiresAt.toISOString().slice(11, 16);
  assert.match(
    page.text,
    new RegExp(`Until <time datetime="[^"]+">[A-Z][a-z]{2} \\d+, \\d{4}, ${hour} UTC</time>`),
  );
  // The form to stop comes first.
  const after = await browser.submit(page, {});
  assert.doesNotMatch(after.text, /It is told when:/);
  assert.match(after.text, /An assistant/);
  assert.equal(await stateOf(id), 'ended');
});

test('attack: neither a foreign subscription nor a guessed form token stops anything', async () => {
  const [mine, theirs] = [await createTestAccount(server), await createTestAccount(server)];
  const own = await subscribed(mine);
  const foreign = await subscribed(theirs);
  const { browser, page } = await open(mine);
  const forged = await browser.submit(page, { form_token: 'guessed' });
  assert.equal(forged.response.status, 403);
  for (const subscription of [foreign.id, newId(), 'no id', '']) await browser.submit(page, { subscription });
  assert.deepEqual([await stateOf(own.id), await stateOf(foreign.id)], ['active', 'active']);
});

test('arguments cannot break out of the page', async () => {
  const account = await createTestAccount(server);
  await subscribed(account, '{"id":"</code><script>alert(1)</script>"}');
  const { page } = await open(account);
  assert.ok(!page.text.includes('<script>alert'));
});

test('each form of an argument is described in words', async () => {
  const account = await createTestAccount(server);
  await subscribed(account, '{"amount":{"$gt":1,"$lte":9},"currency":["EUR","USD"],"id":["a"],"paid":true}');
  const { page } = await open(account);
  const text = page.text.replaceAll(/<\/?code>/g, '').replaceAll('&quot;', '"');
  assert.ok(
    text.includes(
      'Only if amount is more than 1 and amount is at most 9 and currency is one of "EUR", "USD" and id is "a" and paid is true.',
    ),
  );
});
