/** `events/unsubscribe`. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { callMcp, mcpToken } from '../../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { addAgentSubscription } from '../../support/webhooks/agent_subscriptions.ts';

const server = await startTestServer({ after });
const { db } = server;
const client = await createTestClient(server);
const account = await createTestAccount(server);
const url = 'https://hooks.example.com/cb';

async function createAgent() {
  const { accessToken: token, grantId } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  return { token, account, clientId: client.id, grantId: grantId as string };
}

async function endOf(id: string | undefined) {
  const { rows } = await sql<{ reason: string | null; is_untold: boolean; state: string }>`
    select a.end_reason as reason, a.last_secret is not null as is_untold, s.state
    from agent_subscriptions a join subscriptions s on s.id = a.id where a.id = ${id}`.execute(db);
  return rows[0];
}

test('agents 57: unsubscribing ends the subscription of grant, URL, kind and arguments, silently', async () => {
  const agent = await createAgent();
  const made = await addAgentSubscription(db, agent, { arguments: '{"ref":"a"}' });
  const unsubscribe = async (params: object, token = agent.token) =>
    (await callMcp(server, token, 'events/unsubscribe', { name: 'push', delivery: { url }, ...params })).body;
  const other = await createAgent();
  // Each misses one part of the identity.
  await unsubscribe({ arguments: { ref: 'a' } }, other.token);
  await unsubscribe({ arguments: { ref: 'b' } });
  await unsubscribe({});
  await unsubscribe({ arguments: { ref: 'a' }, name: 'article.published' });
  await unsubscribe({ arguments: { ref: 'a' }, delivery: { url: `${url}/other` } });
  await unsubscribe({ id: made?.subscription.key });
  assert.equal((await endOf(made?.subscription.id))?.state, 'active');
  // The URL is compared in its normal form.
  const delivery = { url: 'HTTPS://hooks.EXAMPLE.com:443/cb' };
  const { result } = await unsubscribe({ arguments: { ref: 'a' }, delivery });
  assert.deepEqual(Object.keys(result).sort(), ['_meta', 'resultType']);
  const ended = { reason: 'unsubscribed', is_untold: false, state: 'ended' };
  assert.deepEqual(await endOf(made?.subscription.id), ended);
  const again = await unsubscribe({ arguments: { ref: 'a' }, delivery });
  assert.equal(again.result.resultType, 'complete');
});
