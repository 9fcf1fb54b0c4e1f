/** An agent with a callback: what it sends to `events/subscribe`, and what it receives. */

import assert from 'node:assert/strict';
import { Webhook } from 'standardwebhooks';
import type { TestServer } from '../servers/server.ts';
import { agentSecret } from '../webhooks/agents.ts';
import { type Behaviour, type Received, startSubscriber } from '../webhooks/subscriber.ts';
import { callMcp, type McpAnswer, mcpToken } from './mcp_client.ts';
import { createTestAccount, createTestClient, type TestAccount, type TestClient } from './oauth.ts';

export interface Agent {
  account: TestAccount;
  client: TestClient;
  token: string;
  grantId: string;
}

export async function createAgent(
  server: TestServer,
  given: { account?: TestAccount; client?: TestClient; scopes?: string[] } = {},
): Promise<Agent> {
  const { scopes = ['read:posts', 'read:profile'] } = given;
  const account = given.account ?? (await createTestAccount(server));
  const client = given.client ?? (await createTestClient(server));
  const { accessToken, grantId } = await mcpToken(server, { account, client, scopes });
  return { account, client, token: accessToken, grantId: grantId as string };
}

/** Echoes challenges, and accepts everything else. */
export const echo: Behaviour = ({ body }, response) => {
  const { type, challenge } = JSON.parse(body);
  if (type !== 'verification') response.writeHead(204).end();
  else response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ challenge }));
};

/** Echoes challenges, and does something else with deliveries. */
export const afterEcho =
  (behave: Behaviour): Behaviour =>
  (received, response) =>
    (JSON.parse(received.body).type === 'verification' ? echo : behave)(received, response);

export async function startCallback(scope: Parameters<typeof startSubscriber>[0], first: Behaviour = echo) {
  const subscriber = await startSubscriber(scope, first);
  const ofType = (type: string | undefined) =>
    subscriber.received.filter(({ body }) => JSON.parse(body).type === type);
  return { ...subscriber, challenges: () => ofType('verification'), occurrences: () => ofType(undefined) };
}

/** Subscribes to `push`, unless the parameters say otherwise. */
export function trySubscribe(
  server: TestServer,
  { token }: Pick<Agent, 'token'>,
  url: unknown,
  { delivery = {}, ...params }: { delivery?: object } & Record<string, unknown> = {},
): Promise<McpAnswer> {
  return callMcp(server, token, 'events/subscribe', {
    ...{ name: 'push', cursor: null, ...params },
    delivery: { mode: 'webhook', url, secret: agentSecret, ...delivery },
  });
}

export interface Subscribed {
  id: string;
  refreshBefore: string;
  cursor: string;
  truncated: boolean;
  deliveryStatus?: Record<string, unknown>;
}

export async function subscribeAgent(...given: Parameters<typeof trySubscribe>): Promise<Subscribed> {
  const { body } = await trySubscribe(...given);
  assert.ok(body.result, JSON.stringify(body.error));
  return body.result;
}

/** @returns what a callback received, after its signature was verified */
export function verified(
  { headers, body }: Received,
  secret = agentSecret,
  // biome-ignore lint/suspicious/noExplicitAny: tests read what was sent
): any {
  return new Webhook(secret).verify(body, headers as Record<string, string>);
}
