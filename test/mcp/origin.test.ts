/** DNS rebinding and pages of other origins. */

import assert from 'node:assert/strict';
import { request as send } from 'node:http';
import { after, test } from 'node:test';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { mcpToken, postMcp } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const allowed = 'https://inspector.example';
const platform = createPlatform({ ...shipped, mcp: { enabled: true, allowedOrigins: [allowed] } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const { accessToken: token } = await mcpToken(server, {
  account: await createTestAccount(server),
  client: await createTestClient(server),
  scopes: ['read:posts'],
});
const message = { jsonrpc: '2.0', id: 1, method: 'tools/list' };

/** `fetch` does not let a caller choose `Host`. */
function postWithHost(host: string, origin?: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const headers = {
      host,
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      ...(origin === undefined ? {} : { origin }),
    };
    const outgoing = send(`${server.baseUrl}/mcp`, { method: 'POST', headers }, (answer) => {
      answer.resume();
      answer.on('end', () => resolve(answer.statusCode ?? 0));
    });
    outgoing.on('error', reject);
    outgoing.end(JSON.stringify(message));
  });
}

test('agents 4: a request of a page of another origin gets 403', async () => {
  const { port } = new URL(server.baseUrl);
  for (const origin of [
    'https://evil.example',
    'null',
    `http://localhost:${Number(port) + 1}`,
    `https://localhost:${port}`,
    `${server.baseUrl}.evil.example`,
    `${allowed}.evil.example`,
    'https://inspector.example:444',
    '',
  ]) {
    const { status, headers } = await postMcp(server, token, message, { origin });
    assert.equal(status, 403, origin);
    assert.equal(headers.get('access-control-allow-origin'), null);
  }
});

test('agents 4: programs, the server’s own pages and allowed origins are served', async () => {
  assert.equal((await postMcp(server, token, message)).status, 200);
  for (const origin of [server.baseUrl, allowed]) {
    const { status, headers } = await postMcp(server, token, message, { origin });
    assert.equal(status, 200, origin);
    assert.equal(headers.get('access-control-allow-origin'), origin);
    assert.match(headers.get('vary') ?? '', /Origin/);
  }
});

test('agents 4: on loopback a foreign host gets 403, also with a matching origin', async () => {
  const { port } = new URL(server.baseUrl);
  assert.equal(await postWithHost('evil.example'), 403);
  assert.equal(await postWithHost(`evil.example:${port}`, `http://evil.example:${port}`), 403);
  assert.equal(await postWithHost('127.0.0.1.evil.example'), 403);
  assert.equal(await postWithHost('192.168.0.7'), 403);
  assert.equal(await postWithHost('localhost@evil.example'), 400);
  for (const host of [`localhost:${port}`, `127.0.0.1:${port}`, `[::1]:${port}`]) {
    assert.equal(await postWithHost(host), 200, host);
  }
});

test('a page of an allowed origin can ask, read the challenge and sign its user in', async () => {
  const preflight = (origin: string) =>
    fetch(`${server.baseUrl}/mcp`, {
      method: 'OPTIONS',
      headers: {
        origin,
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'authorization,mcp-protocol-version,mcp-method,mcp-name',
      },
    });
  const response = await preflight(allowed);
  assert.equal(response.status, 204);
  assert.equal(response.headers.get('access-control-allow-origin'), allowed);
  const accepted = (response.headers.get('access-control-allow-headers') ?? '').toLowerCase().split(', ');
  for (const name of ['authorization', 'content-type', 'mcp-protocol-version', 'mcp-method', 'mcp-name']) {
    assert.ok(accepted.includes(name), name);
  }
  assert.equal((await preflight('https://evil.example')).status, 403);
  const refused = await postMcp(server, null, message, { origin: allowed });
  assert.equal(refused.status, 401);
  assert.match(refused.headers.get('access-control-expose-headers') ?? '', /WWW-Authenticate/);
});
