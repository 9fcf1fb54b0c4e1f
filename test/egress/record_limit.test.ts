/** Limits on TLS records: hosts that send thousands of small ones, or full of small messages, and hosts that answer thousands of requests. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer, type TLSSocket } from 'node:tls';
import { connectGuarded } from '../../src/egress/connector.ts';
import { RecordLimit } from '../../src/egress/record_limit.ts';
import { serverCertificate, serverKey } from '../support/network/certificates.ts';
import { siteEgress } from '../support/network/site.ts';
import {
  fullRecord,
  helloRequestMessage,
  startInjector,
  ticketMessage,
} from '../support/network/tls_injector.ts';

async function connect(t: TestContext, serve: (socket: TLSSocket) => void): Promise<TLSSocket> {
  const server = createServer({ cert: serverCertificate, key: serverKey }, (socket) => {
    t.after(() => socket.destroy());
    socket.on('error', () => {}).setNoDelay();
    serve(socket);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  return open(t, (server.address() as AddressInfo).port);
}

async function open(t: TestContext, port: number): Promise<TLSSocket> {
  const url = new URL(`https://one.apps.example:${port}`);
  const { socket } = await connectGuarded(url, { ...siteEgress, allowLoopback: true }, { tenant: null });
  t.after(() => socket.destroy());
  return socket as TLSSocket;
}

const request = Buffer.alloc(200, 'request');
const tooManyRecords = 'the host sent too many small records';
const unexpected = 'the host sent an unexpected message';
const chain = { cert: serverCertificate, key: serverKey };

function recordOf(type: number, length: number): Buffer {
  return Buffer.concat([Buffer.from([type, 3, 3, length >> 8, length & 0xff]), Buffer.alloc(length)]);
}

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
    reason: tooManyRecords,
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
  const limit = new RecordLimit(true);
  const record = recordOf(23, 22);
  for (let count = 0; count < 1_000; count += 1) {
    assert.equal(limit.take(record), null);
    limit.sent(record);
  }
  assert.equal(limit.take(Buffer.concat(Array.from({ length: 100 }, () => record))), tooManyRecords);
});

test('records are counted the same, however their bytes arrive', () => {
  const records = Array.from({ length: 1_000 }, (_, index) => {
    const content = Buffer.alloc(index % 7);
    return Buffer.concat([Buffer.from([23, 3, 3, 0, content.length]), content]);
  });
  const bytes = Buffer.concat(records);
  for (const size of [1, 2, 3, 5, 11, bytes.length]) {
    const limit = new RecordLimit(true);
    for (let at = 0; at < bytes.length; at += size)
      assert.equal(limit.take(bytes.subarray(at, at + size)), null);
    // Eight kilobytes have come, which allow eight records more.
    const more = Buffer.alloc(5 * 20);
    assert.equal(limit.take(more), tooManyRecords, `in pieces of ${size}`);
  }
});

test('a host that asks again and again to repeat the handshake is disconnected at once', async (t) => {
  const { port, close } = await startInjector({
    chain,
    version: 'TLSv1.2',
    inject: (client, encrypt) => client.write(encrypt(fullRecord(helloRequestMessage))),
  });
  t.after(close);
  await assert.rejects(
    open(t, port).then((socket) => exchange(socket, 1)),
    { reason: unexpected },
  );
});

test('a host that fills records with tickets is disconnected after one of them', async (t) => {
  const { port, close } = await startInjector({
    chain,
    version: 'TLSv1.3',
    inject: (client, encrypt) => {
      const records = Array.from({ length: 10 }, () => encrypt(fullRecord(ticketMessage)));
      client.write(Buffer.concat(records));
    },
  });
  t.after(close);
  const socket = await open(t, port);
  let tickets = 0;
  socket.on('session', () => {
    tickets += 1;
  });
  await assert.rejects(exchange(socket, 1_000), {
    code: 'tls_error',
    reason: 'the host sent too many session tickets',
  });
  assert.ok(tickets < 1_000, `${tickets} tickets`);
});

test('behind the end of the handshake, TLS 1.2 has one small message of it', () => {
  const [clear, changeCipher, finished] = [recordOf(22, 3_000), recordOf(20, 1), recordOf(22, 40)];
  const taken = (...records: Buffer[]) => new RecordLimit(false).take(Buffer.concat(records));
  assert.equal(taken(clear, clear, changeCipher, finished, recordOf(23, 40)), null);
  assert.equal(taken(clear, changeCipher, finished, finished), unexpected);
  assert.equal(taken(clear, changeCipher, recordOf(22, 129)), unexpected);
  // The types of TLS 1.3 are encrypted.
  const limit = new RecordLimit(true);
  assert.equal(limit.take(Buffer.concat([changeCipher, recordOf(22, 129)])), null);
});

test('a handshake has 64 KiB behind its certificates, and a response any number', () => {
  const record = recordOf(22, 16_000);
  const limit = new RecordLimit(true);
  for (let count = 0; count < 4; count += 1) assert.equal(limit.take(record), null);
  assert.equal(limit.take(record), 'the host sent too much in its handshake');
  const other = new RecordLimit(true);
  other.endHandshake();
  for (let count = 0; count < 10; count += 1) assert.equal(other.take(record), null);
});

test('a hundred tickets for each request are no problem', () => {
  const limit = new RecordLimit(true);
  const tickets = (count: number) => Array.from({ length: count }, () => limit.takeTicket()).at(-1);
  assert.equal(tickets(100), null);
  limit.sent(recordOf(23, 200));
  assert.equal(tickets(100), null);
  assert.equal(tickets(1), 'the host sent too many session tickets');
});
