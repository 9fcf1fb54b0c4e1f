/**
 * A body of unknown length has as much memory reserved as its route accepts, until it has arrived. Anybody can begin bodies at the endpoints of
 * OAuth and at forms: with a megabyte for each, those of 36 addresses left nothing to the bodies of everybody else.
 */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
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
