/** Clients that request large responses and do not read them. */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import Fastify, { type FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { createApplication } from '../../src/http/application.ts';
import { chooseUnread, limitUnreadResponses } from '../../src/http/unread_responses.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

/** More than the kernel keeps for a connection. */
const bytes = 33_554_432;
const body = Buffer.alloc(bytes, 'x');
const limits = { bytesMax: 3 * bytes, unreadMsMax: 3_600_000, unreadMsMin: 0, checkMs: 20 };

async function listen(t: TestContext, app: FastifyInstance): Promise<number> {
  app.get('/large', (_request, reply) => reply.send(body));
  await app.listen({ port: 0, host: '0.0.0.0' });
  t.after(() => app.close());
  return (app.server.address() as { port: number }).port;
}

/** Requests the response and reads its beginning only. */
async function open(t: TestContext, port: number, from: string): Promise<Socket> {
  const socket = connect({ port, host: '127.0.0.1', localAddress: from });
  t.after(async () => socket.destroy());
  socket.on('error', () => {}).on('close', () => socket.destroy());
  await new Promise((resolve) => socket.once('connect', resolve));
  socket.write('GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n');
  await new Promise((resolve) => socket.once('readable', resolve));
  return socket;
}

/** The server's side of connections. */
function watchServer(app: FastifyInstance): Map<string, Set<Socket>> {
  const open = new Map<string, Set<Socket>>();
  app.server.on('connection', (socket: Socket) => {
    const address = socket.remoteAddress as string;
    const those = open.get(address) ?? new Set();
    open.set(address, those.add(socket));
    socket.on('close', () => those.delete(socket));
  });
  return open;
}

test('an address that leaves too much unread loses connections, and others keep theirs', async (t) => {
  const app = Fastify();
  limitUnreadResponses(app, limits);
  const sockets = watchServer(app);
  const port = await listen(t, app);
  // A tool of the console's API sends such a request.
  await app.inject('/large');
  const stranger = await open(t, port, '127.0.0.1');
  for (let number = 0; number < 12; number += 1) await open(t, port, '127.0.0.2');
  const unread = () =>
    [...sockets.values()].flatMap((each) => [...each]).reduce((sum, each) => sum + each.writableLength, 0);
  await until(
    async () => unread(),
    (sum) => sum <= limits.bytesMax,
  );
  assert.ok((sockets.get('127.0.0.2')?.size ?? 0) < 12);
  assert.equal(sockets.get('127.0.0.1')?.size, 1);
  let received = 0;
  await new Promise<void>((resolve) => {
    stranger.on('data', (part: Buffer) => {
      received += part.length;
      if (received >= bytes) resolve();
    });
  });
});

test('a client that takes nothing for too long is disconnected', async (t) => {
  const app = Fastify();
  limitUnreadResponses(app, { ...limits, unreadMsMax: 50 });
  const sockets = watchServer(app);
  const port = await listen(t, app);
  await open(t, port, '127.0.0.2');
  await until(
    async () => sockets.get('127.0.0.2')?.size,
    (size) => size === 0,
  );
});

test('the server bounds what its clients leave unread', async (t) => {
  const server = await startTestServer(t);
  const app = createApplication(server.config, pino({ level: 'silent' }));
  const sockets = watchServer(app);
  const port = await listen(t, app);
  for (let number = 0; number < 8; number += 1) await open(t, port, '127.0.0.2');
  await until(
    async () => sockets.get('127.0.0.2')?.size ?? 0,
    (size) => size < 8,
  );
});

test('attack: thousands of networks with one connection each do not keep the thread busy', async () => {
  const chooseOf = (count: number) => {
    const unread = Array.from({ length: count }, (_, index) => ({
      network: `network-${index}`,
      // In no order.
      bytes: 100_000 + ((index * 7_919) % 104_729),
      since: 0,
    }));
    const most = { ...limits, bytesMax: 10_000_000, unreadMsMin: 0 };
    return () => {
      const chosen = chooseUnread(unread, 1, most);
      assert.ok(chosen.length > count * 0.8 && chosen.length < count);
    };
  };
  const ratio = await timesAsMuch(chooseOf(3_000), chooseOf(750));
  assert.ok(ratio < 12, `${ratio} times as much for four times as many`);
});
