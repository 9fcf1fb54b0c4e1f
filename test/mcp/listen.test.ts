/** The stream of `subscriptions/listen`. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { withdrawGrant } from '../../src/grants/grant.ts';
import {
  callMcp,
  callOlder,
  mcpToken,
  statelessHeaders,
  statelessMeta,
} from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const client = await createTestClient(server);

async function createToken() {
  const account = await createTestAccount(server);
  return mcpToken(server, { account, client, scopes: ['read:posts'] });
}

/** Opens a stream. @returns a function that reads its next message; undefined at the end */
async function listen(
  at: { baseUrl: string },
  token: string,
  notifications: unknown,
  id: unknown = 'listen-1',
) {
  const aborted = new AbortController();
  const response = await fetch(`${at.baseUrl}/mcp`, {
    method: 'POST',
    signal: aborted.signal,
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...statelessHeaders('subscriptions/listen'),
    },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id,
      method: 'subscriptions/listen',
      params: { _meta: statelessMeta, notifications },
    }),
  });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const next = async () => {
    for (;;) {
      const [block, rest] = text.split(/\n\n([\s\S]*)/);
      if (rest !== undefined) {
        text = rest;
        if (block?.startsWith('data: ')) return JSON.parse(block.slice(6));
        continue;
      }
      const part = await reader?.read();
      if (part === undefined || part.done) return undefined;
      text += part.value;
    }
  };
  return { response, next, close: () => aborted.abort() };
}

test('agents 11: the first message acknowledges an empty filter under the id of the request', async () => {
  const { accessToken } = await createToken();
  const stream = await listen(server, accessToken, { toolsListChanged: true, promptsListChanged: true }, 17);
  assert.equal(stream.response.status, 200);
  assert.match(stream.response.headers.get('content-type') ?? '', /^text\/event-stream/);
  assert.equal(stream.response.headers.get('x-accel-buffering'), 'no');
  assert.deepEqual(await stream.next(), {
    jsonrpc: '2.0',
    method: 'notifications/subscriptions/acknowledged',
    params: { notifications: {}, _meta: { 'io.modelcontextprotocol/subscriptionId': 17 } },
  });
  stream.close();
});

test('agents 11: a stream ends with a result when its grant is withdrawn', async () => {
  const { accessToken, grantId } = await createToken();
  const stream = await listen(server, accessToken, {});
  await stream.next();
  await withdrawGrant(server.db, grantId as string, 'user');
  const last = await stream.next();
  assert.equal(last.id, 'listen-1');
  assert.equal(last.result.resultType, 'complete');
  assert.equal(last.result._meta['io.modelcontextprotocol/subscriptionId'], 'listen-1');
  assert.equal(await stream.next(), undefined);
});

test('agents 11: a stream ends with a result when the server stops', async (context) => {
  const stopping = await startTestServer(context);
  const account = await createTestAccount(stopping);
  const app = await createTestClient(stopping);
  const { accessToken } = await mcpToken(stopping, { account, client: app, scopes: ['read:posts'] });
  const stream = await listen(stopping, accessToken, {});
  await stream.next();
  const closed = stopping.running.close();
  assert.equal((await stream.next()).result.resultType, 'complete');
  await closed;
});

test('a token can have a limited number of streams, and gets the places of closed ones back', async () => {
  const { accessToken } = await createToken();
  const streams = [];
  for (let count = 0; count < 5; count++) streams.push(await listen(server, accessToken, {}));
  const refused = await listen(server, accessToken, {});
  assert.equal(refused.response.status, 429);
  assert.ok(Number(refused.response.headers.get('retry-after')) > 0);
  for (const stream of streams) stream.close();
  for (let status = 429; status === 429; ) {
    const again = await listen(server, accessToken, {});
    status = again.response.status;
    again.close();
  }
});

test('a request without a filter, or of an older client, opens no stream', async () => {
  const { accessToken } = await createToken();
  const without = await callMcp(server, accessToken, 'subscriptions/listen');
  assert.equal(without.body.error.code, -32_602);
  const older = await callOlder(server, accessToken, 'subscriptions/listen', { notifications: {} });
  assert.equal(older.body.error.code, -32_601);
});
