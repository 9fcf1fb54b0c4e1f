/** Connections of clients: how many a node accepts, in total and from one network. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, type TestContext, test } from 'node:test';
import Fastify from 'fastify';
import { Registry } from 'prom-client';
import { limitConnections } from '../../src/http/overload/connection_limit.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const metricsToken = 'a-token-for-metrics';
const environment = { NUNCIO_CLIENT_CONNECTIONS: '32', NUNCIO_METRICS_TOKEN: metricsToken };
const behindProxy = await startTestServer({ after }, { ...environment, NUNCIO_TRUST_PROXY: '127.0.0.1' });
const direct = await startTestServer({ after }, environment);

/** A connection, the first line of the response to a request on it, and whether it was closed without one. */
interface Opened {
  socket: Socket;
  status: string | null;
  isClosed: boolean;
}

const plainRequest = 'GET /livez HTTP/1.1\r\nHost: localhost\r\n';

/** Opens connections and sends a request on each. @param head of the request, without its end */
async function open(
  { baseUrl }: TestServer,
  count: number,
  localAddress: string,
  head = plainRequest,
): Promise<Opened[]> {
  const { port } = new URL(baseUrl);
  const all = Array.from({ length: count }, () => {
    const socket = connect({ port: Number(port), host: '127.0.0.1', localAddress });
    const opened: Opened = { socket, status: null, isClosed: false };
    socket.on('error', () => {});
    socket.on('close', () => {
      opened.isClosed = true;
    });
    socket.once('data', (chunk) => {
      opened.status = chunk.toString().split('\r\n', 1)[0] ?? '';
    });
    socket.write(`${head}\r\n`);
    return opened;
  });
  await until(
    async () => all,
    (each) => each.every(({ status, isClosed }) => status !== null || isClosed),
  );
  return all;
}

const served = (opened: readonly Opened[]) =>
  opened.filter(({ status }) => status === 'HTTP/1.1 200 OK').length;

async function metric({ baseUrl }: TestServer, name: string): Promise<number> {
  const headers = { authorization: `Bearer ${metricsToken}`, connection: 'close' };
  const text = await (await fetch(`${baseUrl}/metrics`, { headers })).text();
  return Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(text)?.[1]);
}

test('attack: one address opens all connections: it gets 7/16 of them, and another address is served', async (t) => {
  const flood = await open(direct, 40, '127.0.0.2');
  t.after(() => {
    for (const { socket } of flood) socket.destroy();
  });
  assert.equal(served(flood), 14);
  const [other] = await open(direct, 1, '127.0.0.3');
  assert.equal(other?.status, 'HTTP/1.1 200 OK');
  other?.socket.destroy();
  assert.equal(await metric(direct, 'nuncio_connections_refused_total'), 26);
  for (const { socket } of flood) socket.destroy();
  // Those of the test itself, and those that are just ending.
  await until(
    () => metric(direct, 'nuncio_client_connections'),
    (count) => count <= 2,
  );
  const again = await open(direct, 14, '127.0.0.2');
  assert.equal(served(again), 14);
  for (const { socket } of again) socket.destroy();
});

test('a trusted proxy may have all connections', async () => {
  const flood = await open(behindProxy, 40, '127.0.0.1');
  assert.equal(served(flood), 32);
  for (const { socket } of flood) socket.destroy();
});

test('attack: one client of a proxy keeps its connections after their responses, and another client is served', async (t) => {
  const of = (address: string) => `${plainRequest}X-Forwarded-For: ${address}\r\n`;
  const flood = await open(behindProxy, 40, '127.0.0.1', of('192.0.2.1'));
  t.after(() => {
    for (const { socket } of flood) socket.destroy();
  });
  const refused = flood.filter(({ status }) => status === 'HTTP/1.1 503 Service Unavailable');
  assert.equal(served(flood), 14);
  // Those beyond all connections get no response.
  assert.ok(refused.length >= 18, `${refused.length} refused`);
  await until(
    async () => refused,
    (each) => each.every(({ isClosed }) => isClosed),
  );
  const others = await open(behindProxy, 4, '127.0.0.1', of('192.0.2.2'));
  assert.equal(served(others), 4);
  for (const { socket } of others) socket.destroy();
});

test('a connection of a proxy belongs to the client of its last request', async (t) => {
  const { port } = new URL(behindProxy.baseUrl);
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  const connectMore = (count: number) => {
    const more = Array.from({ length: count }, () => connect({ port: Number(port), host: '127.0.0.1' }));
    sockets.push(...more);
    return more;
  };
  // One after the other, because the share depends on what all have.
  const askOn = async (each: readonly Socket[], address: string) => {
    for (const socket of each) {
      socket.write(`${plainRequest}X-Forwarded-For: ${address}\r\n\r\n`);
      const [chunk] = await once(socket, 'data');
      assert.match(String(chunk), /^HTTP\/1\.1 200 OK/, address);
    }
  };
  const first = connectMore(12);
  await askOn(first, '192.0.2.3');
  await askOn(first, '192.0.2.4');
  await askOn(connectMore(8), '192.0.2.3');
});

/** A server with room for 32 connections, of which each gets an address here: a machine has no addresses of other networks. */
async function startForSites(t: TestContext) {
  const app = Fastify();
  const addresses: string[] = [];
  app.server.on('connection', (socket) =>
    Object.defineProperty(socket, 'remoteAddress', { value: addresses.shift() }),
  );
  limitConnections(app, {
    registry: new Registry(),
    connectionsMax: 32,
    trustProxy: [],
    page: (_problem, _request, reply) => reply,
  });
  app.get('/', async () => 'served');
  app.get('/hanging', (_request, reply) => {
    reply.raw.writeHead(200).write('served');
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    return app.close();
  });
  /** Opens a connection from an address and sends a request. @returns the connection; null if it was closed at once */
  return async (address: string, path = '/') => {
    addresses.push(address);
    const { port } = app.server.address() as AddressInfo;
    const socket = connect({ port, host: '127.0.0.1' });
    sockets.push(socket);
    socket.on('error', () => {});
    socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
    return new Promise<Socket | null>((resolve) => {
      socket.once('data', () => resolve(socket)).once('close', () => resolve(null));
    });
  };
}

const closedOf = (sockets: readonly (Socket | null)[]) =>
  sockets.filter((socket) => socket?.closed === true).length;

test('attack: the networks of one site open all connections: they get 7/16 of them', async (t) => {
  const openFrom = await startForSites(t);
  let ofSite = 0;
  for (let network = 0; network < 40; network += 1) {
    if (await openFrom(`2001:db8:0:${network.toString(16)}::1`)) ofSite += 1;
  }
  assert.equal(ofSite, 14);
  assert.ok(await openFrom('2001:db8:1::1'));
  assert.ok(await openFrom('192.0.2.1'));
});

test('attack: a network uses up what its site may have: others take places of it', async (t) => {
  const openFrom = await startForSites(t);
  const idle: (Socket | null)[] = [];
  for (let count = 0; count < 5; count += 1) idle.push(await openFrom('2001:db8::1'));
  const busy: (Socket | null)[] = [];
  while (busy.at(-1) !== null) busy.push(await openFrom('2001:db8::1', '/hanging'));
  busy.pop();
  const all = idle.length + busy.length;
  // Of another site, so that nothing is left for the first one.
  while ((await openFrom('2001:db8:1::1')) !== null);
  const others: (Socket | null)[] = [];
  for (let count = 0; count < 5; count += 1) {
    others.push(await openFrom('2001:db8:0:1::1'));
    await until(
      async () => closedOf(idle) + closedOf(busy),
      (closed) => closed === others.length,
    );
  }
  assert.ok(!others.includes(null));
  // Those without a request first.
  assert.deepEqual([closedOf(idle), closedOf(busy)], [5, 0]);
  while (others.at(-1) !== null) others.push(await openFrom('2001:db8:0:1::1'));
  others.pop();
  assert.equal(others.length, Math.floor(all / 2));
  await until(
    async () => closedOf(idle) + closedOf(busy),
    (closed) => closed === others.length,
  );
  assert.equal(closedOf(others), 0);
  // Those of no other site.
  assert.equal(await openFrom('2001:db8:1::1'), null);
});
