/** Attacks on the callbacks of agents: other grants, swapped secrets and URLs, challenges, floods, rebinding. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawGrant } from '../../src/grants/grant.ts';
import {
  afterEcho,
  createAgent,
  echo,
  startCallback,
  subscribeAgent,
  trySubscribe,
  verified,
} from '../support/clients/agent_callback.ts';
import { callMcp } from '../support/clients/mcp_client.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { agentSecret, otherAgentSecret } from '../support/webhooks/agents.ts';
import { createPublisher, fannedOut, publish, until } from '../support/webhooks/apps.ts';
import { accept, type Received } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

test('a secret that another grant gives for the same callback changes nothing of the first', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const { account, client } = agent;
  const intruder = await createAgent(server, { account, client });
  const { id } = await subscribeAgent(server, agent, callback.url);
  const other = await subscribeAgent(server, intruder, callback.url, {
    delivery: { secret: otherAgentSecret },
  });
  assert.notEqual(other.id, id);
  await publish(publisher, account, ['for both']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 2,
  );
  for (const received of callback.occurrences()) {
    const isFirst = received.headers['x-mcp-subscription-id'] === id;
    const [own, foreign] = isFirst ? [agentSecret, otherAgentSecret] : [otherAgentSecret, agentSecret];
    assert.ok(verified(received, own));
    assert.throws(() => verified(received, foreign));
  }
});

test('the same call with another URL is another subscription, which its server must want', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const victim = await startCallback(t, accept);
  await subscribeAgent(server, agent, callback.url);
  const { body } = await trySubscribe(server, agent, victim.url);
  assert.equal(body.error.message, 'CallbackEndpointError');
  await publish(publisher, agent.account, ['for the first']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 1,
  );
  assert.deepEqual([victim.received.length, victim.challenges().length], [1, 1]);
});

test('no other grant ends a subscription, though it knows its parameters', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const { account, client } = agent;
  const intruder = await createAgent(server, { account, client });
  await subscribeAgent(server, agent, callback.url);
  const delivery = { url: callback.url };
  const { body } = await callMcp(server, intruder.token, 'events/unsubscribe', { name: 'push', delivery });
  assert.ok(body.result);
  await publish(publisher, account, ['still here']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 1,
  );
});

test('a challenge is smaller than the request that caused it, and there is one', async (t) => {
  const [callback, agent] = [await startCallback(t, accept), await createAgent(server)];
  const { body } = await trySubscribe(server, agent, callback.url);
  assert.equal(body.error.data.reason, 'challenge_failed');
  const [challenge] = callback.received as [Received];
  const request = {
    name: 'push',
    cursor: null,
    delivery: { mode: 'webhook', url: callback.url, secret: agentSecret },
  };
  assert.equal(callback.received.length, 1);
  assert.ok(challenge.body.length < JSON.stringify(request).length);
  assert.equal(challenge.body.includes(agentSecret), false);
});

test('agents 41: many grants of one app cannot make the server ask one host for ever', async (t) => {
  const callback = await startCallback(t, accept);
  const { client } = await createAgent(server);
  // Made before, because an app may fail again as time goes on.
  const agents = await Promise.all(Array.from({ length: 24 }, () => createAgent(server, { client })));
  const limits: unknown[] = [];
  // Each grant may fail ten times a minute, an app 120 times at one host, of which its accounts leave some to others.
  for (const [grants, agent] of agents.entries()) {
    if (limits.length > 0) break;
    const answers = await Promise.all(
      Array.from({ length: 10 }, (_, index) =>
        trySubscribe(server, agent, `${callback.url}/${grants}/${index}`),
      ),
    );
    for (const { body } of answers) if (body.error.data.limit !== undefined) limits.push(body.error.data);
  }
  assert.ok(limits.length > 0);
  assert.ok(callback.received.length > 90);
  const asked = callback.received.length;
  const { body } = await trySubscribe(server, await createAgent(server), callback.url);
  assert.equal(body.error.data.reason, 'challenge_failed', 'another app may ask');
  assert.equal(callback.received.length, asked + 1);
});

test('a flood of concurrent subscriptions stays within the quota of the grant', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  await subscribeAgent(server, agent, callback.url);
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, index) =>
      trySubscribe(server, agent, callback.url, { arguments: { ref: `r${index}` } }),
    ),
  );
  const made = answers.filter(({ body }) => body.result !== undefined).length;
  const { rows } = await sql`
    select from agent_subscriptions where grant_id = ${agent.grantId} and ended_at is null`.execute(db);
  assert.deepEqual([made, rows.length], [19, 20]);
  assert.equal(callback.challenges().length, 1);
});

test('a grant that is withdrawn during a delivery gets what is in flight and the message, no more', async (t) => {
  const held: ServerResponse[] = [];
  const callback = await startCallback(
    t,
    afterEcho((_received, response) => void held.push(response)),
  );
  const agent = await createAgent(server);
  await subscribeAgent(server, agent, callback.url);
  await publish(
    publisher,
    agent.account,
    Array.from({ length: 40 }, () => randomUUID()),
  );
  await fannedOut(server);
  await until(
    async () => held.length,
    (count) => count > 0,
  );
  await withdrawGrant(db, agent.grantId, 'user');
  const [message] = await until(
    async () => callback.received.filter(({ body }) => JSON.parse(body).type === 'terminated'),
    (messages) => messages.length > 0,
  );
  assert.ok(verified(message as Received));
  const inFlight = callback.occurrences().length;
  assert.ok(inFlight < 40);
  for (const response of held) response.writeHead(204).end();
  // Another subscriber of the account shows that the engine has come past all of it.
  const witness = await startCallback(t);
  await subscribeAgent(server, await createAgent(server, { account: agent.account }), witness.url);
  await publish(publisher, agent.account, ['later']);
  await until(
    async () => witness.occurrences().length,
    (count) => count === 1,
  );
  assert.equal(callback.occurrences().length, inFlight);
  const ends = callback.received.filter(({ body }) => JSON.parse(body).type === 'terminated');
  assert.equal(ends.length, 1);
});

test('a callback whose name leads to a private address after the challenge gets nothing', async (t) => {
  let addresses = ['127.0.0.1'];
  const asked: string[] = [];
  const resolveHost = async (name: string) => {
    asked.push(name);
    return addresses;
  };
  const rebinding = await startTestServer(t, {}, 'dev', undefined, { resolveHost });
  const agent = await createAgent(rebinding);
  const callback = await startCallback(t);
  const url = `http://rebinding.example:${callback.port}/`;
  await subscribeAgent(rebinding, agent, url);
  assert.equal(callback.challenges().length, 1);
  addresses = ['10.0.0.1'];
  await publish(await createPublisher(rebinding), agent.account, ['inside']);
  const { deliveryStatus } = await until(
    () => subscribeAgent(rebinding, agent, url),
    ({ deliveryStatus: status }) => status?.lastError !== null,
  );
  assert.equal(deliveryStatus?.lastError, 'connection_refused', 'as if the port were closed');
  assert.deepEqual([callback.occurrences().length, asked.length >= 2], [0, true]);
});

test('an account whose callbacks fail keeps no other user of its app from their host', async (t) => {
  const callback = await startCallback(t, (received, response) => {
    if (received.path.startsWith('/echoes')) echo(received, response);
    else response.writeHead(404).end();
  });
  const client = await createTestClient(server);
  const first = await createAgent(server, { client });
  let failed = 0;
  for (let grant = 0; grant < 14; grant += 1) {
    const attacker = await createAgent(server, { client, account: first.account });
    for (let index = 0; index < 10; index += 1) {
      const { body } = await trySubscribe(server, attacker, `${callback.url}/${index}`);
      if (body.error.data.reason === 'challenge_failed') failed += 1;
    }
  }
  assert.ok(failed < 60, `${failed}`);
  const other = await createAgent(server, { client });
  await subscribeAgent(server, other, `${callback.url}/echoes`);
});
