/** Turns of what is done with the results of exchanges. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { ResultTurns } from '../../../src/webhooks/sending/result_turns.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';

/** Keeps the processor busy for longer than a turn has time. */
function work(): void {
  const until = performance.now() + 6;
  while (performance.now() < until);
}

test('attack: a tenant with many results that take long leaves the second turn to another tenant', async () => {
  const turns = new ResultTurns();
  const done: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const end = (tenant: string) => {
    turns.take(tenant, () => {
      work();
      done.push(tenant);
      setImmediate(() => done.push('|'));
      if (done.filter((each) => each !== '|').length === 12) setImmediate(resolve);
    });
  };
  for (let count = 0; count < 10; count += 1) end('hostile');
  for (let count = 0; count < 2; count += 1) end('other');
  assert.deepEqual(done, ['hostile']);
  await promise;
  const inTurns = done.filter((each) => each !== '|');
  assert.deepEqual(inTurns.slice(0, 5), ['hostile', 'hostile', 'other', 'hostile', 'other']);
  // Other work of the thread comes between any two.
  assert.doesNotMatch(done.join(' '), /hostile hostile hostile|other other/);
});

test('results that take little time are taken at once', () => {
  const turns = new ResultTurns();
  let done = 0;
  for (let count = 0; count < 10; count += 1) turns.take('tenant', () => (done += 1));
  assert.equal(done, 10);
});

test('attack: a host that closes all connections at once does not keep the thread busy with the results', async (t) => {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket.on('error', () => {}));
    socket.on('data', () =>
      socket.write(`HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n${'part'.repeat(200)}`),
    );
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const sender = new Sender({ allowLoopback: true });
  t.after(() => sender.close());
  let inOneTurn = 0;
  let most = 0;
  let ended = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  const done = () => {
    work();
    if (inOneTurn === 0) {
      setImmediate(() => {
        inOneTurn = 0;
      });
    }
    inOneTurn += 1;
    most = Math.max(most, inOneTurn);
    ended += 1;
    if (ended === 40) resolve();
  };
  const request = { origin, path: '/', headers: '', body: Buffer.from('{}'), traced: null, tenant: 'tenant' };
  for (let count = 0; count < 40; count += 1) sender.send(request, done, undefined, { timeoutMs: 60_000 });
  while (sockets.length < 40 || sockets.some(({ bytesWritten }) => bytesWritten === 0))
    await new Promise((next) => setTimeout(next, 5));
  for (const socket of sockets) socket.end();
  await promise;
  assert.ok(most <= 2, `${most} results in one turn`);
});
