/** The number of header fields of a request. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

test('attack: a head has at most a hundred fields, and none is dropped silently', async () => {
  const url = new URL(server.baseUrl);
  const ask = async (count: number, last = 'x: y') => {
    const socket = connect({ host: url.hostname, port: Number(url.port) });
    const fields = Array.from({ length: count - 2 }, (_, index) => `x-${index}: y\r\n`);
    socket.write(`GET /livez HTTP/1.1\r\nhost: ${url.host}\r\n${fields.join('')}${last}\r\n\r\n`);
    const [chunk] = (await once(socket, 'data')) as [Buffer];
    socket.destroy();
    return chunk.toString('latin1').slice(9, 12);
  };
  assert.equal(await ask(100), '200');
  assert.equal(await ask(101), '431');
  assert.equal(await ask(900), '431');
  assert.equal(await ask(150, 'host: other.example'), '431');
});

test('attack: heads that do not end take little more memory than their bytes', async (t) => {
  const { hostname: host, port } = new URL(server.baseUrl);
  const head = `GET / HTTP/1.1\r\n${'a: b\r\n'.repeat(2_400)}`;
  const count = 300;
  const sockets = await Promise.all(
    Array.from({ length: count }, async () => {
      const socket = connect({ host, port: Number(port) });
      t.after(() => socket.destroy());
      await once(
        socket.on('error', () => {}),
        'connect',
      );
      return socket;
    }),
  );
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  collect();
  const before = process.memoryUsage().heapUsed;
  for (const socket of sockets) socket.write(head);
  await until(
    async () => sockets.reduce((sum, { bytesWritten }) => sum + bytesWritten, 0),
    (bytes) => bytes === count * head.length,
  );
  // Another connection is read after them.
  assert.equal((await fetch(`${server.baseUrl}/livez`)).status, 200);
  collect();
  const each = (process.memoryUsage().heapUsed - before) / count;
  // All fields took four times as much as their bytes.
  assert.ok(each < 2 * head.length, String(each));
});

test('attack: a connection whose head is refused ends, though the client keeps its side open', async () => {
  const { hostname: host, port } = new URL(server.baseUrl);
  for (const sent of [
    `GET / HTTP/1.1\r\nx: ${'y'.repeat(17_000)}`,
    'nonsense\r\n\r\n',
    'CONNECT x:1 HTTP/1.1\r\n\r\n',
  ]) {
    const socket = connect({ host, port: Number(port), allowHalfOpen: true });
    socket.on('error', () => {}).write(sent);
    const [chunk] = (await once(socket, 'data')) as [Buffer];
    assert.match(chunk.toString('latin1'), /^HTTP\/1.1 (431|400|501) /);
    await once(socket, 'end');
    // The server's side is gone when a write is answered by a reset.
    const { promise, resolve } = Promise.withResolvers<void>();
    socket.on('close', () => resolve());
    const writing = setInterval(() => socket.write('x'), 100);
    await promise;
    clearInterval(writing);
  }
});
