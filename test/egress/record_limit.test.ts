/** The limit on small TLS records: hosts that send thousands of them, and hosts that answer thousands of requests. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer, type TLSSocket } from 'node:tls';
import { connectGuarded } from '../../src/egress/connector.ts';
import { RecordLimit } from '../../src/egress/record_limit.ts';
import { serverCertificate, serverKey } from '../support/network/certificates.ts';
import { siteEgress } from '../support/network/site.ts';

async function connect(t: TestContext, serve: (socket: TLSSocket) => void): Promise<TLSSocket> {
  const server = createServer({ cert: serverCertificate, key: serverKey }, (socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}).setNoDelay();
    serve(socket);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const url = new URL(`https://one.apps.example:${port}`);
  const { socket } = await connectGuarded(url, { ...siteEgress, allowLoopback: true });
  t.after(() => socket.destroy());
  return socket as TLSSocket;
}

const request = Buffer.alloc(200, 'request');

/** Sends a request and waits for so many bytes. */
async function exchange(socket: TLSSocket, bytes: number): Promise<void> {
  let received = 0;
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const onData = (chunk: Buffer) => {
    received += chunk.length;
    if (received >= bytes) resolve();
  };
  socket.on('data', onData).once('error', reject);
  socket.write(request);
  await promise.finally(() => socket.off('data', onData).off('error', reject));
}

/** Writes that wait for each other are records of their own. */
function sendBytewise(socket: TLSSocket, bytes: number): void {
  if (bytes > 0 && !socket.destroyed) socket.write('x', () => sendBytewise(socket, bytes - 1));
}

test('a host that sends thousands of small records is disconnected', async (t) => {
  const socket = await connect(t, (to) => to.on('data', () => sendBytewise(to, 5_000)));
  await assert.rejects(exchange(socket, 5_000), {
    code: 'tls_error',
    reason: 'the host sent too many small records',
  });
});

test('hundreds for each of many requests are no problem', async (t) => {
  const socket = await connect(t, (to) => to.on('data', () => sendBytewise(to, 900)));
  for (let count = 0; count < 10; count += 1) await exchange(socket, 900);
});

test('nor is a large response', async (t) => {
  const bytes = 5_000_000;
  const socket = await connect(t, (to) => to.once('data', () => to.write(Buffer.alloc(bytes))));
  await exchange(socket, bytes);
});

test('what TLS itself sends back is no request', () => {
  const limit = new RecordLimit();
  const record = Buffer.concat([Buffer.from([23, 3, 3, 0, 22]), Buffer.alloc(22)]);
  for (let count = 0; count < 1_000; count += 1) {
    assert.ok(limit.take(record));
    limit.sent(record);
  }
  assert.ok(!limit.take(Buffer.concat(Array.from({ length: 100 }, () => record))));
});

test('records are counted the same, however their bytes arrive', () => {
  const records = Array.from({ length: 1_000 }, (_, index) => {
    const content = Buffer.alloc(index % 7);
    return Buffer.concat([Buffer.from([23, 3, 3, 0, content.length]), content]);
  });
  const bytes = Buffer.concat(records);
  for (const size of [1, 2, 3, 5, 11, bytes.length]) {
    const limit = new RecordLimit();
    for (let at = 0; at < bytes.length; at += size) assert.ok(limit.take(bytes.subarray(at, at + size)));
    // Eight kilobytes have come, which allow eight records more.
    const more = Buffer.alloc(5 * 20);
    assert.ok(!limit.take(more), `in pieces of ${size}`);
  }
});
