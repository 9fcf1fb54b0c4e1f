/** A hostile app opens thousands of streams of events and leaves them open: it gets its share of a node, and others get theirs. */

import assert from 'node:assert/strict';
import { Agent, get, type IncomingMessage } from 'node:http';
import { after, test } from 'node:test';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { runs } from '../support/runner/tier.ts';
import { startTestServer } from '../support/servers/server.ts';
import { appScopes, createPublisher, publish, subscribe, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

async function createStream(client: Awaited<ReturnType<typeof createTestClient>>) {
  const account = await createTestAccount(server);
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const { id } = await subscribe({ request: requester(server, accessToken) }, { url: null });
  return { account, accessToken, path: `/subscriptions/${id}/events` };
}

/** Opens a stream and leaves it open if it may. */
function open(agent: Agent, { accessToken, path }: { accessToken: string; path: string }) {
  const headers = { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream' };
  return new Promise<IncomingMessage>((resolve, reject) => {
    get(server.baseUrl + path, { agent, headers }, (response) => {
      if (response.statusCode !== 200) response.resume();
      resolve(response);
    }).on('error', reject);
  });
}

test('thousands of attempts at idle streams take half of a node’s streams, and others get events', async (t) => {
  const agent = new Agent({ keepAlive: true });
  t.after(async () => agent.destroy());
  const hostile = await createTestClient(server, { scopes: appScopes });
  const users = await Promise.all(Array.from({ length: 50 }, () => createStream(hostile)));
  const statuses = new Map<number, number>();
  const rounds = runs(15, 100);
  for (let round = 0; round < rounds; round += 1) {
    const answers = await Promise.all(
      Array.from({ length: 100 }, (_none, index) => open(agent, users[index % users.length] as never)),
    );
    for (const { statusCode = 0 } of answers) statuses.set(statusCode, (statuses.get(statusCode) ?? 0) + 1);
  }
  assert.deepEqual([...statuses].sort(), [
    [200, 100],
    [429, rounds * 100 - 100],
  ]);
  const other = await createStream(await createTestClient(server, { scopes: appScopes }));
  const stream = await open(agent, other);
  assert.equal(stream.statusCode, 200);
  let received = '';
  stream.setEncoding('utf8').on('data', (part: string) => {
    received += part;
  });
  await publish(await createPublisher(server), other.account, ['seen']);
  await until(
    async () => received,
    (events) => events.includes('refs/heads/seen'),
  );
});
