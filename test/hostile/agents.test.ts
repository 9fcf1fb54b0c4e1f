/** Attacks on the endpoint for agents. */

import assert from 'node:assert/strict';
import { request as send } from 'node:http';
import { after, test } from 'node:test';
import { withdrawGrant } from '../../src/grants/grant.ts';
import {
  callMcp,
  callTool,
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
const scopes = ['read:posts', 'write:posts'];
const { accessToken: token } = await mcpToken(server, { account, client, scopes });

/** Posts a call of a tool whose arguments are text, so that they need not be what a client would send. */
function callWithText(name: string, given: string) {
  const meta = JSON.stringify(statelessMeta);
  const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":${meta},"name":"${name}","arguments":${given}}}`;
  return postMcp(server, token, body, statelessHeaders('tools/call', { name }));
}

async function countArticles(): Promise<number> {
  const { structuredContent } = await callTool(server, token, 'articles_list', {
    author: account.id,
    limit: 200,
  });
  return structuredContent.items.length;
}

test('members that change prototypes are refused, and names of methods of objects are unknown', async () => {
  const before = await countArticles();
  for (const given of [
    '{"title":"x","__proto__":{"isAdmin":true}}',
    '{"title":"x","__pr\\u006fto__":{"isAdmin":true}}',
  ]) {
    const { status, body } = await callWithText('article_create', given);
    assert.deepEqual([status, body.error.code], [400, -32_600]);
  }
  for (const name of ['constructor', 'toString', 'hasOwnProperty', '_etag', '_links']) {
    const { body } = await callWithText('article_create', `{"title":"x","${name}":{"a":1}}`);
    assert.equal(body.result.isError, true, name);
    assert.match(body.result.content[0].text, /is not a known property/);
  }
  for (const method of ['__proto__', 'constructor', 'toString', 'hasOwnProperty']) {
    assert.equal((await callMcp(server, token, method)).status, 404);
  }
  assert.equal(({} as { isAdmin?: boolean }).isAdmin, undefined);
  assert.equal(await countArticles(), before);
});

test('a member that occurs twice is refused, wherever it is', async () => {
  const before = await countArticles();
  const twice = await callWithText('article_create', '{"title":"shown","title":"done"}');
  assert.deepEqual([twice.status, twice.body.error.code], [400, -32_600]);
  const meta = JSON.stringify(statelessMeta);
  const body = `{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{"_meta":${meta},"name":"article_create","arguments":{"title":"x"}}}`;
  const method = await postMcp(
    server,
    token,
    body,
    statelessHeaders('tools/call', { name: 'article_create' }),
  );
  assert.equal(method.status, 400);
  assert.equal(await countArticles(), before);
});

test('text that looks like the end of a result stays text', async () => {
  const title = '"}],"isError":false}}\n\ndata: {"jsonrpc":"2.0"}\u2028</script>\\';
  const created = await callTool(server, token, 'article_create', { title, body: `${title}\r\n\r\n` });
  assert.equal(created.structuredContent.title, title);
  assert.equal(created.content.length, 1);
  assert.equal(JSON.parse(created.content[0].text).title, title);
  const failed = await callTool(server, token, 'article_create', { title: 'x', [title.slice(0, 60)]: 1 });
  assert.deepEqual([failed.isError, failed.content.length], [true, 1]);
});

test('an id cannot forge messages, headers or lines of a stream', async () => {
  const id = 'x\r\n\r\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n';
  const { body } = await postMcp(server, token, { jsonrpc: '2.0', id, method: 'tools/list' });
  assert.equal(body.id, id);
  const response = await fetch(`${server.baseUrl}/mcp`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      ...statelessHeaders('subscriptions/listen'),
    },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id,
      method: 'subscriptions/listen',
      params: { _meta: statelessMeta, notifications: {} },
    }),
  });
  const reader = response.body?.getReader();
  const text = new TextDecoder().decode((await reader?.read())?.value);
  await reader?.cancel();
  assert.equal(text.split('\n').filter((line) => line.startsWith('data: ')).length, 1);
  const shown = JSON.parse(text.slice('data: '.length));
  assert.equal(shown.params._meta['io.modelcontextprotocol/subscriptionId'], id);
});

test('a withdrawn grant ends its tokens, also while a body arrives', async () => {
  const granted = await mcpToken(server, { account, client, scopes });
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method: 'tools/call',
    params: { name: 'article_create', arguments: { title: 'Too late' } },
  });
  const before = await countArticles();
  const outgoing = send(`${server.baseUrl}/mcp`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${granted.accessToken}`,
      'content-type': 'application/json',
      'content-length': body.length,
    },
  });
  const answered = new Promise<number>((resolve, reject) => {
    outgoing.on('response', (answer) => {
      answer.resume();
      resolve(answer.statusCode ?? 0);
    });
    outgoing.on('error', reject);
  });
  outgoing.write(body.slice(0, 20));
  await withdrawGrant(server.db, granted.grantId as string, 'user');
  for (let status = 200; status === 200; ) {
    status = (await postMcp(server, granted.accessToken, { jsonrpc: '2.0', id: 1, method: 'ping' })).status;
  }
  outgoing.end(body.slice(20));
  assert.equal(await answered, 401);
  assert.equal(await countArticles(), before);
});

test('bodies that are too large, too deep or not text are refused', async () => {
  const large = await callWithText('article_create', `{"title":"x","body":"${'x'.repeat(1_100_000)}"}`);
  assert.equal(large.status, 413);
  const deep = await callWithText('article_create', `${'{"a":'.repeat(100)}1${'}'.repeat(100)}`);
  assert.deepEqual([deep.status, deep.body.error.code], [400, -32_600]);
  const arrays = await postMcp(server, token, '['.repeat(100_000));
  assert.deepEqual([arrays.status, arrays.body.error.code], [400, -32_700]);
  const nul = await callWithText('article_create', '{"title":"a\\u0000b"}');
  assert.equal(nul.status, 400);
  const bytes = await fetch(`${server.baseUrl}/mcp`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]),
  });
  assert.equal(bytes.status, 400);
});

test('a batch is refused as a whole', async () => {
  const before = await countArticles();
  const call = (id: number) => ({
    jsonrpc: '2.0',
    id,
    method: 'tools/call',
    params: { name: 'article_create', arguments: { title: `Batched ${id}` } },
  });
  const { status, body } = await postMcp(server, token, [call(1), call(2)], {
    'mcp-protocol-version': '2025-03-26',
  });
  assert.deepEqual([status, body.error.code], [400, -32_600]);
  assert.equal(await countArticles(), before);
});

test('headers that name another tool than the body are refused', async () => {
  const params = { _meta: statelessMeta, name: 'article_create', arguments: { title: 'Smuggled' } };
  const message = { jsonrpc: '2.0', id: 1, method: 'tools/call', params };
  const right = statelessHeaders('tools/call', params);
  const before = await countArticles();
  for (const headers of [
    { ...right, 'mcp-name': 'articles_list' },
    { ...right, 'mcp-name': 'article_create, articles_list' },
    { ...right, 'mcp-method': 'tools/list' },
    { ...right, 'mcp-name': '=?base64?YXJ0aWNsZXNfbGlzdA==?=' },
    { ...right, 'mcp-protocol-version': '2025-11-25' },
  ]) {
    const { status, body } = await postMcp(server, token, message, headers);
    assert.deepEqual([status, body.error.code], [400, -32_020], JSON.stringify(headers));
  }
  assert.equal(await countArticles(), before);
});

test('what a client says of itself gives it no rights', async () => {
  const owner = await createTestAccount(server);
  const { accessToken: owned } = await mcpToken(server, { account: owner, client, scopes });
  const { structuredContent: draft } = await callTool(server, owned, 'article_create', { title: 'Private' });
  const { accessToken: reader } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  const _meta = {
    ...statelessMeta,
    'io.modelcontextprotocol/clientInfo': { name: 'the owner', version: '1' },
    accountId: owner.id,
    scopes: 'read:posts write:posts admin',
  };
  const read = await callMcp(server, reader, 'tools/call', {
    _meta,
    name: 'article_get',
    arguments: { id: draft.id },
  });
  assert.equal(read.body.result.content[0].text, 'No such article.');
  const write = await callMcp(server, reader, 'tools/call', {
    _meta,
    name: 'article_create',
    arguments: { title: 'x' },
    annotations: { readOnlyHint: true },
  });
  assert.equal(write.status, 403);
});

test('ids of other collections, paths and queries in an id reach nothing', async () => {
  for (const id of [
    '../subscriptions',
    'x?limit=1',
    '00000000-0000-0000-0000-000000000000/publish',
    '%2e%2e',
    '',
  ]) {
    const result = await callTool(server, token, 'article_get', { id });
    assert.equal(result.isError, true, id);
  }
  const absent = await callTool(server, token, 'article_comments_list', {
    id: '00000000-0000-7000-8000-000000000000',
  });
  assert.equal(absent.content[0].text, 'No such article.');
});

test('tools count against the rate limit of the grant, with its requests to the API', async (context) => {
  const limited = await startTestServer(context, { NUNCIO_RATE_LIMIT: '4' });
  const user = await createTestAccount(limited);
  const app = await createTestClient(limited);
  const { accessToken } = await mcpToken(limited, { account: user, client: app, scopes });
  const ping = { jsonrpc: '2.0', id: 1, method: 'ping' };
  const statuses: number[] = [];
  let refused = await postMcp(limited, accessToken, ping);
  // The minute may end in between.
  for (let count = 0; count < 10 && refused.status !== 429; count++) {
    statuses.push(refused.status);
    refused = await postMcp(limited, accessToken, ping);
  }
  assert.equal(refused.status, 429);
  assert.ok(statuses.length >= 4 && statuses.every((status) => status === 200));
  assert.ok(Number(refused.headers.get('retry-after')) > 0);
  assert.equal(refused.headers.get('ratelimit-limit'), '4');
});
