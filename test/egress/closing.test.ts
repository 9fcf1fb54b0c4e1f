/** Connections that are closed leave no local port behind, which the system would keep for a minute. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer as createTls } from 'node:tls';
import { createGuardedFetch } from '../../src/egress/fetch.ts';
import type { ExchangeResult } from '../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../src/webhooks/sending/sender.ts';
import { serverCertificate, serverKey } from '../support/network/certificates.ts';
import { siteEgress } from '../support/network/site.ts';
import { until } from '../support/webhooks/apps.ts';

const egress = { ...siteEgress, allowLoopback: true };
const established = '01';
const skip = process.platform === 'linux' ? false : 'reads /proc/net';

/** How often a connection to the port is in each state, by its number. */
function statesTo(port: number): Record<string, number> {
  const remote = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const lines = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((file) =>
    readFileSync(file, 'latin1').trim().split('\n').slice(1),
  );
  const states = lines
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[2]?.endsWith(remote))
    .map((fields) => fields[3] ?? '');
  return Object.fromEntries(
    Map.groupBy(states, (state) => state)
      .entries()
      .map(([state, { length }]) => [state, length]),
  );
}

/** Only connections that are established are waited for: the system forgets the others, too, after a minute. */
async function assertClosed(port: number): Promise<void> {
  await until(
    async () => statesTo(port),
    (states) => states[established] === undefined,
  );
  assert.deepEqual(statesTo(port), {});
}

/** Listens on a port to which nobody else's connections are left: those of any process count. */
async function listen(t: TestContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => sockets.add(socket.on('error', () => {})));
  for (let isUsed = true; isUsed; ) {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    isUsed = Object.keys(statesTo((server.address() as AddressInfo).port)).length > 0;
    if (isUsed) await once(server.close(), 'close');
  }
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

/** Answers each request, and leaves the close to the client. */
function respond(socket: Socket): void {
  socket
    .on('error', () => {})
    .on('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok');
    });
}

for (const scheme of ['http', 'https'] as const) {
  const start = (t: TestContext) =>
    listen(
      t,
      scheme === 'http'
        ? createServer(respond)
        : createTls({ cert: serverCertificate, key: serverKey }, respond).on('tlsClientError', () => {}),
    );
  const urlTo = (port: number) =>
    `${scheme}://${scheme === 'http' ? '127.0.0.1' : 'one.apps.example'}:${port}/`;

  test(`attack: hosts that leave the close to Nuncio use up no ports: deliveries, ${scheme}`, {
    skip,
  }, async (t) => {
    const port = await start(t);
    const sender = new Sender(egress);
    t.after(() => sender.close());
    const { origin } = new URL(urlTo(port));
    for (let count = 0; count < 20; count += 1) {
      const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
      const request = { origin, path: '/', headers: '', body: Buffer.from('{}'), traced: null };
      sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
      assert.equal((await promise).status, 200);
    }
    await assertClosed(port);
  });

  test(`attack: hosts that leave the close to Nuncio use up no ports: documents, ${scheme}`, {
    skip,
  }, async (t) => {
    const port = await start(t);
    const guarded = createGuardedFetch(egress, { timeoutMs: 60_000 });
    t.after(() => guarded.close());
    for (let count = 0; count < 20; count += 1) assert.equal((await guarded.fetch(urlTo(port))).status, 200);
    await assertClosed(port);
  });
}

test('attack: a host that reads nothing keeps no port after the timeout', { skip }, async (t) => {
  const port = await listen(
    t,
    createServer((socket) => socket.pause()),
  );
  const guarded = createGuardedFetch(egress, { timeoutMs: 500 });
  t.after(() => guarded.close());
  const body = 'a'.repeat(16_000_000);
  await assert.rejects(guarded.fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body }), {
    name: 'TimeoutError',
  });
  await assertClosed(port);
});

test('attack: a host that hangs in the handshake keeps no port after the timeout', { skip }, async (t) => {
  const port = await listen(
    t,
    createServer(() => {}),
  );
  const guarded = createGuardedFetch(egress, { timeoutMs: 500 });
  t.after(() => guarded.close());
  await assert.rejects(guarded.fetch(`https://one.apps.example:${port}/`), { name: 'TimeoutError' });
  await assertClosed(port);
});

/** Responds as soon as a request begins, and reads the rest later. */
function respondEarly(received: { bytes: number }, response: string): (socket: Socket) => void {
  return (socket) => {
    socket
      .on('error', () => {})
      .once('data', (chunk: Buffer) => {
        received.bytes += chunk.length;
        socket.pause();
        socket.write(response);
        setTimeout(() => socket.on('data', ({ length }: Buffer) => (received.bytes += length)).resume(), 300);
      });
  };
}

for (const scheme of ['http', 'https'] as const) {
  for (const [name, fields, length] of [
    ['close', 'connection: close\r\n', 2],
    ['keep-alive', '', 2],
    ['a response that is too long', '', 40_000],
  ] as const)
    test(`a host that responds early gets the whole delivery: ${scheme}, ${name}`, async (t) => {
      const received = { bytes: 0 };
      const head = `HTTP/1.1 200 OK\r\n${fields}content-length: ${length}\r\n\r\n`;
      const respond = respondEarly(received, head + 'a'.repeat(length));
      const port = await listen(
        t,
        scheme === 'http'
          ? createServer(respond)
          : createTls({ cert: serverCertificate, key: serverKey }, respond).on('tlsClientError', () => {}),
      );
      const sender = new Sender(egress);
      t.after(() => sender.close());
      const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
      const origin = `${scheme}://${scheme === 'http' ? '127.0.0.1' : 'one.apps.example'}:${port}`;
      const body = Buffer.alloc(250_000, 'a');
      const request = { origin, path: '/', headers: '', body, traced: null };
      sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
      assert.equal((await promise).status, 200);
      await until(
        async () => received.bytes,
        (bytes) => bytes > body.length,
      );
    });
}

test('a connection that makes room for another gives its host time to read', async (t) => {
  const received = { bytes: 0 };
  const keepAlive = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
  let resets = 0;
  const port = await listen(
    t,
    createServer((socket) => {
      respondEarly(received, keepAlive)(socket);
      socket.on('error', () => {
        resets += 1;
      });
    }),
  );
  const other = await listen(t, createServer(respondEarly({ bytes: 0 }, keepAlive)));
  const sender = new Sender({ ...egress, idleConnectionsMax: 1 });
  t.after(() => sender.close());
  const send = async (to: number, bytes: number) => {
    const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
    const origin = `http://127.0.0.1:${to}`;
    const request = { origin, path: '/', headers: '', body: Buffer.alloc(bytes), traced: null };
    sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
    return (await promise).status;
  };
  assert.equal(await send(port, 10_000), 200);
  // It is closed twice: for the other one, and when it would be used again.
  assert.equal(await send(other, 2), 200);
  assert.equal(await send(port, 10_000), 200);
  assert.equal(resets, 0);
  await until(
    async () => received.bytes,
    (bytes) => bytes > 20_000,
  );
});

test('attack: a host that sends without end after a short request gets no time', async (t) => {
  const ended = Promise.withResolvers<void>();
  let hasTimedOut = true;
  const port = await listen(
    t,
    createServer((socket) => {
      socket.once('data', () => {
        const begunAt = performance.now();
        const sent = setInterval(() => socket.write(Buffer.alloc(10_000)), 1);
        socket
          .on('error', () => {})
          .on('close', () => {
            hasTimedOut = performance.now() - begunAt > 1_900;
            clearInterval(sent);
            ended.resolve();
          })
          .write('HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n');
      });
    }),
  );
  const sender = new Sender(egress);
  t.after(() => sender.close());
  const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
  const request = {
    origin: `http://127.0.0.1:${port}`,
    path: '/',
    headers: '',
    body: Buffer.from('{}'),
    traced: null,
  };
  sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
  assert.equal((await promise).status, 200);
  await ended.promise;
  assert.ok(!hasTimedOut);
});

test('attack: a proxy that refuses tunnels and keeps its connections open costs no ports', {
  skip,
}, async (t) => {
  const port = await listen(
    t,
    createServer((socket) => {
      socket.on('data', () => socket.write('HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n'));
    }),
  );
  const proxy = { host: '127.0.0.1', port, authorization: null, connectionsMax: 100 };
  const resolveHost = async () => Array.from({ length: 16 }, (_, index) => `198.41.0.${index + 1}`);
  const guarded = createGuardedFetch({ allowLoopback: false, proxy, resolveHost });
  t.after(() => guarded.close());
  await assert.rejects(guarded.fetch('https://one.example/'), { code: 'connect_error' });
  await assertClosed(port);
});
