/**
 * Receivers of MCP Events that this project did not write, unmodified: `@ai-sdk/mcp` (client and webhook). They sign in as agents do,
 * subscribe, verify what is delivered, refresh, and are told when the user withdraws the grant.
 */

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after, test } from 'node:test';
import {
  createMCPClient,
  experimental_createMCPEventWebhook as createMCPEventWebhook,
  type Experimental_MCPEventStore as MCPEventStore,
} from '@ai-sdk/mcp';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, pushBody, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);

type Stored = NonNullable<Awaited<ReturnType<MCPEventStore['get']>>>;

function createStore() {
  const kept = new Map<string, Stored>();
  const store: MCPEventStore = {
    get: async (key) => kept.get(key),
    getById: async (id) => [...kept.values()].find((each) => each.id === id),
    set: async (subscription) => void kept.set(subscription.key, subscription),
    update: async (key, patch) => {
      const before = kept.get(key);
      if (before !== undefined) kept.set(key, { ...before, ...patch });
    },
    delete: async (key) => void kept.delete(key),
  };
  return { kept, store };
}

/** Serves a handler of web requests over HTTP. */
async function serve(
  scope: { after: (hook: () => Promise<void>) => void },
  handle: (request: Request) => Promise<Response>,
) {
  const statuses: number[] = [];
  const http = createServer(async (incoming, outgoing) => {
    const chunks: Buffer[] = [];
    for await (const chunk of incoming) chunks.push(chunk as Buffer);
    const response = await handle(
      new Request(new URL(incoming.url ?? '/', 'http://127.0.0.1'), {
        method: incoming.method ?? 'GET',
        headers: incoming.headers as Record<string, string>,
        body: Buffer.concat(chunks),
      }),
    );
    statuses.push(response.status);
    outgoing.writeHead(response.status, Object.fromEntries(response.headers));
    outgoing.end(Buffer.from(await response.arrayBuffer()));
  });
  await new Promise<void>((resolve) => http.listen(0, '127.0.0.1', resolve));
  scope.after(async () => {
    http.closeAllConnections();
    await new Promise((resolve) => http.close(resolve));
  });
  return { url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/events`, statuses };
}

test('agents 49: @ai-sdk/mcp subscribes, verifies deliveries, refreshes, and is told of the end', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { accessToken, grantId } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  const { kept, store } = createStore();
  const events: { name: string; eventId: string; data: Record<string, unknown> }[] = [];
  const ends: unknown[] = [];
  const errors: unknown[] = [];
  const handle = createMCPEventWebhook({
    store,
    onEvent: async ({ event }) => void events.push(event),
    onTerminated: async ({ termination }) => void ends.push(termination.error),
    onError: (error) => void errors.push(error),
  });
  const { url, statuses } = await serve(t, handle);
  const agent = await createMCPClient({
    transport: {
      type: 'http',
      url: `${server.baseUrl}/mcp`,
      headers: { authorization: `Bearer ${accessToken}` },
    },
    experimental_events: { store },
  });
  t.after(() => agent.close());
  const { experimental_events: subscriptions } = agent;
  const delivery = { mode: 'webhook' as const, url, allowInsecureLocalhost: true };
  const subscribed = await subscriptions.subscribe({ name: 'push', delivery });
  assert.match(subscribed.id, /^sub_[0-9a-f]{32}$/);
  assert.equal(subscribed.truncated, false);
  assert.deepEqual(statuses, [200], 'the challenge');

  await publish(publisher, account, ['one']);
  await until(
    async () => events.length,
    (count) => count === 1,
  );
  assert.deepEqual(events[0]?.data, pushBody('one'));
  const saved = () => [...kept.values()][0] as Stored;
  await until(
    async () => saved().cursor,
    (cursor) => cursor !== subscribed.cursor,
  );

  const refreshed = await subscriptions.refresh({ id: subscribed.id });
  assert.equal(refreshed.id, subscribed.id);
  await publish(publisher, account, ['two']);
  await until(
    async () => events.length,
    (count) => count === 2,
  );

  await withdrawGrant(server.db, grantId as string, 'user');
  await until(
    async () => ends.length,
    (count) => count === 1,
  );
  assert.deepEqual(ends, [{ code: -32_012, message: 'Forbidden', data: { reason: 'access_revoked' } }]);
  await until(
    async () => kept.size,
    (size) => size === 0,
  );
  assert.deepEqual(errors, []);
  assert.deepEqual(statuses, [200, 204, 204, 204]);
});
