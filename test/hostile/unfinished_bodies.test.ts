/**
 * A body of unknown length has as much memory reserved as its route accepts, until it has arrived. Anybody can begin bodies at the endpoints of
 * OAuth and at forms: with a megabyte for each, those of 36 addresses left nothing to the bodies of everybody else.
 */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });

/** Forms are the largest bodies that anybody may send. */
const formBytesMax = 57_344;

async function reservedBytes(): Promise<number> {
  const text = await (await fetch(`${server.baseUrl}/metrics`)).text();
  return Number(/^nuncio_request_body_bytes (\d+)$/m.exec(text)?.[1]);
}

/** Begins bodies of a megabyte, which do not end. */
function beginLarge(accessToken: string, count: number, localAddress: string): Socket[] {
  return Array.from({ length: count }, () => {
    const socket = connect({ port: server.config.port, host: '127.0.0.1', localAddress });
    socket.on('error', () => {});
    const type = 'content-type: application/json\r\ncontent-length: 1048576';
    socket.write(
      `POST /articles HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${accessToken}\r\n${type}\r\n\r\n{`,
    );
    return socket;
  });
}

/** Begins a body in chunks, which does not end. */
function begin(path: string): Socket {
  const socket = connect({ port: server.config.port, host: '127.0.0.1' });
  socket.on('error', () => {});
  const type = 'content-type: application/x-www-form-urlencoded\r\ntransfer-encoding: chunked';
  socket.write(`POST ${path} HTTP/1.1\r\nhost: localhost\r\n${type}\r\n\r\n`);
  return socket;
}

for (const path of [
  '/oauth/token',
  '/oauth/revoke',
  '/oauth/introspect',
  '/oauth/userinfo',
  '/oauth/par',
  '/oauth/device',
  '/oauth/register',
  '/oauth/logout/confirm',
  '/oauth/authorize',
  '/device',
  '/interaction/x',
  '/account/sign-in',
  '/account/withdraw',
  '/account/unsubscribe',
]) {
  test(`attack: a body that does not end reserves no more than ${path} accepts`, async () => {
    const socket = begin(path);
    const bytes = await until(reservedBytes, (reserved) => reserved > 0);
    assert.ok(bytes <= formBytesMax, `${bytes} bytes`);
    socket.destroy();
    await until(reservedBytes, (reserved) => reserved === 0);
  });
}

test('attack: unfinished large bodies of many accounts refuse no bodies of others', async (t) => {
  const victim = await createApiUser(server);
  const attackers = await Promise.all(Array.from({ length: 48 }, () => createApiUser(server)));
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  const isFull = (reserved: number) => reserved > 127 * 1_048_576;
  let reserved = await reservedBytes();
  for (const [index, { accessToken }] of attackers.entries()) {
    const before = reserved;
    sockets.push(...beginLarge(accessToken, 8, `127.0.1.${index + 1}`));
    // All at once, they leave each other more.
    if (!isFull(before)) reserved = await until(reservedBytes, (now) => isFull(now) || now > before);
  }
  await until(reservedBytes, isFull);
  const large = await victim.request('POST', '/articles', {
    json: { title: 'a', body: 'b'.repeat(60_000) },
  });
  assert.equal(large.status, 201, large.text);
  const small = await victim.request('POST', '/articles', { json: { title: 'a', body: 'b'.repeat(10_000) } });
  assert.equal(small.status, 201, small.text);
});

test('attack: a user of an app and another account refuse no bodies of the app’s other users', async (t) => {
  const scopes = ['read:posts', 'write:posts'];
  const app = await createTestClient(server, { scopes });
  const other = await createTestClient(server, { scopes });
  const createUser = async (client: typeof app) => {
    const account = await createTestAccount(server);
    return (await mintAccessToken(server, { account, client, scopes })).accessToken;
  };
  const [hostile, second, victim] = [await createUser(app), await createUser(other), await createUser(app)];
  // Tokens that the node knows have callers from the first byte.
  for (const token of [hostile, second, victim]) await requester(server, token)('GET', '/articles');
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  const fill = async (token: string, localAddress: string, bytesMin: number) => {
    sockets.push(...beginLarge(token, 60, localAddress));
    await until(reservedBytes, (reserved) => reserved >= bytesMin * 1_048_576);
  };
  await fill(hostile, '127.0.2.1', 46);
  await fill(second, '127.0.2.2', 70);
  for (let count = 0; count < 3; count += 1) {
    const json = { title: 'a', body: 'b'.repeat(40_000) };
    const { status, text } = await requester(server, victim)('POST', '/articles', { json });
    assert.equal(status, 201, text);
  }
});
