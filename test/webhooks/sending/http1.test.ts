/** HTTP/1.1: which responses are read, however they are split, which are refused, and how requests are written. */

import assert from 'node:assert/strict';
import { createHmac, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer as createHttp, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createHttps } from 'node:https';
import { type AddressInfo, createServer as createTcp, type Server, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { Http1Connection } from '../../../src/egress/http1/connection.ts';
import {
  type Reading,
  ResponseReader,
  responseBodyBytesMax,
} from '../../../src/egress/http1/response_reader.ts';
import type { ExchangeResult } from '../../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';

const pem = (name: string) =>
  readFileSync(new URL(`../../support/network/certificates/${name}`, import.meta.url), 'utf8');
const ok = 'HTTP/1.1 200 OK\r\n';

interface Read {
  reading: Reading | 'incomplete';
  status: number | undefined;
  body: string | undefined;
  mayGoOn: boolean;
}

/** @param cuts where the bytes are split @param isEnded whether the connection ends after them */
function read(text: string, cuts: readonly number[] = [], isEnded = false): Read {
  const bytes = Buffer.from(text, 'latin1');
  const reader = new ResponseReader({ bytes: null, head: null });
  const ends = [...new Set(cuts.map((cut) => cut % (bytes.length + 1)))].sort((a, b) => a - b);
  let reading: Reading | 'incomplete' = 'more';
  let from = 0;
  for (const to of [...ends, bytes.length]) {
    if (to === from || (reading !== 'more' && reading !== 'done')) continue;
    reading = reader.take(Buffer.from(bytes.subarray(from, to)));
    from = to;
  }
  if (reading === 'more' && isEnded) reading = reader.end();
  const body = reader.body?.toString('latin1');
  return { reading, status: reader.head?.status, body, mayGoOn: reader.isReusable };
}

test('a response is the same however it is split', () => {
  const whole = [
    `${ok}Content-Length: 5\r\n\r\nhello`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n`,
    `HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n${ok}Content-Length: 5\r\n\r\nhello`,
    `${ok}X-Folded: a\r\n  b\r\nContent-Length: 5\r\n\r\nhello`,
  ];
  for (const text of whole) {
    const mayGoOn = !text.includes('X-Folded');
    const expected = { reading: 'done', status: 200, body: 'hello', mayGoOn };
    fc.assert(
      fc.property(fc.array(fc.nat({ max: 300 }), { maxLength: 12 }), (cuts) => {
        assert.deepEqual(read(text, cuts), expected);
      }),
    );
  }
  const untilEnd = `${ok}Content-Type: text/plain\r\n\r\nhello`;
  fc.assert(
    fc.property(fc.array(fc.nat({ max: 100 }), { maxLength: 8 }), (cuts) => {
      const expected = { reading: 'done', status: 200, body: 'hello', mayGoOn: false };
      assert.deepEqual(read(untilEnd, cuts, true), expected);
    }),
  );
});

test('responses as common servers send them are read whole', () => {
  const date = 'Date: Sat, 28 Nov 2026 18:00:00 GMT\r\n';
  const chunked = 'Transfer-Encoding: chunked\r\n\r\n';
  const written = (text: string, count: number) => {
    const chunk = `${text.length.toString(16)}\r\n${text}\r\n`;
    return { sent: `${chunk.repeat(count)}0\r\n\r\n`, body: text.repeat(count) };
  };
  const few = written('a line that was written\n', 200);
  const blocks = written('x'.repeat(4_096), 4);
  const policies = Array.from({ length: 40 }, (_, index) => `X-Policy-${index}: value ${index}\r\n`).join('');
  const usual: [name: string, head: string, sent: string, body?: string][] = [
    [
      'Node.js',
      `${ok}${date}Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n${chunked}`,
      few.sent,
      few.body,
    ],
    ['Go', `HTTP/1.1 100 Continue\r\n\r\n${ok}${date}${chunked}`, blocks.sent, blocks.body],
    ['nginx', `${ok}Server: nginx\r\n${date}Connection: keep-alive\r\n${chunked}`, blocks.sent, blocks.body],
    ['nginx, empty', `HTTP/1.1 204 No Content\r\nServer: nginx\r\n${date}Connection: keep-alive\r\n\r\n`, ''],
    ['Apache', `${ok}${date}${chunked}`, '5   \r\nhello\r\n0\r\n\r\n', 'hello'],
    ['PHP that flushes', `${ok}${date}X-Powered-By: PHP/8.4\r\n${chunked}`, few.sent, few.body],
    ['Rails', `${ok}${policies}Set-Cookie: a=b\r\nSet-Cookie: c=d\r\nContent-Length: 2\r\n\r\n`, 'ok', 'ok'],
    ['Early Hints', `HTTP/1.1 103 Early Hints\r\n${policies}\r\n${ok}Content-Length: 2\r\n\r\n`, 'ok', 'ok'],
    ['gRPC gateway', `${ok}Trailer: X-Sum\r\n${chunked}`, '2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n', 'ok'],
  ];
  for (const [name, head, sent, body] of usual) {
    const { reading, body: seen } = read(head + sent, [head.length + 3, head.length + 900]);
    assert.deepEqual([reading, seen], ['done', body], name);
  }
});

test('an ambiguous end or invalid HTTP is refused', () => {
  const wrong = [
    'SSH-2.0-OpenSSH_9.6\r\n',
    'HTTP/2 200 OK\r\n\r\n',
    'HTTP/1.1 20 OK\r\n\r\n',
    'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n',
    `${ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\nx`,
    `${ok}Content-Length: 1, 1\r\n\r\nx`,
    `${ok}Content-Length: +1\r\n\r\nx`,
    `${ok}Content-Length: -1\r\n\r\n`,
    `${ok}Content-Length: 0x1\r\n\r\nx`,
    `HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    `${ok}Bad Name: x\r\n\r\n`,
    `${ok}Name : x\r\n\r\n`,
    `${ok}: x\r\n\r\n`,
    `${ok}Name: a\x00b\r\n\r\n`,
    `${ok}Name: a\rb\r\n\r\n`,
    `${ok}Name: a\nb: c\r\n\r\n`,
    `${ok} folded: first\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\nzz\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n-1\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1 1\r\nx`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n123456789\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1;a\rb\r\nx\r\n0\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1;\x00\r\nx\r\n0\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n0\r\nno field\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\nc\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1;${'a'.repeat(2_000)}\r\nx\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n0\r\n${`A: ${'b'.repeat(900)}\r\n`.repeat(200)}\r\n`,
    `HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n`.repeat(1_000),
  ];
  for (const text of wrong) assert.equal(read(text).reading, 'invalid', JSON.stringify(text.slice(0, 90)));
});

test('a response with bare line feeds is refused as soon as they arrive, not at the timeout', () => {
  const unfinished = [
    'HTTP/1.1 200 OK\n',
    'HTTP/1.1 200 OK\nContent-Length: 0\n\n',
    `${ok}Content-Length: 0\n`,
    `${ok}Content-Length: 0\n\r\n`,
    `${ok}Content-Length: 0\r\n\n`,
    `HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\n\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n5\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n0\r\n\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n0\r\nTrailer: x\n`,
  ];
  for (const text of unfinished) {
    assert.equal(read(text).reading, 'invalid', JSON.stringify(text));
    const everywhere = Array.from({ length: text.length }, (_, at) => at);
    assert.equal(read(text, everywhere).reading, 'invalid', JSON.stringify(text));
  }
});

test('an early end is reported as incomplete, and a body beyond 16 KiB is cut', () => {
  for (const text of ['', 'HTTP', ok, `${ok}\r\n`.slice(0, -2), `${ok}Content-Length: 3\r\n\r\nab`])
    assert.match(read(text, [], true).reading, /^(incomplete|invalid)$/, text);
  assert.equal(read(`${ok}Content-Length: 3\r\n\r\nab`, [], true).reading, 'incomplete');
  assert.equal(read(`${ok}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n`, [], true).reading, 'incomplete');
  const long = 'x'.repeat(responseBodyBytesMax + 1);
  for (const head of [`Content-Length: ${long.length}\r\n`, '', 'Transfer-Encoding: chunked\r\n']) {
    const body = head.startsWith('T') ? `${long.length.toString(16)}\r\n${long}\r\n0\r\n\r\n` : long;
    const cut = read(`${ok}${head}\r\n${body}`, [5_000, 10_000]);
    assert.equal(cut.reading, 'full', head);
    assert.equal(cut.body, long.slice(1), head);
  }
  const exact = read(`${ok}Content-Length: ${responseBodyBytesMax}\r\n\r\n${long.slice(1)}`);
  assert.deepEqual([exact.reading, exact.mayGoOn], ['done', true]);
});

test('a body in pieces after a head in pieces is kept as it came', () => {
  const body = Array.from({ length: 3_000 }, (_, index) => String.fromCharCode(97 + (index % 26))).join('');
  const chunked = `${body.slice(0, 1_000)}\r\n7d0;a=b\r\n${body.slice(1_000)}\r\n0\r\nT: x\r\n\r\n`;
  for (const step of [1, 2, 3, 7, 100]) {
    for (const text of [
      `${ok}Content-Length: 3000\r\n\r\n${body}`,
      `${ok}Transfer-Encoding: chunked\r\n\r\n3e8\r\n${chunked}`,
    ]) {
      const cuts = Array.from({ length: Math.floor(text.length / step) }, (_, index) => (index + 1) * step);
      assert.deepEqual(read(text, cuts), { reading: 'done', status: 200, body, mayGoOn: true });
    }
  }
});

test('a connection is reused only after an unambiguous end', () => {
  const goesOn: [string, boolean][] = [
    [`${ok}Content-Length: 0\r\n\r\n`, true],
    ['HTTP/1.1 204 No Content\r\n\r\n', true],
    ['HTTP/1.1 304 Not Modified\r\n\r\n', true],
    ['HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n', false],
    ['HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n', false],
    [`${ok}Content-Length: 0\r\nConnection: foo, Close\r\n\r\n`, false],
    [`${ok}Content-Length: 0\r\nKeep-Alive: timeout=1\r\n\r\n`, false],
    [`${ok}Content-Length: 0\r\nKeep-Alive: timeout=5, max=100\r\n\r\n`, true],
    ['HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n', false],
    ['HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n', true],
    [`${ok}Content-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n`, false],
    [`${ok}Content-Length: 1\r\n\r\nx\r\n`, false],
  ];
  for (const [text, expected] of goesOn) {
    const { reading, mayGoOn } = read(text);
    assert.deepEqual([reading, mayGoOn], ['done', expected], JSON.stringify(text));
  }
});

test('headers are kept by name, and repeated ones as a list', () => {
  const reader = new ResponseReader({ bytes: null, head: null });
  reader.take(
    Buffer.from(
      `${ok}Set-Cookie: a\r\nset-cookie:b\r\n__proto__: x\r\nX: \t y \t\r\nContent-Length: 0\r\n\r\n`,
    ),
  );
  assert.equal(
    reader.head?.headersText,
    '{"set-cookie":["a","b"],"__proto__":"x","x":"y","content-length":"0"}',
  );
});

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

function createSender(t: TestContext): Sender {
  const extraCa = pem('ca.pem');
  const sender = new Sender({ allowLoopback: true, extraCa, resolveHost: async () => ['127.0.0.1'] });
  t.after(() => sender.close());
  return sender;
}

function post(sender: Sender, origin: string, body: Buffer): Promise<ExchangeResult> {
  const request = { origin, path: '/hooks?a=b', headers: 'x-own: 1\r\n', body, traced: null };
  return new Promise((resolve) => sender.send(request, resolve, undefined));
}

test('concurrent requests of every size arrive whole over http and https', async (t) => {
  const handler = (request: IncomingMessage, response: ServerResponse) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const { host, connection, 'x-own': own } = request.headers;
      const digest = createHmac('sha256', 'k').update(Buffer.concat(chunks)).digest('hex');
      response.end(JSON.stringify([request.method, request.url, host, connection, own, digest]));
    });
  };
  const plain = `http://hooks.example:${await listen(t, createHttp(handler))}`;
  const secure = `https://hooks.example:${await listen(t, createHttps({ key: pem('good.key'), cert: pem('good.pem') }, handler))}`;
  const sender = createSender(t);
  for (const origin of [plain, secure]) {
    const sizes = [0, 1, 1_000, 65_000, 65_400, 65_536, 262_144];
    // The first round opens connections, and the others reuse them. Few requests at once: a handshake has a timeout.
    for (let round = 0; round < 6; round += 1) {
      const bodies = [...sizes, ...sizes].map((bytes) => randomBytes(bytes));
      const answers = await Promise.all(bodies.map((body) => post(sender, origin, body)));
      for (const [index, { status, error, body }] of answers.entries()) {
        const digest = createHmac('sha256', 'k')
          .update(bodies[index] as Buffer)
          .digest('hex');
        const host = new URL(origin).host;
        assert.deepEqual([status, error], [200, null]);
        const seen = ['POST', '/hooks?a=b', host, 'keep-alive', '1', digest];
        assert.deepEqual(JSON.parse(String(body)), seen);
      }
    }
  }
});

test('a request still in the send buffer is not overwritten by the next', async () => {
  const taken: string[] = [];
  const { promise: done, resolve } = Promise.withResolvers<void>();
  /** A socket that reads a chunk only after a delay, like one with a full send buffer. */
  const open = () => {
    const socket = new Duplex({
      read() {},
      write(chunk: Buffer, _encoding, callback) {
        setTimeout(() => {
          taken.push(chunk.toString('latin1').split('\r\n\r\n')[1] ?? '');
          callback();
          if (taken.length === 20) resolve();
        }, 20);
      },
    });
    const timings = { dnsMs: 0, connectMs: 0, tlsMs: null, family: 4 as const };
    const memory = { bytes: null, head: null };
    const origin = new URL('http://hooks.example');
    return new Http1Connection(
      { socket: socket as Socket, timings, address: '127.0.0.1', user: { tenant: null } },
      origin,
      memory,
      1_000,
    );
  };
  const bodies = Array.from({ length: 20 }, (_, index) => `body ${index} `.repeat(100));
  for (const body of bodies) {
    const request = { origin: '', path: '/', headers: '', body: Buffer.from(body), traced: null };
    open().start({ request, onHead() {}, onResponse() {}, onFailure() {} });
  }
  await done;
  assert.deepEqual(taken, bodies);
});

test('bytes on an idle connection end it', async (t) => {
  let connections = 0;
  const server = createTcp((socket) => {
    connections += 1;
    socket.on('data', () => {
      socket.write(`${ok}Content-Length: 0\r\n\r\n`);
      setTimeout(() => socket.write('HTTP/1.1 500 Late\r\nContent-Length: 0\r\n\r\n'), 30);
    });
  });
  const origin = `http://hooks.example:${await listen(t, server)}`;
  const sender = createSender(t);
  assert.equal((await post(sender, origin, Buffer.from('{}'))).status, 200);
  // Leaves time for late bytes, whose arrival nothing reports.
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.equal((await post(sender, origin, Buffer.from('{}'))).status, 200);
  assert.equal(connections, 2);
});

test('the attempt ends with connect_error when a kept connection was closed and no other opens', async (t) => {
  const server = createTcp((socket) => {
    let requests = 0;
    socket.on('data', () => {
      requests += 1;
      if (requests > 1) socket.resetAndDestroy();
      else socket.write(`${ok}Content-Length: 0\r\n\r\n`, () => server.close());
    });
  });
  const origin = `http://hooks.example:${await listen(t, server)}`;
  const sender = createSender(t);
  assert.equal((await post(sender, origin, Buffer.from('{}'))).status, 200);
  const again = await post(sender, origin, Buffer.from('{}'));
  assert.equal(again.status, null);
  assert.equal(again.error, 'connect_error');
});
