/** Connections of clients: how many a node accepts, in total and from one network. */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
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

/** Opens connections and sends a request on each. */
async function open({ baseUrl }: TestServer, count: number, localAddress: string): Promise<Opened[]> {
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
    socket.write('GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n');
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
