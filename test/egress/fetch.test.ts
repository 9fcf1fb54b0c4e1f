/** Documents from servers that somebody else chose. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { createGuardedFetch, type FetchLimits } from '../../src/egress/fetch.ts';

interface Host {
  url: string;
  /** The requests that arrived. */
  requests: string[];
  sockets: Socket[];
}

/** @param respond called with each request */
async function startHost(t: TestContext, respond: (socket: Socket) => void): Promise<Host> {
  const host: Host = { url: '', requests: [], sockets: [] };
  const server = createServer((socket) => {
    host.sockets.push(socket);
    socket.on('error', () => {});
    socket.on('data', (chunk) => {
      host.requests.push(chunk.toString());
      respond(socket);
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => {
    for (const socket of host.sockets) socket.destroy();
    server.close();
  });
  host.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/document?of=app`;
  return host;
}

/** Also after a reset. */
async function isClosed(socket: Socket): Promise<void> {
  if (!socket.closed) await new Promise((resolve) => socket.once('close', resolve));
}

function createFetch(t: TestContext, limits: FetchLimits = {}) {
  const guarded = createGuardedFetch({ allowLoopback: true }, limits);
  t.after(() => guarded.close());
  return guarded;
}

test('a document is fetched over a connection of its own, which is closed', async (t) => {
  const host = await startHost(t, (socket) =>
    socket.write(
      'HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 2\r\n\r\nok',
    ),
  );
  const { fetch } = createFetch(t);
  const response = await fetch(host.url, { headers: { accept: 'text/plain' } });
  assert.deepEqual(
    [response.status, response.headers.get('x-a'), await response.text()],
    [200, '1, 2', 'ok'],
  );
  const [head = ''] = host.requests;
  assert.match(head, /^GET \/document\?of=app HTTP\/1\.1\r\nhost: 127\.0\.0\.1:\d+\r\nconnection: close\r\n/);
  assert.match(head, /accept: text\/plain\r\nuser-agent: Nuncio\r\n\r\n$/);
  assert.doesNotMatch(head, /content-length/);
  const [socket] = host.sockets as [Socket];
  await isClosed(socket);
  await fetch(host.url, { method: 'POST', body: 'a=b' });
  assert.match(host.requests[1] ?? '', /^POST .*content-length: 3\r\n\r\na=b$/s);
  await assert.rejects(fetch(host.url, { method: 'DELETE' }), TypeError);
});

test('a response without a body or until the end of the connection is read', async (t) => {
  const answers = ['HTTP/1.1 204 No Content\r\n\r\n', 'HTTP/1.0 200 OK\r\n\r\nuntil the end'];
  const host = await startHost(t, (socket) => socket.end(answers.shift() ?? ''));
  const { fetch } = createFetch(t);
  assert.equal((await fetch(host.url)).status, 204);
  assert.equal(await (await fetch(host.url)).text(), 'until the end');
});

test('attack: responses that would keep the thread busy are refused', async (t) => {
  const fields = `${'a:b\r\n'.repeat(400)}\r\n`;
  const answers: [answer: string, error: string][] = [
    [`${'HTTP/1.1 103 A\r\n\r\n'.repeat(900)}`, 'ProtocolError'],
    [`HTTP/1.1 103 A\r\n${fields}`.repeat(3), 'ProtocolError'],
    ['HTTP/1.1 101 A\r\n\r\n', 'ProtocolError'],
    ['HTTP/1.1 700 A\r\ncontent-length: 0\r\n\r\n', 'ProtocolError'],
    ['SSH-2.0-OpenSSH\r\n', 'ProtocolError'],
    [`HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${'1\r\na\r\n'.repeat(300)}`, 'TooLargeError'],
    [`HTTP/1.1 200 OK\r\ncontent-length: 70000\r\n\r\n${'a'.repeat(70_000)}`, 'TooLargeError'],
  ];
  for (const [answer, name] of answers) {
    // The connection stays open.
    const host = await startHost(t, (socket) => socket.write(answer));
    await assert.rejects(createFetch(t).fetch(host.url), { name }, answer.slice(0, 50));
    const [socket] = host.sockets as [Socket];
    await isClosed(socket);
  }
});

test('a request ends with its time, with its signal and with the server', async (t) => {
  const host = await startHost(t, () => {});
  await assert.rejects(createFetch(t, { timeoutMs: 50 }).fetch(host.url), { name: 'TimeoutError' });
  const controller = new AbortController();
  const aborted = createFetch(t).fetch(host.url, { signal: controller.signal });
  controller.abort();
  await assert.rejects(aborted, { name: 'AbortError' });
  const closing = createFetch(t);
  const closed = closing.fetch(host.url);
  await closing.close();
  await assert.rejects(closed, { code: 'connect_error' });
  await assert.rejects(closing.fetch(host.url), { code: 'connect_error' });
  // A connection that opens too late is closed, too.
  for (const socket of host.sockets) await isClosed(socket);
});
