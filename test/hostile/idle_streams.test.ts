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

type TestClient = Awaited<ReturnType<typeof createTestClient>>;
type TestAccount = Awaited<ReturnType<typeof createTestAccount>>;

async function createStream(client: TestClient, given?: TestAccount) {
  const account = given ?? (await createTestAccount(server));
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

test('ten accounts with two apps fill a node, and others still get a stream', async (t) => {
  const agent = new Agent({ keepAlive: true });
  t.after(async () => agent.destroy());
  const apps = [
    await createTestClient(server, { scopes: appScopes }),
    await createTestClient(server, { scopes: appScopes }),
  ];
  const taken: IncomingMessage[] = [];
  const last = new Map<IncomingMessage, string>();
  for (let number = 0; number < 10; number += 1) {
    const account = await createTestAccount(server);
    for (const app of apps) {
      const tokens = [await createStream(app, account), await createStream(app, account)];
      for (let index = 0; index < 10; index += 1) {
        const stream = await open(agent, tokens[index % 2] as never);
        assert.equal(stream.statusCode, 200);
        stream.setEncoding('utf8').on('data', (text: string) => last.set(stream, text));
        taken.push(stream);
      }
    }
  }
  const refused = await open(agent, await createStream(apps[0] as TestClient));
  assert.equal(refused.statusCode, 200, 'a new account of an app that is full');
  for (let number = 0; number < 3; number += 1) {
    const stranger = await open(
      agent,
      await createStream(await createTestClient(server, { scopes: appScopes })),
    );
    assert.equal(stranger.statusCode, 200, 'a new app on a full node');
  }
  const ended = await until(
    async () => taken.filter((stream) => stream.readableEnded),
    (all) => all.length === 4,
  );
  for (const stream of ended)
    assert.match(last.get(stream) ?? '', /event: end\ndata: \{"reason":"displaced"\}/);
});
