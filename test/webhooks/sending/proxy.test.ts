/** Outgoing connections through the operator's proxy: deliveries, and what apps host elsewhere. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer as createHttps } from 'node:https';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { type EgressProxy, readEgressProxy } from '../../../src/egress/proxy.ts';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';
import { startEgressProxy } from '../../support/network/egress_proxy.ts';
import { siteEgress, startSite } from '../../support/network/site.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const pem = (name: string) =>
  readFileSync(new URL(`../../support/network/certificates/${name}`, import.meta.url), 'utf8');

function createSender(t: TestContext, proxy: EgressProxy, addresses = ['127.0.0.1'], isOpen = true): Sender {
  const sender = new Sender({
    allowLoopback: isOpen,
    extraCa: pem('ca.pem'),
    resolveHost: async () => addresses,
    proxy,
  });
  t.after(() => sender.close());
  return sender;
}

function post(sender: Sender, origin: string, tenant = 'one'): Promise<ExchangeResult> {
  const request = { origin, path: '/', headers: '', body: Buffer.from('{}'), traced: null, tenant };
  return new Promise((resolve) => sender.send(request, resolve, undefined));
}

async function serveHttps(t: TestContext, name: 'good' | 'self-signed'): Promise<number> {
  const options = { key: pem(`${name}.key`), cert: pem(`${name}.pem`) };
  const server = createHttps(options, (request, response) => {
    response.end((request.socket as unknown as { servername: string }).servername);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

async function serveRaw(t: TestContext, onConnection: (socket: Socket) => void): Promise<number> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket.on('error', () => {}));
    onConnection(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

test('webhooks 30: http and https go by CONNECT to the checked address, with TLS to the subscriber', async (t) => {
  const proxy = await startEgressProxy(t);
  const named = readEgressProxy(proxy.url.replace('http://', 'http://us%40er:p%3Aw@'), 100);
  const port = await serveHttps(t, 'good');
  const secure = await post(createSender(t, named), `https://hooks.example:${port}`);
  assert.equal(secure.error, null);
  assert.equal(secure.body?.toString(), 'hooks.example');
  assert.equal(secure.connection?.family, 4);
  assert.ok((secure.connection?.tlsMs ?? 0) > 0);
  const plain = await startSubscriber(t);
  assert.equal((await post(createSender(t, named), plain.url)).status, 204);
  assert.deepEqual(
    proxy.asked.map(({ target }) => target),
    [`127.0.0.1:${port}`, `127.0.0.1:${plain.port}`],
  );
  const credentials = `Basic ${Buffer.from('us@er:p:w').toString('base64')}`;
  assert.equal(proxy.asked[0]?.headers['proxy-authorization'], credentials);
  assert.equal(plain.received[0]?.headers['proxy-authorization'], undefined);
  assert.equal(proxy.others, 0);
  // An intermediary cannot impersonate the subscriber.
  const forged = await post(
    createSender(t, named),
    `https://hooks.example:${await serveHttps(t, 'self-signed')}`,
  );
  assert.equal(forged.error, 'tls_error');
});

test('attack: tunnels of one tenant that hang leave connections of the proxy to others', async (t) => {
  const proxy = await startEgressProxy(t);
  const sender = createSender(t, readEgressProxy(proxy.url, 16));
  const hanging = await startSubscriber(t, () => {});
  const other = await startSubscriber(t);
  const sent = Array.from({ length: 40 }, () => post(sender, hanging.url));
  const others = [1, 2].map((index) => post(sender, other.url, `other ${index}`));
  for (const { status } of await Promise.all(others)) assert.equal(status, 204);
  // What had no turn was no attempt.
  const results = await Promise.all(sent);
  const begun = results.filter(({ isCancelled }) => !isCancelled);
  assert.equal(begun.length, 7);
  assert.ok(begun.every(({ error }) => error === 'timeout'));
});

test('idle tunnels are closed for those that wait', async (t) => {
  const proxy = await startEgressProxy(t);
  const sender = createSender(t, readEgressProxy(proxy.url, 16));
  const subscribers = await Promise.all(Array.from({ length: 20 }, () => startSubscriber(t)));
  for (const { url } of subscribers) assert.equal((await post(sender, url)).status, 204);
  assert.equal(proxy.asked.length, 20);
});

test('tunnels of which only the close is left make room for those that wait', async (t) => {
  const proxy = await startEgressProxy(t);
  const sender = createSender(t, readEgressProxy(proxy.url, 16));
  // They leave the close to the sender, which waits two seconds for it.
  const ports = await Promise.all(
    Array.from({ length: 40 }, () =>
      serveRaw(t, (socket) =>
        socket.once('data', () => socket.write('HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n')),
      ),
    ),
  );
  const results = await Promise.all(ports.map((port) => post(sender, `http://127.0.0.1:${port}`)));
  assert.deepEqual(new Set(results.map(({ status }) => status)), new Set([204]));
});

test('attack: idle tunnels of others take nothing from what a tenant may have', async (t) => {
  const proxy = await startEgressProxy(t);
  const sender = createSender(t, readEgressProxy(proxy.url, 32));
  const subscribers = await Promise.all(Array.from({ length: 16 }, () => startSubscriber(t)));
  for (const [index, { url }] of subscribers.entries())
    assert.equal((await post(sender, url, `other ${index}`)).status, 204);
  const busy = await startSubscriber(t, (_received, response) => {
    setTimeout(() => response.writeHead(204).end(), 500);
  });
  const results = await Promise.all(Array.from({ length: 12 }, () => post(sender, busy.url, 'one')));
  assert.deepEqual(
    results.map(({ status }) => status),
    Array(12).fill(204),
  );
});

test('attack: a tenant whose tunnels wait costs others no kept connection', async (t) => {
  const proxy = await startEgressProxy(t);
  const sender = createSender(t, readEgressProxy(proxy.url, 32));
  const hanging = await startSubscriber(t, () => {});
  const other = await startSubscriber(t);
  const sent = Array.from({ length: 30 }, () => post(sender, hanging.url));
  for (let count = 0; count < 5; count += 1)
    assert.equal((await post(sender, other.url, 'other')).status, 204);
  const { port } = new URL(other.url);
  assert.equal(proxy.asked.filter(({ target }) => target.endsWith(`:${port}`)).length, 1);
  await sender.close();
  void sent;
});

test('webhooks 30: addresses are still checked, and the proxy is not asked for internal ones', async (t) => {
  const proxy = await startEgressProxy(t);
  const named = readEgressProxy(proxy.url, 100);
  for (const host of [
    '127.0.0.1',
    '[::1]',
    '10.0.0.1',
    '169.254.169.254',
    '[fd00:ec2::254]',
    '[::ffff:10.0.0.1]',
  ]) {
    const answer = await post(createSender(t, named, [], false), `http://${host}:8080`);
    assert.equal(answer.error, 'address_refused', host);
  }
  for (const addresses of [['10.0.0.7'], ['93.184.216.34', '127.0.0.1']]) {
    const answer = await post(createSender(t, named, addresses, false), 'https://hooks.example');
    assert.equal(answer.error, 'address_refused');
  }
  // A name that only the proxy could resolve fails: the proxy resolves nothing.
  assert.equal((await post(createSender(t, named, []), 'https://hooks.example')).error, 'dns_error');
  assert.equal(proxy.asked.length, 0);
});

test('webhooks 30, 33: a proxy that refuses, is absent or is silent fails the attempt and reveals nothing', async (t) => {
  const refusing = await startEgressProxy(t, () => 'HTTP/1.1 403 Not for 10.1.2.3\r\n\r\n');
  const babbling = await startEgressProxy(t, () => `HTTP/1.1 200 OK\r\n${'X-A: b\r\n'.repeat(4_000)}`);
  const silent = await startEgressProxy(t, () => '');
  const cases: [string, string][] = [
    ['connect_error', refusing.url],
    ['connect_error', babbling.url],
    ['connect_error', 'http://127.0.0.1:1'],
    ['connect_timeout', silent.url],
  ];
  await Promise.all(
    cases.map(async ([error, url]) => {
      const answer = await post(createSender(t, readEgressProxy(url, 100)), 'https://hooks.example');
      assert.equal(answer.error, error, url);
      assert.equal(answer.reason, null);
    }),
  );
});

test('webhooks 30: the first address that the proxy reaches is used', async (t) => {
  const subscriber = await startSubscriber(t);
  const proxy = await startEgressProxy(t, (target) =>
    target.startsWith('127.0.0.2') ? 'HTTP/1.1 502 Bad Gateway\r\n\r\n' : undefined,
  );
  const sender = createSender(t, readEgressProxy(proxy.url, 100), ['::1', '127.0.0.2', '127.0.0.1']);
  const answer = await post(sender, `http://hooks.example:${subscriber.port}`);
  assert.equal(answer.status, 204);
  assert.deepEqual(
    proxy.asked.map(({ target }) => target.replace(/:\d+$/, '')),
    ['127.0.0.2', '127.0.0.1'],
  );
});

test('webhooks 30: the setting applies to deliveries and to what apps host elsewhere', async (t) => {
  const proxy = await startEgressProxy(t);
  const site = await startSite(t);
  const settings = { NUNCIO_EGRESS_PROXY: proxy.url };
  const server = await startTestServer(t, settings, 'dev', undefined, siteEgress);
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(server), app.account, ['x']);
  await subscriber.waitFor(1);
  assert.deepEqual(
    proxy.asked.map(({ target }) => target),
    [`127.0.0.1:${subscriber.port}`],
  );
  const client = site.url('/app');
  const query = new URLSearchParams({ client_id: client, response_type: 'code', scope: 'openid' });
  await fetch(`${server.baseUrl}/oauth/authorize?${query}`);
  assert.equal(site.requests('/app'), 1);
  assert.equal(proxy.asked.at(-1)?.target, `127.0.0.1:${new URL(client).port}`);
});
