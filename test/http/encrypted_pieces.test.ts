/** TLS connections whose encrypted bytes are processed in turns. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import { type AddressInfo, connect } from 'node:net';
import { Duplex } from 'node:stream';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { Agent, request } from 'undici';
import { readInTurns } from '../../src/http/overload/read_turns.ts';
import { undivided } from '../../src/shared/owner_turns.ts';
import { authorityCertificate, serverCertificate, serverKey } from '../support/network/certificates.ts';
import { openRecordClient, type RecordClient } from '../support/network/tls_records.ts';

type Handle = (request: IncomingMessage, response: ServerResponse) => void;

async function start(handle: Handle): Promise<{ own: Server; port: number; agent: Agent }> {
  const own = createServer({ cert: serverCertificate, key: serverKey }, handle);
  readInTurns(own, ({ remoteAddress }) => undivided(remoteAddress ?? ''));
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  const agent = new Agent({ connect: { ca: authorityCertificate } });
  after(async () => {
    await agent.destroy();
    own.closeAllConnections();
    own.close();
  });
  return { own, port: (own.address() as AddressInfo).port, agent };
}

test('a TLS connection has the addresses of its TCP connection', async () => {
  const { port, agent } = await start(({ socket }, response) => {
    const { remoteAddress, remoteFamily, remotePort, localAddress, localPort } = socket;
    response.end(JSON.stringify({ remoteAddress, remoteFamily, remotePort, localAddress, localPort }));
  });
  const { body } = await request(`https://localhost:${port}/`, { dispatcher: agent });
  const { remotePort, ...addresses } = (await body.json()) as Record<string, unknown>;
  const local = '127.0.0.1';
  assert.deepEqual(addresses, {
    remoteAddress: local,
    remoteFamily: 'IPv4',
    localAddress: local,
    localPort: port,
  });
  assert.equal(typeof remotePort, 'number');
});

test('attack: TLS records of one byte do not keep the others waiting', async () => {
  const connections = 40;
  let read = 0;
  let readBefore: number | undefined;
  const { port } = await start((incoming, response) => {
    if (incoming.url === '/stranger') {
      readBefore = read;
      response.end();
      return;
    }
    incoming.on('data', () => {
      read += 1;
    });
  });
  const flood = 800;
  const attackers = await Promise.all(
    Array.from({ length: connections }, () => openRecordClient(port, '127.0.0.2')),
  );
  const stranger = await openRecordClient(port, '127.0.0.3');
  const bursts = attackers.map(({ data }) => {
    const head = data('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n');
    return Buffer.concat([head, ...Array.from({ length: flood }, () => data('x'))]);
  });
  for (const [index, { tcp }] of attackers.entries()) tcp.write(bursts[index] as Buffer);
  stranger.tls.write('GET /stranger HTTP/1.1\r\nHost: x\r\n\r\n');
  await once(stranger.tls, 'data');
  assert.ok((readBefore ?? 0) < (connections * flood) / 2, `${readBefore} of ${connections * flood}`);
  for (const { tls } of [...attackers, stranger]) tls.destroy();
});

/** The first bytes of a TLS client. */
async function clientHello(): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  const socket = new Duplex({ read() {}, write: (chunk: Buffer) => resolve(chunk) });
  const tls = connectTls({ socket });
  tls.on('error', () => {});
  const hello = await promise;
  tls.destroy();
  return hello;
}

test('attack: handshakes of many addresses do not keep connections waiting', async (t) => {
  const addresses = 100;
  let answered = 0;
  let answeredBefore: number | undefined;
  const { port, own } = await start((_incoming, response) => {
    answeredBefore = answered;
    response.end();
  });
  // There are keys of each handshake that the server has worked at. Node.js must know before there are connections.
  const { promise: allAnswered, resolve: end } = Promise.withResolvers<void>();
  const seen = new WeakSet<object>();
  own.on('keylog', (_line: Buffer, tls: object) => {
    if (seen.has(tls)) return;
    seen.add(tls);
    answered += 1;
    // The stranger has one too.
    if (answered === addresses + 1) end();
  });
  const stranger = await openRecordClient(port, '127.0.0.3');
  const hello = await clientHello();
  const attackers = await Promise.all(
    Array.from({ length: addresses }, async (_, index) => {
      const tcp = connect({ port, host: '127.0.0.1', localAddress: `127.0.1.${index + 1}` });
      tcp.on('error', () => {});
      t.after(() => tcp.destroy());
      await once(tcp, 'connect');
      return tcp;
    }),
  );
  for (const tcp of attackers) tcp.write(hello);
  stranger.tls.write('GET /stranger HTTP/1.1\r\nHost: x\r\n\r\n');
  await once(stranger.tls, 'data');
  assert.ok((answeredBefore ?? addresses) < addresses / 2, `${answeredBefore} of ${addresses}`);
  await allAnswered;
  stranger.tls.destroy();
});

/** What a client may do next, and its records. */
const steps: readonly ((client: RecordClient) => void)[] = [
  ({ tcp, data }) => void tcp.write(data('GET / HTTP/1.1\r\nHost: x\r\n\r\n')),
  ({ tcp, data }) => void tcp.write(data('GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')),
  ({ tcp, data }) => void tcp.write(data('nonsense\r\n\r\n')),
  ({ tcp, keyUpdate }) => void tcp.write(Buffer.concat(Array.from({ length: 300 }, keyUpdate))),
  ({ tcp, data, keyUpdate }) =>
    void tcp.write(
      Buffer.concat([
        data('GET /ended HTTP/1.1\r\nHost: x\r\n\r\n'),
        ...Array.from({ length: 900 }, keyUpdate),
      ]),
    ),
  ({ tcp }) => void tcp.write(Buffer.alloc(9_000, 23)),
  ({ tcp }) => void tcp.end(),
  ({ tcp }) => void tcp.destroy(),
  ({ tls }) => void tls.pause(),
];

test('attack: whatever a client sends before or after the end of its connection, the server continues', async () => {
  const { own, port, agent } = await start(({ url, socket }, response) => {
    // Ends its own side, and waits for the client's.
    if (url === '/ended') socket.end();
    else response.end('x'.repeat(100_000));
  });
  own.keepAliveTimeout = 50;
  let state = 7;
  // Repeatable (Lehmer's generator).
  const roll = (limit: number) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % limit;
  };
  const failed: unknown[] = [];
  const onError = (error: unknown) => void failed.push(error);
  process.on('uncaughtException', onError);
  for (let round = 0; round < 10; round += 1) {
    const clients = await Promise.all(Array.from({ length: 20 }, () => openRecordClient(port, '127.0.0.2')));
    for (const { tls } of clients) tls.resume();
    for (let step = 0; step < 6; step += 1) {
      for (const client of clients) if (client.tcp.writable) steps[roll(steps.length)]?.(client);
      await sleep(roll(30));
    }
    for (const { tcp } of clients) tcp.destroy();
  }
  const raw = connect({ port, host: '127.0.0.1' });
  raw.end('no handshake');
  await once(raw.resume(), 'close');
  const { body } = await request(`https://localhost:${port}/`, { dispatcher: agent });
  assert.equal((await body.text()).length, 100_000);
  process.off('uncaughtException', onError);
  assert.deepEqual(failed, []);
});
