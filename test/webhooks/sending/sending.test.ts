/** One exchange with every kind of subscriber, malicious ones included. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer as createHttp, type RequestListener } from 'node:http';
import { createSecureServer as createHttp2 } from 'node:http2';
import { createServer as createHttps } from 'node:https';
import {
  type AddressInfo,
  connect as connectTcp,
  createServer as createTcp,
  type Server,
  type Socket,
} from 'node:net';
import { type TestContext, test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { gzipSync } from 'node:zlib';
import { type ConnectorOptions, comparePeer, vettedLookup } from '../../../src/egress/connector.ts';
import { responseBodyBytesMax } from '../../../src/egress/http1/response_reader.ts';
import { resolveVetted } from '../../../src/egress/resolve.ts';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { exchangeTimeoutMs, Sender } from '../../../src/webhooks/sending/sender.ts';
import { headerLines } from '../../../src/webhooks/subscriptions/static_headers.ts';

const pem = (name: string) =>
  readFileSync(new URL(`../../support/network/certificates/${name}`, import.meta.url), 'utf8');
const certificate = (name: string) => ({ key: pem(`${name}.key`), cert: pem(`${name}.pem`) });
const extraCa = pem('ca.pem');
/** Resolves every name to loopback. */
const toLoopback = async () => ['127.0.0.1'];

function createSender(t: TestContext, options: Partial<ConnectorOptions> = {}): Sender {
  const sender = new Sender({ allowLoopback: true, extraCa, resolveHost: toLoopback, ...options });
  t.after(() => sender.close());
  return sender;
}

function post(sender: Sender, origin: string, body = '{}'): Promise<ExchangeResult> {
  const request = {
    origin,
    path: '/',
    headers: 'content-type: application/json\r\n',
    body: Buffer.from(body),
    traced: null,
  };
  return new Promise((resolve) => sender.send(request, resolve, undefined));
}

async function listen(t: TestContext, server: Server): Promise<number> {
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => sockets.add(socket.on('error', () => {})));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

const serveHttp = (t: TestContext, handler: RequestListener) => listen(t, createHttp(handler));
/** A TCP server that handles the raw bytes. */
const serveRaw = (t: TestContext, onData: (socket: Socket, data: Buffer) => void) =>
  listen(
    t,
    createTcp((socket) => void socket.on('data', (data) => onData(socket, Buffer.from(data)))),
  );

test('webhooks 23, 24: no byte of the request is sent when the certificate or its host is wrong', async (t) => {
  for (const name of ['self-signed', 'expired', 'wrong-host']) {
    let requests = 0;
    const port = await listen(
      t,
      createHttps(certificate(name), () => requests++),
    );
    const answer = await post(createSender(t), `https://hooks.example:${port}`);
    assert.equal(answer.error, 'tls_error', name);
    assert.match(answer.reason ?? '', /certificate|altnames/i, name);
    assert.doesNotMatch(answer.reason ?? '', /Node|--|\n/, name);
    assert.equal(requests, 0);
  }
  let servername: unknown;
  const port = await listen(
    t,
    createHttps(certificate('good'), (request, response) => {
      servername = (request.socket as unknown as { servername: unknown }).servername;
      response.end('ok');
    }),
  );
  const good = await post(createSender(t), `https://hooks.example:${port}`);
  assert.equal(good.error, null);
  assert.equal(good.status, 200);
  assert.equal(servername, 'hooks.example');
  assert.ok((good.connection?.tlsMs ?? 0) > 0);
});

test('webhooks 24: TLS older than 1.2 is refused', async (t) => {
  const old = createHttps({
    ...certificate('good'),
    minVersion: 'TLSv1.1',
    maxVersion: 'TLSv1.1',
    ciphers: 'ALL:@SECLEVEL=0',
  });
  const port = await listen(t, old);
  const answer = await post(createSender(t), `https://hooks.example:${port}`);
  assert.equal(answer.error, 'tls_error');
  // OpenSSL's message, without its source location.
  assert.equal(answer.reason, 'tlsv1 alert protocol version');
});

test('a subscriber that also offers HTTP/2 gets HTTP/1.1, and one that offers nothing else gets nothing', async (t) => {
  const versions: string[] = [];
  const respond: (request: { httpVersion: string }, response: { end(): void }) => void = (
    request,
    response,
  ) => {
    versions.push(request.httpVersion);
    response.end();
  };
  const both = createHttp2({ ...certificate('good'), allowHTTP1: true }, respond as never);
  // Servers of HTTP/2 are servers of `net`, which their types do not say.
  const listenHttp2 = (server: unknown) => listen(t, server as Server);
  const port = await listenHttp2(both);
  assert.equal((await post(createSender(t), `https://hooks.example:${port}`)).status, 200);
  assert.deepEqual(versions, ['1.1']);

  const only = createHttp2({ ...certificate('good'), allowHTTP1: false }, respond as never);
  const answer = await post(createSender(t), `https://hooks.example:${await listenHttp2(only)}`);
  assert.equal(answer.error, 'tls_error');
  assert.match(answer.reason ?? '', /no application protocol/);
  assert.deepEqual(versions, ['1.1']);
});

test('header lines arrive with colons and commas in their values', async (t) => {
  const seen: unknown[] = [];
  const server = createHttps(certificate('good'), (request, response) => {
    const { 'x-api-key': key, authorization, 'x-list': list } = request.headers;
    seen.push({ key, authorization, list });
    response.end();
  });
  const lines = headerLines({ 'X-Api-Key': 'a: b', Authorization: 'Basic dXNlcjpwYXNz', 'X-List': 'a, b' });
  const request = {
    origin: `https://hooks.example:${await listen(t, server)}`,
    path: '/',
    headers: `content-type: application/json\r\n${lines}`,
    body: Buffer.from('{}'),
    traced: null,
  };
  const { status } = await new Promise<ExchangeResult>((resolve) =>
    createSender(t).send(request, resolve, undefined),
  );
  assert.equal(status, 200);
  assert.deepEqual(seen, [{ key: 'a: b', authorization: 'Basic dXNlcjpwYXNz', list: 'a, b' }]);
});

test('attack: a subscriber cannot choose the prime of a Diffie-Hellman exchange', async (t) => {
  const options = { ...certificate('rsa'), maxVersion: 'TLSv1.2', dhparam: 'auto' } as const;
  const server = createHttps({ ...options, ciphers: 'DHE-RSA-AES128-GCM-SHA256' }, (_request, response) =>
    response.end(),
  );
  const answer = await post(createSender(t), `https://hooks.example:${await listen(t, server)}`);
  assert.equal(answer.error, 'tls_error');
  assert.match(answer.reason ?? '', /handshake failure/);
});

test('each group of the key exchange works, and slow ones are not offered', async (t) => {
  const results: Record<string, string | null> = {};
  for (const ecdhCurve of ['X25519', 'P-256', 'P-384', 'P-521']) {
    const server = createHttps({ ...certificate('good'), ecdhCurve }, (_request, response) => response.end());
    const { error } = await post(createSender(t), `https://hooks.example:${await listen(t, server)}`);
    results[ecdhCurve] = error;
  }
  assert.deepEqual(results, { X25519: null, 'P-256': null, 'P-384': null, 'P-521': 'tls_error' });
});

test('webhooks 25: one forbidden address of a name refuses the attempt', async () => {
  const policy = { allowLoopback: false, resolveHost: async () => ['93.184.216.34', '10.0.0.7'] };
  await assert.rejects(resolveVetted('hooks.example', policy), { code: 'address_refused' });
  const open = { allowLoopback: false, resolveHost: async () => ['93.184.216.34'] };
  assert.deepEqual(await resolveVetted('hooks.example', open), ['93.184.216.34']);
});

test('webhooks 26: a name that is public first and loopback at connection time is not connected to', async (t) => {
  let connections = 0;
  const server = createTcp(() => connections++);
  const port = await listen(t, server);
  let asked = 0;
  const resolveHost = async () => {
    asked += 1;
    return asked === 1 ? ['93.184.216.34'] : ['127.0.0.1'];
  };
  const policy = { allowLoopback: false, resolveHost };
  await resolveVetted('rebinding.example', policy);
  for (let attempt = 0; attempt < 3; attempt++) {
    const answer = await post(createSender(t, policy), `http://rebinding.example:${port}`);
    assert.equal(answer.error, 'address_refused');
  }
  assert.equal(connections, 0);
});

test('webhooks 27: literal addresses are checked at the connection, too', async (t) => {
  let connections = 0;
  const port = await listen(
    t,
    createTcp(() => connections++),
  );
  const sender = createSender(t, { allowLoopback: false });
  for (const host of [
    '127.0.0.1',
    '[::1]',
    '[::ffff:127.0.0.1]',
    '10.0.0.1',
    '169.254.169.254',
    '[fd00:ec2::254]',
  ]) {
    const answer = await post(sender, `http://${host}:${port}`);
    assert.equal(answer.error, 'address_refused', host);
  }
  assert.equal(connections, 0);
});

test('webhooks 27: a look-up of one or all addresses of a name returns the checked ones', async () => {
  const lookup = vettedLookup(['192.0.2.1', '2001:db8::1']);
  const ask = (all: boolean) =>
    new Promise((resolve, reject) => {
      lookup('hooks.example', { all }, (error, address, family) =>
        error === null ? resolve([address, family]) : reject(error),
      );
    });
  assert.deepEqual(await ask(true), [
    [
      { address: '192.0.2.1', family: 4 },
      { address: '2001:db8::1', family: 6 },
    ],
    undefined,
  ]);
  assert.deepEqual(await ask(false), ['192.0.2.1', 4]);
});

test('webhooks 27: a name is reached by its checked addresses when one refuses and another accepts', async (t) => {
  const port = await serveHttp(t, (_request, response) => response.end('ok'));
  for (const addresses of [
    ['::1', '127.0.0.1'],
    ['127.0.0.2', '127.0.0.1'],
  ]) {
    const sender = createSender(t, { resolveHost: async () => addresses });
    assert.equal((await post(sender, `http://hooks.example:${port}`)).status, 200, addresses.join());
  }
  const mixed = createSender(t, { allowLoopback: true, resolveHost: async () => ['127.0.0.1', '10.0.0.1'] });
  assert.equal((await post(mixed, `http://hooks.example:${port}`)).error, 'address_refused');
});

test('webhooks 31, 32: an unresolvable name is dns_error, and no error reveals what was found', async (t) => {
  const failing = createSender(t, {
    resolveHost: async () => {
      throw Object.assign(new Error('queryA ESERVFAIL 10.1.2.3'), { code: 'ESERVFAIL' });
    },
  });
  const unresolved = await post(failing, 'http://nothing.example:8080');
  assert.equal(unresolved.error, 'dns_error');
  assert.equal(unresolved.reason, null);
  const inside = createSender(t, { resolveHost: async () => ['10.1.2.3'] });
  const refused = await post(inside, 'http://internal.example:8080');
  assert.equal(refused.error, 'address_refused');
  assert.ok(!JSON.stringify(refused).includes('10.1.2.3'));
});

test('a closed port is connect_error', async (t) => {
  const port = await serveHttp(t, () => {});
  const server = createTcp();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const closed = (server.address() as AddressInfo).port;
  await new Promise((resolve) => server.close(resolve));
  assert.notEqual(closed, port);
  assert.equal((await post(createSender(t), `http://127.0.0.1:${closed}`)).error, 'connect_error');
});

test('webhooks 28: a connection to another peer than was checked is closed before a byte is written', async (t) => {
  let received = 0;
  let closings = 0;
  const { promise: closed, resolve: onClosed } = Promise.withResolvers<void>();
  const server = createTcp((socket) => {
    socket.on('data', (data) => {
      received += data.length;
    });
    socket.on('close', () => {
      closings += 1;
      if (closings === 2) onClosed();
    });
  });
  const port = await listen(t, server);
  const open = async () => {
    const socket = connectTcp(port, '127.0.0.1');
    t.after(() => socket.destroy());
    await once(socket, 'connect');
    return socket;
  };
  const good = await open();
  assert.equal(comparePeer(good, ['93.184.216.34', '127.0.0.1']), '127.0.0.1');
  assert.ok(!good.destroyed);
  good.destroy();
  // The connected peer is not among the checked addresses.
  const wrong = await open();
  assert.throws(() => comparePeer(wrong, ['93.184.216.34', '::1']), { code: 'address_refused' });
  assert.ok(wrong.destroyed);
  await closed;
  assert.equal(received, 0);
});

/** A port that accepts no connections: once its queue is full, the system completes no further ones. */
async function startDeaf(t: TestContext): Promise<number> {
  const source = `
    const { parentPort } = require('node:worker_threads');
    const server = require('node:net').createServer();
    server.listen({ port: 0, host: '127.0.0.1', backlog: 1 }, () => {
      parentPort.postMessage(server.address().port);
      // Never takes a connection again.
      setTimeout(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0), 50);
    });`;
  const deaf = new Worker(source, { eval: true });
  t.after(() => deaf.terminate());
  const [port] = (await once(deaf, 'message')) as [number];
  await new Promise((resolve) => setTimeout(resolve, 300));
  for (let count = 0; count < 8; count++) {
    const socket = connectTcp(port, '127.0.0.1').on('error', () => {});
    t.after(() => socket.destroy());
  }
  await new Promise((resolve) => setTimeout(resolve, 300));
  return port;
}

test('webhooks 33: look-up, connection and handshake each have a timeout within the total', async (t) => {
  const never = new Promise<string[]>(() => {});
  const unanswered = createSender(t, { resolveHost: () => never });
  const deaf = await startDeaf(t);
  const mute = await serveRaw(t, () => {});
  // Each timeout is reported under its own name, so its timer must end before the total timeout.
  const [name, connection, handshake] = await Promise.all([
    post(unanswered, 'http://hooks.example:8080'),
    post(createSender(t), `http://127.0.0.1:${deaf}`),
    post(createSender(t), `https://hooks.example:${mute}`),
  ]);
  assert.equal(name?.error, 'dns_error');
  assert.equal(connection?.error, 'connect_timeout');
  assert.equal(handshake?.error, 'tls_error');
  assert.match(handshake?.reason ?? '', /the handshake timed out/);
});

test('webhooks 29, 44: a redirect is a response and not followed', async (t) => {
  for (const status of [301, 302, 303, 304, 307, 308]) {
    let requests = 0;
    const port = await serveHttp(t, (_request, response) => {
      requests += 1;
      response.writeHead(status, { location: '/other' }).end();
    });
    const answer = await post(createSender(t), `http://127.0.0.1:${port}`);
    assert.equal(answer.status, status);
    if (status !== 304) assert.equal(answer.headers?.location, '/other');
    assert.equal(requests, 1);
  }
});

test('webhooks 30: proxy variables of the environment are ignored', async (t) => {
  let asked = 0;
  const proxy = await serveHttp(t, (_request, response) => {
    asked += 1;
    response.end();
  });
  const port = await serveHttp(t, (_request, response) => response.end('direct'));
  for (const name of ['HTTP_PROXY', 'http_proxy', 'ALL_PROXY']) {
    process.env[name] = `http://127.0.0.1:${proxy}`;
    t.after(() => {
      delete process.env[name];
    });
  }
  const answer = await post(createSender(t), `http://127.0.0.1:${port}`);
  assert.equal(answer.body?.toString(), 'direct');
  assert.equal(asked, 0);
});

test('webhooks 43: interim responses are skipped, and an end after one is a failure', async (t) => {
  const early = await serveRaw(t, (socket) => {
    socket.write(
      'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n',
    );
  });
  assert.equal((await post(createSender(t), `http://127.0.0.1:${early}`)).status, 202);
  const alone = await serveRaw(t, (socket) => socket.end('HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n'));
  const answer = await post(createSender(t), `http://127.0.0.1:${alone}`);
  assert.equal(answer.status, null);
  assert.ok(answer.error === 'connection_error' || answer.error === 'protocol_error');
});

test('webhooks 48: an endless body is cut at 16 KiB, its connection closed, and its status counts', async (t) => {
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  const port = await serveHttp(t, (_request, response) => {
    response.writeHead(200);
    const write = () => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536, 'x')));
    };
    response.on('drain', write).on('close', resolve);
    write();
  });
  const answer = await post(createSender(t), `http://127.0.0.1:${port}`);
  assert.equal(answer.status, 200);
  assert.equal(answer.error, null);
  assert.equal(answer.body?.length, responseBodyBytesMax);
  assert.ok(answer.truncated);
  await closed;
});

test('webhooks 33, 49, 50: one timeout ends a dripping body and endless headers', async (t) => {
  const drip = await serveHttp(t, (_request, response) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write('.'), 200);
    response.on('close', () => clearInterval(timer));
  });
  const slow = await serveRaw(t, (socket) => {
    socket.write('HTTP/1.1 200 OK\r\n');
    const timer = setInterval(() => socket.write('X-A: b\r\n'), 200);
    socket.on('close', () => clearInterval(timer));
  });
  const silent = await serveRaw(t, () => {});
  const sender = createSender(t);
  const [dripped, slowed, hung] = await Promise.all(
    [drip, slow, silent].map((port) => post(sender, `http://127.0.0.1:${port}`)),
  );
  assert.equal(dripped?.status, 200);
  assert.equal(dripped?.error, null);
  assert.ok(dripped?.truncated);
  assert.equal(slowed?.error, 'timeout');
  assert.equal(hung?.error, 'timeout');
  assert.ok((hung?.endedAt ?? 0) - (hung?.startedAt ?? 0) >= exchangeTimeoutMs);
});

test('webhooks 50: a header block over 16 KiB is protocol_error, also without an end; smaller ones pass', async (t) => {
  const line = `X-A: ${'b'.repeat(100)}\r\n`;
  const answering = (lines: number) =>
    serveRaw(t, (socket) => {
      socket.write(`HTTP/1.1 200 OK\r\n${line.repeat(lines)}Content-Length: 0\r\n\r\n`);
    });
  const linesMax = Math.floor(16_384 / line.length);
  const endless = await serveRaw(t, (socket) => {
    const write = () => {
      while (!socket.destroyed && socket.write(line.repeat(100)));
    };
    socket.write('HTTP/1.1 200 OK\r\n');
    socket.on('drain', write);
    socket.on('error', () => {});
    write();
  });
  const sender = createSender(t);
  const [below, above, without] = await Promise.all(
    [await answering(linesMax - 1), await answering(linesMax + 1), endless].map((port) =>
      post(sender, `http://127.0.0.1:${port}`),
    ),
  );
  assert.deepEqual([below?.error, below?.status], [null, 200]);
  assert.equal(above?.error, 'protocol_error');
  assert.equal(without?.error, 'protocol_error');
});

test('webhooks 51, 52: nothing is decompressed, and any bytes can be stored', async (t) => {
  const bomb = gzipSync(Buffer.alloc(10_000_000));
  const port = await serveHttp(t, (_request, response) => {
    response.writeHead(200, { 'content-encoding': 'gzip' }).end(bomb);
  });
  const answer = await post(createSender(t), `http://127.0.0.1:${port}`);
  assert.deepEqual(answer.body, bomb.subarray(0, responseBodyBytesMax));
});

test('webhooks 53: invalid HTTP, an early end, a reset and a wrong length are failures', async (t) => {
  const cases: [string, (socket: Socket) => void][] = [
    ['protocol_error', (socket) => socket.end('SSH-2.0-OpenSSH_9.6\r\n')],
    ['protocol_error', (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n')],
    ['connection_error', (socket) => socket.end()],
    ['connection_error', (socket) => socket.resetAndDestroy()],
    ['connection_error', (socket) => socket.end('HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort')],
  ];
  for (const [error, behave] of cases) {
    const port = await serveRaw(t, behave);
    assert.equal((await post(createSender(t), `http://127.0.0.1:${port}`)).error, error, behave.toString());
  }
});

test('webhooks 54: a kept connection that was closed is replaced within the same attempt', async (t) => {
  const sockets: Socket[] = [];
  let requests = 0;
  const port = await serveRaw(t, (socket) => {
    requests += 1;
    // Resets the connection at its second request.
    if (sockets.includes(socket)) {
      socket.resetAndDestroy();
      return;
    }
    sockets.push(socket);
    socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
  });
  const sender = createSender(t);
  assert.equal((await post(sender, `http://127.0.0.1:${port}`)).status, 200);
  await new Promise((resolve) => setTimeout(resolve, 50));
  const again = await post(sender, `http://127.0.0.1:${port}`);
  assert.equal(again.status, 200);
  assert.equal(again.error, null);
  assert.equal(sockets.length, 2);
  assert.equal(requests, 3);
});

test('webhooks 55: bytes after a response never become the response to the next delivery', async (t) => {
  let connections = 0;
  const server = createTcp((socket) => {
    connections += 1;
    const own = connections;
    socket.on('data', () => {
      const first = 'HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n';
      socket.write(own === 1 ? `${first}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n` : first);
    });
  });
  const port = await listen(t, server);
  const sender = createSender(t);
  assert.equal((await post(sender, `http://127.0.0.1:${port}`)).status, 500);
  assert.equal((await post(sender, `http://127.0.0.1:${port}`)).status, 500);
  assert.equal(connections, 2);
});

test('a connection is kept and reused', async (t) => {
  let connections = 0;
  const server = createHttp((_request, response) => response.end('ok'));
  server.on('connection', () => connections++);
  const port = await listen(t, server);
  const sender = createSender(t);
  const first = await post(sender, `http://127.0.0.1:${port}`);
  assert.ok(first.connection !== null);
  for (let count = 0; count < 5; count++) {
    const next = await post(sender, `http://127.0.0.1:${port}`);
    assert.equal(next.status, 200);
    assert.equal(next.connection, null);
  }
  assert.equal(connections, 1);
});
