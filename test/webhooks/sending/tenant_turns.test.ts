/** Tenants whose hosts have one address, such as that of a content delivery network. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  type AddressInfo,
  connect as connectTcp,
  createServer as createTcp,
  type Server,
  type Socket,
} from 'node:net';
import { type TestContext, test } from 'node:test';
import { createServer } from 'node:tls';
import { createGuardedFetch } from '../../../src/egress/fetch.ts';
import { takeBeginningTurn, takeHandshakeTurn, takeRecordTurn } from '../../../src/egress/tls_turns.ts';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';
import { serverCertificate, serverKey } from '../../support/network/certificates.ts';
import { siteEgress, startSite } from '../../support/network/site.ts';

for (const [work, takeTurn] of [
  ['handshakes', takeHandshakeTurn],
  ['beginnings of connections', takeBeginningTurn],
] as const) {
  test(`attack: a tenant whose ${work} never end at an address delays those of no other tenant there`, async (t) => {
    const site = await startSite(t);
    site.serve('/hooks', { status: 200 });
    site.serve('/document', { status: 200, body: 'text' });
    const egress = { ...siteEgress, allowLoopback: true };
    const sender = new Sender(egress);
    t.after(() => sender.close());
    const guarded = createGuardedFetch(egress, { timeoutMs: 60_000 });
    t.after(() => guarded.close());
    const { port, origin } = new URL(site.url('/hooks'));
    let isOver = false;
    t.after(() => {
      isOver = true;
    });
    const peer = { address: '127.0.0.1', port: Number(port), user: { tenant: 'hostile' } };
    const takeAgain = (): boolean => {
      const endsAt = performance.now() + 1;
      while (!isOver && performance.now() < endsAt);
      if (!isOver) setImmediate(() => takeTurn(peer, takeAgain));
      return true;
    };
    for (let count = 0; count < 10_000; count += 1) takeTurn(peer, takeAgain);
    const send = (tenant: string) =>
      new Promise<ExchangeResult>((resolve) => {
        const request = {
          origin,
          path: '/hooks',
          headers: '',
          body: Buffer.from('{}'),
          traced: null,
          tenant,
        };
        sender.send(request, resolve, undefined, { timeoutMs: 60_000 });
      });
    let hasWaited = true;
    const own = send('hostile').then((result) => {
      hasWaited = isOver;
      return result;
    });
    assert.equal((await send('other')).status, 200);
    const document = await guarded.fetch(site.url('/document'), { tenant: 'another' });
    assert.equal(await document.text(), 'text');
    isOver = true;
    assert.equal((await own).status, 200);
    assert.ok(hasWaited, 'the last of ten thousand in the queue of its tenant');
  });
}

test('a handshake whose request is over is given up in its turn, and the connection is closed', async (t) => {
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  const server = createServer({ cert: serverCertificate, key: serverKey });
  server.on('connection', (socket: Socket) => socket.on('error', () => {}).on('close', () => resolve()));
  server.on('tlsClientError', () => {}).on('secureConnection', () => assert.fail('the handshake went on'));
  const port = await listen(t, server);
  const guarded = createGuardedFetch({ ...siteEgress, allowLoopback: true }, { timeoutMs: 300 });
  t.after(() => guarded.close());
  const peer = { address: '127.0.0.1', port, user: { tenant: 'tenant' } };
  let isOver = false;
  t.after(() => {
    isOver = true;
  });
  // Takes each turn, for a millisecond, until the request is over: its own turn would come after a second.
  const shakeAgain = (): boolean => {
    const endsAt = performance.now() + 1;
    while (!isOver && performance.now() < endsAt);
    if (!isOver) takeHandshakeTurn(peer, shakeAgain);
    return true;
  };
  for (let count = 0; count < 1_000; count += 1) takeHandshakeTurn(peer, shakeAgain);
  const url = `https://one.apps.example:${port}/document`;
  await assert.rejects(guarded.fetch(url, { tenant: 'tenant' }), { name: 'TimeoutError' });
  isOver = true;
  await closed;
});

async function listen(t: TestContext, server: Server): Promise<number> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  return (server.address() as AddressInfo).port;
}

test('a response whose records wait for a turn is complete although the host has closed the connection', async (t) => {
  const body = 'text'.repeat(1_000);
  const head = `HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n`;
  const server = createServer({ cert: serverCertificate, key: serverKey }, (socket) => {
    socket.on('error', () => {}).once('data', () => socket.end(head + body));
  });
  const port = await listen(t, server);
  // The response and the end of the connection arrive together.
  const between = createTcp({ noDelay: true, allowHalfOpen: true }, (client) => {
    const tcp = connectTcp({ port, host: '127.0.0.1', noDelay: true });
    const held: Buffer[] = [];
    client.on('error', () => {}).on('data', (chunk) => tcp.write(chunk));
    tcp
      .on('error', () => {})
      .on('data', (chunk: Buffer) => {
        if (held.length > 0 || chunk.length > body.length) held.push(chunk);
        else client.write(chunk);
      })
      .on('end', () => client.end(Buffer.concat(held)));
  });
  const url = `https://one.apps.example:${await listen(t, between)}/document`;
  const guarded = createGuardedFetch({ ...siteEgress, allowLoopback: true }, { timeoutMs: 60_000 });
  t.after(() => guarded.close());
  let isOver = false;
  t.after(() => {
    isOver = true;
  });
  // Each takes more than a turn has for records.
  const readLong = (tenant: string): void => {
    const read = () => {
      const until = performance.now() + 6;
      while (performance.now() < until);
      if (!isOver) setImmediate(() => readLong(tenant));
    };
    takeRecordTurn({ address: '192.0.2.1', port: 443, user: { tenant } }, 4_096, read);
  };
  for (let count = 0; count < 10; count += 1) readLong(`hostile ${count}`);
  for (let count = 0; count < 5; count += 1) {
    const response = await guarded.fetch(url, { tenant: 'other' });
    assert.equal((await response.text()).length, body.length);
  }
});
