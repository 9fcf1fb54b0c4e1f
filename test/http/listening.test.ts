/** The sockets of a server's port. */

import assert from 'node:assert/strict';
import cluster from 'node:cluster';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import Fastify, { type FastifyInstance } from 'fastify';
import { listen } from '../../src/http/listening.ts';
import { until } from '../support/webhooks/apps.ts';

const host = '127.0.0.1';
const onLinux = { skip: process.platform !== 'linux' && 'a port has one socket' };
/** So many that each socket has some. */
const many = 100;
const get = (path: string, connection: string) =>
  `GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: ${connection}\r\n\r\n`;

interface Running {
  app: FastifyInstance;
  port: number;
  /** Ends the requests for `/slow`. */
  finish: () => void;
  /** How many requests for `/slow` wait. */
  slow: () => number;
}

async function start(t: TestContext): Promise<Running> {
  const app = Fastify({
    forceCloseConnections: 'idle',
    clientErrorHandler: (_error, socket) => void socket.end('HTTP/1.1 400 Ours\r\n\r\n'),
  });
  const waiting: (() => void)[] = [];
  app.get('/', async () => 'here');
  app.get('/slow', async () => {
    await new Promise<void>((resolve) => waiting.push(resolve));
    return 'here';
  });
  t.after(() => app.close());
  await listen(app, host, 0);
  const finish = () => {
    for (const resolve of waiting) resolve();
  };
  return { app, port: (app.server.address() as AddressInfo).port, finish, slow: () => waiting.length };
}

function connectMany(t: TestContext, port: number): Socket[] {
  const sockets = Array.from({ length: many }, () => connect(port, host).on('error', () => {}));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  return sockets;
}

/** Connections of the sockets besides the first one, whose own connections the server counts. */
async function connectToOthers(t: TestContext, { server }: FastifyInstance, port: number): Promise<Socket[]> {
  const sockets: Socket[] = [];
  const countOwn = () =>
    new Promise<number>((resolve) => server.getConnections((_error, count) => resolve(count)));
  while (sockets.length < 20) {
    const before = await countOwn();
    const accepted = once(server, 'connection');
    const socket = connect(port, host);
    t.after(() => socket.destroy());
    await accepted;
    if ((await countOwn()) === before) sockets.push(socket);
  }
  return sockets;
}

test('a turn of the event loop accepts several connections', onLinux, async (t) => {
  const { app, port } = await start(t);
  const turns: number[] = [0];
  app.server.on('connection', () => {
    turns[turns.length - 1] = (turns.at(-1) ?? 0) + 1;
  });
  connectMany(t, port);
  let isOver = false;
  const countTurn = () => {
    turns.push(0);
    if (!isOver) setImmediate(countTurn);
  };
  setImmediate(countTurn);
  await until(
    async () => turns.reduce((sum, count) => sum + count, 0),
    (sum) => sum === many,
  );
  isOver = true;
  assert.ok(Math.max(...turns) > 1, turns.filter((count) => count > 0).join());
});

test('connections of all sockets are the server’s: requests, errors and timeouts', async (t) => {
  const { app, port } = await start(t);
  const responses = connectMany(t, port).map(async (socket, index) => {
    socket.end(index % 2 === 0 ? get('/', 'close') : 'no request\r\n\r\n');
    return (await text(socket)).split('\r\n', 1)[0];
  });
  assert.deepEqual(new Set(await Promise.all(responses)), new Set(['HTTP/1.1 200 OK', 'HTTP/1.1 400 Ours']));
  app.server.setTimeout(1, (socket) => socket.end('late'));
  const late = connectMany(t, port).map((socket) => text(socket));
  assert.deepEqual(new Set(await Promise.all(late)), new Set(['late']));
});

test(
  'closing refuses connections, ends idle ones and waits for the requests of all sockets',
  onLinux,
  async (t) => {
    const { app, port, slow, finish } = await start(t);
    const busy = await connectToOthers(t, app, port);
    const idle = connectMany(t, port);
    for (const socket of busy) socket.write(get('/slow', 'close'));
    for (const socket of idle) socket.write(get('/', 'keep-alive'));
    await Promise.all(idle.map((socket) => once(socket, 'data')));
    await until(
      async () => slow(),
      (count) => count === busy.length,
    );
    const texts = Promise.all(busy.map((socket) => text(socket)));
    let isClosed = false;
    const closed = app.close().then(() => {
      isClosed = true;
    });
    await Promise.all(idle.map((socket) => text(socket)));
    const errors = connectMany(t, port).map(async (socket) => (await once(socket, 'error'))[0].code);
    assert.deepEqual(new Set(await Promise.all(errors)), new Set(['ECONNREFUSED']));
    assert.equal(isClosed, false);
    finish();
    assert.ok((await texts).every((each) => each.startsWith('HTTP/1.1 200 OK')));
    await closed;
  },
);

test('a port that another server has is refused, also if it would share it', onLinux, async (t) => {
  const other = createServer().listen({ host, port: 0, reusePort: true });
  t.after(() => other.close());
  await once(other, 'listening');
  const { port } = other.address() as AddressInfo;
  const app = Fastify();
  t.after(() => app.close());
  await assert.rejects(listen(app, host, port), { code: 'EADDRINUSE' });
});

test('workers of a cluster share a port', async (t) => {
  const free = createServer().listen({ host, port: 0 });
  await once(free, 'listening');
  const { port } = free.address() as AddressInfo;
  free.close();
  await once(free, 'close');
  cluster.setupPrimary({ exec: fileURLToPath(import.meta.resolve('../support/servers/cluster_worker.ts')) });
  for (let count = 0; count < 2; count += 1) {
    const worker = cluster.fork({ TEST_PORT: String(port) });
    t.after(() => worker.process.kill('SIGKILL'));
    assert.deepEqual((await once(worker, 'message'))[0], 'listens');
  }
});
