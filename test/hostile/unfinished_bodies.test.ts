/**
 * A body of unknown length has as much memory reserved as its route accepts, until it has arrived. Anybody can begin bodies at the endpoints of
 * OAuth and at forms: with a megabyte for each, those of 36 addresses left nothing to the bodies of everybody else.
 */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });

/** Forms are the largest bodies that anybody may send. */
const formBytesMax = 57_344;

async function reservedBytes(): Promise<number> {
  const text = await (await fetch(`${server.baseUrl}/metrics`)).text();
  return Number(/^nuncio_request_body_bytes (\d+)$/m.exec(text)?.[1]);
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

test('attack: unfinished large bodies of many accounts refuse no small bodies of others', async (t) => {
  const victim = await createApiUser(server);
  const attackers = await Promise.all(Array.from({ length: 48 }, () => createApiUser(server)));
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  for (const [index, { accessToken }] of attackers.entries()) {
    for (let count = 0; count < 8; count += 1) {
      const options = { port: server.config.port, host: '127.0.0.1', localAddress: `127.0.1.${index + 1}` };
      const socket = connect(options);
      socket.on('error', () => {});
      const type = 'content-type: application/json\r\ncontent-length: 1048576';
      socket.write(
        `POST /articles HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${accessToken}\r\n${type}\r\n\r\n{`,
      );
      sockets.push(socket);
    }
  }
  await until(reservedBytes, (reserved) => reserved > 127 * 1_048_576);
  const large = await victim.request('POST', '/articles', {
    json: { title: 'a', body: 'b'.repeat(900_000) },
  });
  assert.equal(large.status, 503);
  const small = await victim.request('POST', '/articles', { json: { title: 'a', body: 'b'.repeat(10_000) } });
  assert.equal(small.status, 201, small.text);
});
