/** Turns of what connections send. */

import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { type AddressInfo, connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { Agent, request } from 'undici';
import { readInTurns } from '../../src/http/overload/read_turns.ts';
import { undivided } from '../../src/shared/owner_turns.ts';
import { authorityCertificate, serverCertificate, serverKey } from '../support/network/certificates.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });

async function open(localAddress: string): Promise<Socket> {
  const socket = connect({ port: server.config.port, host: '127.0.0.1', localAddress });
  socket.on('error', () => {});
  after(() => socket.destroy());
  await once(socket, 'connect');
  return socket;
}

test('attack: connections with bodies in chunks of one byte do not keep the others waiting', async (t) => {
  const connections = 100;
  const head = 'GET /nothing HTTP/1.1\r\nHost: x\r\n';
  const flood = `${head}Transfer-Encoding: chunked\r\n\r\n${'1\r\n1\r\n'.repeat(10_000)}`;
  const attackers = await Promise.all(Array.from({ length: connections }, () => open('127.0.0.2')));
  const stranger = await open('127.0.0.3');
  // All are accepted.
  stranger.write(`${head}\r\n`);
  await once(stranger, 'data');
  let read = 0;
  const count = () => {
    read += 1;
  };
  subscribe('http.server.request.start', count);
  t.after(() => unsubscribe('http.server.request.start', count));
  const served = new Promise<number>((resolve) => stranger.once('data', () => resolve(read)));
  for (const attacker of attackers) attacker.write(flood);
  stranger.write(`${head}\r\n`);
  const before = await served;
  assert.ok(before < connections / 2, `after ${before} of ${connections}`);
  await until(
    async () => read,
    (total) => total === connections + 1,
  );
});

for (const isTls of [false, true]) {
  test(`what a connection sends stays in order, also what waits for its turn${isTls ? ' (TLS)' : ''}`, async (t) => {
    const handle: RequestListener = async (request, response) => {
      const hash = createHash('sha256');
      for await (const piece of request) {
        hash.update(piece as Buffer);
        // Longer than a turn, so that the next piece waits.
        const end = performance.now() + 15;
        while (performance.now() < end);
      }
      response.end(hash.digest('hex'));
    };
    const own = isTls
      ? createTlsServer({ cert: serverCertificate, key: serverKey }, handle)
      : createServer(handle);
    let waits = 0;
    readInTurns(own, () => {
      waits += 1;
      return undivided('');
    });
    own.listen(0, '127.0.0.1');
    await once(own, 'listening');
    const agent = new Agent({ connect: { ca: authorityCertificate } });
    t.after(async () => {
      await agent.close();
      own.close();
    });
    const bodies = Array.from({ length: 5 }, () => randomBytes(500_000));
    const { port } = own.address() as AddressInfo;
    const url = `${isTls ? 'https' : 'http'}://localhost:${port}/`;
    const answers = await Promise.all(
      bodies.map(async (body) => {
        const response = await request(url, { method: 'POST', body, dispatcher: agent });
        return response.body.text();
      }),
    );
    assert.deepEqual(
      answers,
      bodies.map((body) => createHash('sha256').update(body).digest('hex')),
    );
    assert.ok(waits > 0, 'something waited');
  });
}

test('a connection that ends while it waits for its turn is ended', async (t) => {
  const own = createServer((_request, response) => {
    const end = performance.now() + 30;
    while (performance.now() < end);
    response.end();
  });
  readInTurns(own, ({ remotePort }) => undivided(`${remotePort}`));
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const { port } = own.address() as AddressInfo;
  const sockets = Array.from({ length: 10 }, () => connect({ port, host: '127.0.0.1' }));
  for (const socket of sockets) {
    socket.on('error', () => {});
    socket.end('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
    socket.resume();
  }
  await Promise.all(sockets.map((socket) => once(socket, 'close')));
  const count = await new Promise<number>((resolve) => own.getConnections((_error, open) => resolve(open)));
  assert.equal(count, 0);
});
