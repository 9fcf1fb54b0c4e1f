/** The transport: `POST /mcp`, its messages and statuses. The numbers are those of docs/conformance-agents.md. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createPlatform } from '../../src/platform.ts';
import {
  callMcp,
  callOlder,
  mcpToken,
  postMcp,
  statelessHeaders,
  statelessMeta,
} from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const { accessToken: token } = await mcpToken(server, {
  account,
  client,
  scopes: ['read:posts', 'write:posts'],
});
const url = `${server.baseUrl}/mcp`;
const request = (id: unknown = 1) => ({ jsonrpc: '2.0', id, method: 'tools/list' });

test('agents 1: only POST is served, without sessions', async () => {
  for (const method of ['GET', 'DELETE', 'PUT', 'PATCH']) {
    const response = await fetch(url, { method, headers: { authorization: `Bearer ${token}` } });
    assert.equal(response.status, 405, method);
    assert.equal(response.headers.get('allow'), 'POST');
  }
  const headers = { 'mcp-session-id': 'made up', 'last-event-id': '7' };
  const { status, headers: received } = await postMcp(server, token, request(), headers);
  assert.equal(status, 200);
  assert.equal(received.get('mcp-session-id'), null);
});

test('agents 2: a body that is not one message is refused, with the id if it is known', async () => {
  const refused = async (body: string | object, code: number, id: unknown) => {
    const answer = await postMcp(server, token, body);
    assert.equal(answer.status, 400, JSON.stringify(body));
    assert.equal(answer.body.jsonrpc, '2.0');
    assert.equal(answer.body.error.code, code, JSON.stringify(body));
    assert.equal(answer.body.id, id);
  };
  await refused([request()], -32_600, null);
  await refused([], -32_600, null);
  await refused({ jsonrpc: '2.0', id: null, method: 'tools/list' }, -32_600, null);
  await refused({ jsonrpc: '2.0', id: {}, method: 'tools/list' }, -32_600, null);
  // Each event of a stream repeats it.
  await refused({ jsonrpc: '2.0', id: 'a'.repeat(257), method: 'tools/list' }, -32_600, null);
  await refused({ jsonrpc: '2.0', id: 'a', result: {} }, -32_600, 'a');
  await refused({ jsonrpc: '1.0', id: 7, method: 'tools/list' }, -32_600, 7);
  await refused({ jsonrpc: '2.0', id: 7, method: 5 }, -32_600, 7);
  await refused({ jsonrpc: '2.0', id: 7, method: 'tools/list', params: [] }, -32_600, 7);
  await refused('"text"', -32_600, null);
  await refused('{"jsonrpc":', -32_700, null);
  await refused('', -32_700, null);
});

test('agents 3: a notification gets 202 without a body, a request JSON', async () => {
  const noted = await postMcp(server, token, { jsonrpc: '2.0', method: 'notifications/initialized' });
  assert.deepEqual([noted.status, noted.body], [202, undefined]);
  const unknown = await postMcp(server, token, { jsonrpc: '2.0', method: 'notifications/made-up' });
  assert.equal(unknown.status, 202);
  const answer = await postMcp(server, token, request('x'));
  assert.equal(answer.status, 200);
  assert.match(answer.headers.get('content-type') ?? '', /^application\/json/);
  assert.equal(answer.body.id, 'x');
});

test('agents 3: another content type is refused', async () => {
  const answer = await postMcp(server, token, request(), { 'content-type': 'text/plain' });
  assert.equal(answer.status, 415);
});

test('agents 5: a request is authorized before its method and body are looked at', async () => {
  for (const body of ['{"jsonrpc":', request(), { jsonrpc: '2.0', id: 1, method: 'made/up' }]) {
    assert.equal((await postMcp(server, null, body)).status, 401);
    assert.equal((await postMcp(server, 'nonsense', body)).status, 401);
  }
});

test('agents 6: the version or its header selects the stateless protocol, which needs client capabilities', async () => {
  const without = async (name: string) => {
    const { [`io.modelcontextprotocol/${name}`]: _, ...meta } = statelessMeta as Record<string, unknown>;
    const message = { jsonrpc: '2.0', id: 9, method: 'server/discover', params: { _meta: meta } };
    return postMcp(server, token, message, statelessHeaders('server/discover'));
  };
  for (const name of ['protocolVersion', 'clientCapabilities']) {
    const { status, body } = await without(name);
    assert.deepEqual([status, body.error.code, body.id], [400, -32_602, 9], name);
  }
  assert.equal((await without('clientInfo')).status, 200);
  const bare = await postMcp(
    server,
    token,
    { jsonrpc: '2.0', id: 9, method: 'server/discover' },
    { 'mcp-protocol-version': '2026-07-28' },
  );
  assert.deepEqual([bare.status, bare.body.error.code], [400, -32_602]);
});

test('agents 7: the headers must repeat version, method and tool of the body exactly', async () => {
  const params = { _meta: statelessMeta, name: 'articles_list', arguments: {} };
  const message = { jsonrpc: '2.0', id: 3, method: 'tools/call', params };
  const right = statelessHeaders('tools/call', params);
  const send = (headers: Record<string, string>) => postMcp(server, token, message, headers);
  for (const name of Object.keys(right)) {
    const { [name]: _, ...others } = right;
    for (const headers of [others, { ...right, [name]: 'something else' }, { ...right, [name]: '' }]) {
      const { status, body } = await send(headers);
      assert.deepEqual([status, body.error.code, body.id], [400, -32_020, 3], name);
    }
  }
  assert.equal((await send({ ...right, 'mcp-name': 'ARTICLES_LIST' })).body.error.code, -32_020);
  const spelled = {
    'MCP-PROTOCOL-VERSION': '2026-07-28',
    'mcp-METHOD': '  tools/call  ',
    'Mcp-Name': `=?base64?${Buffer.from('articles_list').toString('base64')}?=`,
  };
  const accepted = await send(spelled);
  assert.equal(accepted.status, 200);
  assert.equal(accepted.body.result.isError, undefined);
});

test('agents 8: an unknown version is refused with the versions that work', async () => {
  const version = '2099-01-01';
  const meta = { ...statelessMeta, 'io.modelcontextprotocol/protocolVersion': version };
  const message = { jsonrpc: '2.0', id: 4, method: 'server/discover', params: { _meta: meta } };
  const headers = { 'mcp-protocol-version': version, 'mcp-method': 'server/discover' };
  const { status, body } = await postMcp(server, token, message, headers);
  assert.equal(status, 400);
  assert.equal(body.error.code, -32_022);
  assert.deepEqual(body.error.data, {
    supported: ['2026-07-28', '2025-11-25', '2025-06-18'],
    requested: version,
  });
});

test('agents 8: unknown and removed methods get 404 in the stateless protocol', async () => {
  for (const method of [
    'made/up',
    'ping',
    'logging/setLevel',
    'initialize',
    'resources/list',
    'constructor',
  ]) {
    const { status, body } = await callMcp(server, token, method);
    assert.deepEqual([status, body.error.code, body.id], [404, -32_601, 1], method);
  }
});

test('agents 9: every result is complete and names the server', async () => {
  for (const method of ['server/discover', 'tools/list']) {
    const { body } = await callMcp(server, token, method);
    assert.equal(body.result.resultType, 'complete');
    const info = body.result._meta['io.modelcontextprotocol/serverInfo'];
    assert.equal(info.name, 'Nuncio');
    assert.match(info.version, /^\d+\.\d+\.\d+/);
    assert.deepEqual([body.result.ttlMs, body.result.cacheScope], [60_000, 'private']);
  }
  const { body } = await callMcp(server, token, 'tools/call', { name: 'articles_list' });
  assert.equal(body.result.resultType, 'complete');
  assert.ok(body.result._meta['io.modelcontextprotocol/serverInfo']);
});

test('agents 10: discovery announces the versions, and only what exists', async () => {
  const { body } = await callMcp(server, token, 'server/discover');
  assert.deepEqual(body.result.supportedVersions, ['2026-07-28', '2025-11-25', '2025-06-18']);
  assert.deepEqual(Object.keys(body.result.capabilities), ['tools', 'events', 'extensions']);
  for (const method of ['resources/list', 'prompts/list', 'completion/complete', 'tasks/list']) {
    assert.equal((await callMcp(server, token, method)).status, 404);
  }
});

test('agents 12: initialize agrees on a version, and later requests work', async () => {
  const initialize = async (protocolVersion: string) => {
    const params = { protocolVersion, capabilities: {}, clientInfo: { name: 'a test', version: '1' } };
    return (await postMcp(server, token, { jsonrpc: '2.0', id: 0, method: 'initialize', params })).body
      .result;
  };
  for (const version of ['2025-11-25', '2025-06-18', '2025-03-26']) {
    const result = await initialize(version);
    assert.equal(result.protocolVersion, version);
    assert.deepEqual(Object.keys(result.capabilities), ['tools', 'events', 'extensions']);
    assert.deepEqual(Object.keys(result.serverInfo), ['name', 'version']);
    assert.equal(result.resultType, undefined);
  }
  assert.equal((await initialize('2024-11-05')).protocolVersion, '2025-11-25');
  assert.equal((await initialize('2026-07-28')).protocolVersion, '2025-11-25');
  assert.deepEqual((await callOlder(server, token, 'ping')).body.result, {});
});

test('agents 13: older clients need no new headers, and get no new members', async () => {
  const absent = await postMcp(server, token, request());
  assert.equal(absent.status, 200);
  for (const version of ['2025-11-25', '2025-06-18', '2025-03-26']) {
    const { status, body } = await callOlder(server, token, 'tools/list', {}, version);
    assert.equal(status, 200);
    assert.deepEqual(Object.keys(body.result), ['tools']);
  }
  for (const version of ['2024-11-05', 'nonsense', '']) {
    assert.equal((await callOlder(server, token, 'tools/list', {}, version)).status, 400, version);
  }
  const unknown = await callOlder(server, token, 'made/up');
  assert.deepEqual([unknown.status, unknown.body.error.code], [200, -32_601]);
});

test('a platform that does not enable the endpoint has none', async (context) => {
  const without = await startTestServer(context, {}, 'dev', createPlatform({}));
  assert.equal((await postMcp(without, null, request())).status, 404);
  const metadata = await fetch(`${without.baseUrl}/.well-known/oauth-protected-resource/mcp`);
  assert.equal(metadata.status, 404);
});
