/** Connections that are kept: one after the other, deliveries to the same HTTPS host need one handshake. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type TestContext, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { Sender, type SenderOptions } from '../../../src/webhooks/sending/sender.ts';
import { serverCertificate, serverKey } from '../../support/network/certificates.ts';
import { siteEgress } from '../../support/network/site.ts';

/**
 * A server in a thread of its own responds before this thread has another turn. It posts its port, and the
 * number of its connections when it is asked.
 */
const server = `
  const { createServer } = require('node:https');
  const { parentPort, workerData } = require('node:worker_threads');
  const server = createServer(workerData, (request, response) => request.resume().on('end', () => response.end('ok')));
  server.keepAliveTimeout = 0;
  let connections = 0;
  server.on('connection', () => (connections += 1));
  parentPort.on('message', () => parentPort.postMessage(connections));
  server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port));
`;

for (const bytes of [1_000, 15_000]) {
  test(`a host that responds at once gets all requests over one connection: ${bytes} bytes`, async (t) => {
    const { sender, port, connections } = await start(t);
    for (let count = 0; count < 100; count += 1)
      await send(sender, `https://one.apps.example:${port}`, bytes);
    assert.equal(await connections(), 1);
  });
}

test('a host in use keeps its connection when others keep too many', async (t) => {
  const { sender, port, connections } = await start(t, { idleConnectionsMax: 3 });
  for (const name of ['one', 'two', 'three']) await send(sender, `https://${name}.apps.example:${port}`);
  for (let count = 0; count < 5; count += 1) await send(sender, `https://four.apps.example:${port}`);
  assert.equal(await connections(), 4);
  // That of the first was idle for longest, and was closed.
  await send(sender, `https://three.apps.example:${port}`);
  assert.equal(await connections(), 4);
  await send(sender, `https://one.apps.example:${port}`);
  assert.equal(await connections(), 5);
});

async function start(t: TestContext, options: Partial<SenderOptions> = {}) {
  const workerData = { cert: serverCertificate, key: serverKey };
  const worker = new Worker(server, { eval: true, workerData });
  t.after(() => worker.terminate());
  const [port] = await once(worker, 'message');
  const sender = new Sender({ ...siteEgress, allowLoopback: true, ...options });
  t.after(() => sender.close());
  const connections = async (): Promise<number> => {
    worker.postMessage('count');
    const [count] = await once(worker, 'message');
    return count;
  };
  return { sender, port, connections };
}

async function send(sender: Sender, origin: string, bytes = 100): Promise<void> {
  const request = { origin, path: '/', headers: '', body: Buffer.alloc(bytes), traced: null };
  const { promise, resolve } = Promise.withResolvers<ExchangeResult>();
  sender.send(request, resolve, undefined);
  assert.equal((await promise).status, 200);
}
