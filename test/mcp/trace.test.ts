/** What traces say about agents that have a token and still do not work, from the refused request to what the operator reads. */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { request as send } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { readConnections } from '../../src/connections/connection_store.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { startCallback, trySubscribe } from '../support/clients/agent_callback.ts';
import { postMcp, statelessHeaders, statelessMeta } from '../support/clients/mcp_client.ts';
import { authorize, createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import { answer } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const connectionOf = await createTraceReader(server);
const message = (method: string) => ({ jsonrpc: '2.0', id: 1, method, params: { _meta: statelessMeta } });

/** An agent that has come through sign-in and consent. */
async function connect() {
  const client = await createTestClient(server, { authMethod: 'none' });
  const parameters = { resource: `${server.baseUrl}/mcp` };
  const { accessToken: token } = await authorize(server, {
    account,
    client,
    scopes: ['read:posts'],
    parameters,
  });
  // Its connection is stored before what follows.
  await until(
    () => readConnections(server.db, { clientId: client.id, outcome: 'connected' }, 1),
    (found) => found.length === 1,
  );
  return { client, token };
}

/** Sends headers that `fetch` does not. @returns the id of the request */
function post(headers: Record<string, string>): Promise<string> {
  return new Promise((resolve, reject) => {
    send(`${server.baseUrl}/mcp`, { method: 'POST', headers }, (response) => {
      response.resume();
      resolve(String(response.headers['request-id']));
    })
      .on('error', reject)
      .end();
  });
}

test('a message without its headers is explained in the connection of the agent, once', async () => {
  const { client, token } = await connect();
  const { 'mcp-method': _, ...others } = statelessHeaders('tools/list');
  const first = await postMcp(server, token, message('tools/list'), others);
  const second = await postMcp(server, token, message('tools/list'), others);
  assert.deepEqual([first.status, second.status], [400, 400]);
  const { client: shown, outcome, refused, steps } = await connectionOf(first.headers.get('request-id'));
  assert.deepEqual([shown, outcome], [client.id, 'connected']);
  assert.deepEqual([refused.name, refused.error], ['call', 'header-mismatch']);
  assert.match(refused.explanation ?? '', /^The header Mcp-Method is missing\. .*no proxy removes/);
  // Steps are written in order, so the second would be there before the next one.
  const version = { 'mcp-protocol-version': '2099-01-01' };
  const unknown = await postMcp(server, token, { jsonrpc: '2.0', id: 1, method: 'tools/list' }, version);
  const later = await connectionOf(unknown.headers.get('request-id'));
  assert.equal(later.refused.error, 'unsupported-version');
  assert.match(later.refused.explanation ?? '', /Expected one of 2026-07-28, 2025-11-25, 2025-06-18\./);
  assert.equal(later.steps.filter(({ error }) => error === 'header-mismatch').length, 1);
  assert.ok(steps.some(({ name, outcome: each }) => name === 'call' && each === 'ok'));
});

test('a batch, text that is no JSON and a message without its metadata are explained', async () => {
  const { token } = await connect();
  const cases: [body: object | string, headers: Record<string, string>, error: string, expected: RegExp][] = [
    [[message('tools/list')], {}, 'invalid-message', /Batches are not supported/],
    ['{"jsonrpc"', {}, 'not-json', /one JSON-RPC message in UTF-8/],
    [
      { jsonrpc: '2.0', id: 1, method: 'tools/list' },
      statelessHeaders('tools/list'),
      'missing-metadata',
      /protocolVersion.*Use a current library/,
    ],
  ];
  for (const [body, headers, error, expected] of cases) {
    const { status, headers: received } = await postMcp(server, token, body, headers);
    assert.equal(status, 400);
    const { refused } = await connectionOf(received.get('request-id'));
    assert.equal(refused.error, error);
    assert.match(refused.explanation ?? '', expected);
  }
});

test('a page of a foreign origin is explained with the setting that allows it', async () => {
  const origin = 'https://inspector.example';
  for (const method of ['OPTIONS', 'POST']) {
    const response = await fetch(`${server.baseUrl}/mcp`, { method, headers: { origin } });
    assert.equal(response.status, 403);
    const { client, refused } = await connectionOf(response.headers.get('request-id'));
    assert.deepEqual([client, refused.name, refused.error], [null, 'call', 'origin-not-allowed']);
    assert.match(refused.explanation ?? '', /page of https:\/\/inspector\.example .*mcp\.allowedOrigins/);
  }
  for (const refusedOrigin of ['null', 'chrome-extension://abcdefghijklmnop']) {
    const response = await fetch(`${server.baseUrl}/mcp`, {
      method: 'POST',
      headers: { origin: refusedOrigin },
    });
    const { refused } = await connectionOf(response.headers.get('request-id'));
    assert.ok(refused.explanation?.startsWith(`A page with the origin ${refusedOrigin} called`));
    assert.match(
      refused.explanation ?? '',
      /Only origins that begin with https:.*: serve the page from one\.$/,
    );
  }
  for (const headers of [{ origin: `https://${'a.'.repeat(2_000)}example` }, { host: 'b.'.repeat(2_000) }]) {
    const { refused } = await connectionOf(await post(headers));
    assert.match(refused.explanation ?? '', / (?:add its origin there|the URL that clients know)\.$/);
  }
  const requestId = await post({ host: 'rebound.example' });
  const { refused } = await connectionOf(requestId);
  assert.match(refused.explanation ?? '', /for the host rebound\.example\. .*NUNCIO_BASE_URL/);
});

test('a callback that does not echo is explained to its developers, without its path and its response', async (t) => {
  const { client, token } = await connect();
  const secret = randomBytes(24).toString('hex');
  const callback = await startCallback(t, answer(405, { 'x-reason': secret }));
  const first = await trySubscribe(server, { token }, `${callback.url}/${secret}?key=${secret}`);
  assert.equal(first.body.error.data.reason, 'challenge_failed');
  const { client: shown, outcome, refused } = await connectionOf(first.headers.get('request-id'));
  assert.deepEqual([shown, outcome], [client.id, 'connected']);
  assert.deepEqual([refused.name, refused.error], ['delivery', 'challenge-failed']);
  const where = `The callback at ${callback.url} did not echo the challenge: the response has the status 405.`;
  assert.ok(refused.explanation?.startsWith(where), refused.explanation ?? '');
  assert.equal(JSON.stringify(refused).includes(secret), false);
  // Each attempt says what is wrong with it: developers try until it works.
  callback.behave(({ body }, response) => response.end(body));
  const second = await trySubscribe(server, { token }, `${callback.url}/${secret}?key=${secret}`);
  const { refused: other } = await connectionOf(second.headers.get('request-id'));
  assert.match(other.explanation ?? '', /the response is the request/);
});

test('a user does not read that an app could not connect because its callback failed', async (t) => {
  const { client, token } = await connect();
  // The connection itself is too old for further steps.
  await sql`update connections set started_at = now() - interval '2 days', updated_at = now() - interval '2 days'
    where client_id = ${client.id}`.execute(server.db);
  const callback = await startCallback(t, answer(405));
  const failed = await trySubscribe(server, { token }, callback.url);
  const { outcome, steps } = await connectionOf(failed.headers.get('request-id'));
  assert.deepEqual([outcome, steps.map(({ name }) => name)], ['refused', ['delivery']]);
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${server.baseUrl}/account`);
  const { text } = await browser.submit(page, { email: account.email, password: account.password });
  assert.match(text, /Connected apps/);
  assert.doesNotMatch(text, /could not finish connecting/);
});
