/** Turns of requests as they arrive, and connections with many that have no response. */

import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { Arrivals } from '../../src/http/overload/arrivals.ts';
import { readInTurns } from '../../src/http/overload/read_turns.ts';
import { undivided } from '../../src/shared/owner_turns.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });

const isNotShared = () => false;
const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`;

/** Sends text on a connection, and collects what comes until it ends or has so many responses. */
async function exchange(
  port: number,
  text: string,
  responses: number,
): Promise<{ received: string[]; isClosed: boolean }> {
  const socket = connect({ port, host: '127.0.0.1' });
  let received = '';
  let isClosed = false;
  socket.setEncoding('latin1').on('data', (piece: string) => {
    received += piece;
  });
  socket.on('error', () => {});
  socket.on('close', () => {
    isClosed = true;
  });
  socket.write(text);
  const lines = () => received.match(/HTTP\/1\.1 \d{3}/g) ?? [];
  await until(
    async () => isClosed || lines().length >= responses,
    (isOver) => isOver,
  );
  socket.destroy();
  return { received: lines(), isClosed };
}

test('some requests that were sent at once get their responses in order', async () => {
  const text = get('/livez') + get('/nothing') + get('/livez');
  const { received } = await exchange(server.config.port, text, 3);
  assert.deepEqual(received, ['HTTP/1.1 200', 'HTTP/1.1 404', 'HTTP/1.1 200']);
});

test('attack: a connection with thousands of requests at once is closed, and only some are handled', async () => {
  const { received, isClosed } = await exchange(server.config.port, get('/nothing').repeat(5_000), 5_000);
  assert.ok(isClosed);
  assert.ok(received.length <= 16, `${received.length} responses`);
  assert.equal((await fetch(`${server.baseUrl}/livez`)).status, 200);
});

test('attack: the same with requests that expect what does not exist, which Node.js would refuse itself', async () => {
  const text = 'GET /nothing HTTP/1.1\r\nHost: x\r\nExpect: y\r\n\r\n';
  const { received, isClosed } = await exchange(server.config.port, text.repeat(5_000), 5_000);
  assert.ok(isClosed);
  assert.ok(received.length <= 16, `${received.length} responses`);
  assert.deepEqual((await exchange(server.config.port, text, 1)).received, ['HTTP/1.1 404']);
});

test('the parser of a connection that is closed reads no further request', async (t) => {
  let requests = 0;
  const arrivals = new Arrivals(() => undivided(''), isNotShared);
  const own = createServer((request, response) => {
    requests += 1;
    arrivals.add(request, response, () => {});
  });
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const { port } = own.address() as AddressInfo;
  const { isClosed } = await exchange(port, get('/').repeat(2_000), 2_000);
  assert.ok(isClosed);
  // `Arrivals` sets a property of Node's parser, without which it would be all of them.
  assert.equal(requests, 17);
});

/** Sends requests on connections of their own. @returns them in the order of the names, when all have arrived */
async function arrive(t: TestContext, names: readonly string[]): Promise<Parameters<RequestListener>[]> {
  const arrived: Parameters<RequestListener>[] = [];
  const own = createServer((request, response) => arrived.push([request, response]));
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const { port } = own.address() as AddressInfo;
  for (const name of names) {
    const socket = connect({ port, host: '127.0.0.1' });
    t.after(() => socket.destroy());
    socket.write(get(`/${name}`));
  }
  await until(
    async () => arrived.length,
    (length) => length === names.length,
  );
  return arrived.sort(([one], [other]) => ((one.url ?? '') < (other.url ?? '') ? -1 : 1));
}

/** Keeps the processor busy. */
function work(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

const callers = ['a1', 'a2', 'a3', 'b1', 'c1'];
/** The first is handled at once; then the callers take turns. */
const turns = ['a1', 'a2', 'b1', 'c1', 'a3'];

test('requests are handled while there is time, then by turns of the callers', async (t) => {
  const arrivals = new Arrivals(({ url = '' }) => undivided(url.slice(1, 2)), isNotShared);
  const handled: string[] = [];
  for (const [request, response] of await arrive(t, callers)) {
    arrivals.add(request, response, () => {
      handled.push((request.url ?? '').slice(1));
      work(20);
      response.end();
    });
  }
  await until(
    async () => handled.length,
    (length) => length === callers.length,
  );
  assert.deepEqual(handled, turns);
});

test('attack: what requests do in promises counts as well', async (t) => {
  const arrivals = new Arrivals(({ url = '' }) => undivided(url.slice(1, 2)), isNotShared);
  const handled: string[] = [];
  for (const [request, response] of await arrive(t, callers)) {
    arrivals.add(request, response, async () => {
      await Promise.resolve();
      handled.push((request.url ?? '').slice(1));
      work(20);
      response.end();
    });
    // What one read of a connection does ends before the next in the same turn of the event loop.
    await new Promise<void>((resolve) => queueMicrotask(() => process.nextTick(resolve)));
  }
  await until(
    async () => handled.length,
    (length) => length === callers.length,
  );
  assert.deepEqual(handled, turns);
});

test('attack: a client with many connections of a proxy does not make another one wait', async (t) => {
  const arrivals = new Arrivals(
    ({ url = '' }) => undivided(url),
    () => true,
  );
  const handled: string[] = [];
  const own = createServer((request, response) =>
    arrivals.add(request, response, () => {
      handled.push(request.url ?? '');
      work(5);
      response.end();
    }),
  );
  readInTurns(own, ({ remotePort }) => undivided(`${remotePort}`));
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const { port } = own.address() as AddressInfo;
  const sockets = Array.from({ length: 100 }, () => connect({ port, host: '127.0.0.1' }));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  for (const socket of sockets.slice(0, -1)) socket.write(get('/many'));
  sockets.at(-1)?.write(get('/one'));
  await until(
    async () => handled.length,
    (length) => length === 100,
  );
  const before = handled.indexOf('/one');
  assert.ok(before < 20, `${before}`);
});

test('attack: requests that were sent at once, whose responses are not read, are handled one after the other', async (t) => {
  let handled = 0;
  const arrivals = new Arrivals(() => undivided(''), isNotShared);
  const own = createServer((request, response) =>
    arrivals.add(request, response, () => {
      handled += 1;
      // More than the kernel keeps for a connection.
      response.end(Buffer.alloc(33_554_432));
    }),
  );
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const socket = connect({ port: (own.address() as AddressInfo).port, host: '127.0.0.1' });
  t.after(() => socket.destroy());
  socket.write(get('/').repeat(3));
  await once(socket, 'readable');
  await setTimeout(100);
  assert.equal(handled, 1);
  socket.resume();
  await until(
    async () => handled,
    (count) => count === 3,
  );
});

test('attack: requests that wait for those before them are few on a node, whose heads it keeps', async (t) => {
  const arrivals = new Arrivals(() => undivided(''), isNotShared);
  const accepted = new Set<Socket>();
  const own = createServer((request, response) =>
    arrivals.add(request, response, () => {
      if (request.url === '/answered') response.end();
    }),
  );
  own.on('connection', (socket) => {
    accepted.add(socket);
    socket.on('close', () => accepted.delete(socket));
  });
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const { port } = own.address() as AddressInfo;
  const sockets = Array.from({ length: 100 }, () => {
    const socket = connect({ port, host: '127.0.0.1' }).on('error', () => {});
    t.after(() => socket.destroy());
    return socket;
  });
  for (const socket of sockets) socket.write(get('/').repeat(16));
  // Each of them has 15 that wait.
  await until(
    async () => accepted.size,
    (size) => size === Math.floor(1_024 / 15),
  );
  const text = get('/answered');
  assert.deepEqual((await exchange(port, text, 1)).received, ['HTTP/1.1 200']);
  assert.deepEqual((await exchange(port, text.repeat(16), 16)).isClosed, true);
  for (const socket of sockets) socket.destroy();
  await until(
    async () => accepted.size,
    (size) => size === 0,
  );
  assert.equal((await exchange(port, text.repeat(16), 16)).received.length, 16);
});

test('attack: busy connections do not make new ones wait, of which each turn accepts one', async (t) => {
  const connections = 60;
  let accepted = 0;
  let handled = 0;
  const countAccepted = () => {
    accepted += 1;
  };
  const countHandled = () => {
    if (accepted > connections && accepted < 2 * connections) handled += 1;
  };
  subscribe('net.server.socket', countAccepted);
  subscribe('http.server.response.finish', countHandled);
  t.after(() => {
    unsubscribe('net.server.socket', countAccepted);
    unsubscribe('http.server.response.finish', countHandled);
  });
  const open = () => {
    const socket = connect({ port: server.config.port, host: '127.0.0.1' });
    t.after(() => socket.destroy());
    return socket;
  };
  let responses = 0;
  for (let number = 0; number < connections; number += 1) {
    const socket = open();
    socket.write(get('/nothing'));
    socket.on('data', () => {
      responses += 1;
      socket.write(get('/nothing'));
    });
  }
  await until(
    async () => accepted === connections && responses > connections,
    (isBusy) => isBusy,
  );
  for (let number = 0; number < connections; number += 1) open();
  await until(
    async () => accepted,
    (count) => count === 2 * connections,
  );
  assert.ok(handled <= 4 * connections, `${handled} requests while ${connections} connections were accepted`);
});
