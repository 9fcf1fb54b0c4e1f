/** Malicious subscribers, and a comparison of our response reader with Node's own. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Agent, request as requestHttp } from 'node:http';
import { type AddressInfo, createServer as createTcp, type Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { type TestContext, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { ResponseReader } from '../../../src/egress/http1/response_reader.ts';
import { type ExchangeResult, type Stoppable, unstoppable } from '../../../src/webhooks/sending/exchange.ts';
import { Sender } from '../../../src/webhooks/sending/sender.ts';

const ok = 'HTTP/1.1 200 OK\r\n';

interface Understood {
  status: number | undefined;
  body: string;
  /** Whether the connection can be reused. */
  goesOn: boolean;
}

/** @returns null if the response is refused */
function ours(bytes: Buffer): Understood | null {
  const reader = new ResponseReader({ bytes: null, head: null });
  const reading = reader.take(Buffer.from(bytes));
  if (reading !== 'done' && (reading !== 'more' || reader.end() !== 'done')) return null;
  const body = reader.body?.toString('latin1') ?? '';
  return { status: reader.head?.status, body, goesOn: reading === 'done' && reader.isReusable };
}

/** The same with the client of `node:http` and its strict parser. */
async function theirs(bytes: Buffer): Promise<Understood | null> {
  const socket = new Duplex({ read() {}, write: (_chunk, _encoding, callback) => callback() });
  const same = () => socket;
  Object.assign(socket, { setNoDelay: same, setKeepAlive: same, setTimeout: same, ref: same, unref: same });
  const agent = new Agent({ keepAlive: true });
  agent.createConnection = () => socket;
  const { promise, resolve } = Promise.withResolvers<Understood | null>();
  const request = requestHttp({ agent, method: 'POST', host: 'hooks.example', insecureHTTPParser: false });
  request.on('error', () => resolve(null)).on('upgrade', () => resolve(null));
  request.on('response', (response) => {
    let body = '';
    response.setEncoding('latin1').on('error', () => resolve(null));
    response.on('data', (text: string) => {
      body += text;
    });
    response.on('end', () => {
      const { shouldKeepAlive: goesOn } = request;
      // An error that follows at once belongs to the same bytes.
      setImmediate(() => resolve({ status: response.statusCode, body, goesOn }));
    });
    response.on('close', () => setImmediate(() => resolve(null)));
  });
  request.end('x');
  setImmediate(() => {
    socket.push(bytes);
    socket.push(null);
  });
  const understood = await promise;
  socket.destroy();
  agent.destroy();
  return understood;
}

const statusLines = [
  'HTTP/1.1 200 OK',
  'HTTP/1.1 200',
  'HTTP/1.0 200 OK',
  'HTTP/0.9 200 OK',
  'HTTP/2.0 200 OK',
  'HTTP/1.1  200 OK',
  'HTTP/1.1 2000 OK',
  'HTTP/1.1 000 OK',
  'HTTP/1.1 999 X',
  'HTTP/1.1 200\tOK',
  'HTTP/1.1 204 No',
  'HTTP/1.1 304 Not',
  'HTTP/1.1 101 S',
  'HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK',
  'HTTP/1.1 102 C\r\nContent-Length: 3\r\n\r\nHTTP/1.1 200 OK',
  'HTTP/1.1 199 C\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1 200 OK',
  '\r\nHTTP/1.1 200 OK',
  ' HTTP/1.1 200 OK',
  'HTTP/1.1 200 a\rb',
  'HTTP/1.1 200 a\0b',
  'HTTP/1.10 200 OK',
];
const fieldLines = [
  'Content-Length: 5',
  'Content-Length: 0',
  'Content-Length:\t5\t',
  'Content-Length : 5',
  'Content-Length: +5',
  'Content-Length: -5',
  'Content-Length: 0x5',
  'Content-Length: 05',
  'Content-Length: 5, 5',
  'Content-Length: 5 5',
  'Content-Length: ',
  'Content-Length: 18446744073709551621',
  'Content-Length: 4294967301',
  'Content-Length:\r\n 5',
  'Content-Length: 1\r\n 2',
  'Transfer-Encoding: chunked',
  'Transfer-Encoding: Chunked ',
  'Transfer-Encoding: gzip, chunked',
  'Transfer-Encoding: chunked, gzip',
  'Transfer-Encoding: chunked, chunked',
  'Transfer-Encoding: identity',
  'Transfer-Encoding: xchunked',
  'Transfer-Encoding: "chunked"',
  'Transfer-Encoding: chunked;a=b',
  'Transfer-Encoding: chunked\x0b',
  'Transfer-Encoding:\r\n chunked',
  'Transfer-Encoding: gzip\r\n ,chunked',
  'Transfer-Encoding: ,chunked',
  'Transfer-Encoding: chunked,',
  'Transfer-Encoding : chunked',
  'Connection: close',
  'Connection: keep-alive',
  'Connection: keep-alive, close',
  'Connection: xclose',
  'Connection: upgrade',
  'Keep-Alive: timeout=5',
  'X:',
  'X: a\0b',
  'X: a\rb',
  'X: a\nb',
  'X\0: a',
  ': a',
  'X Y: a',
  'X: a\r\n\tb',
  ' X: b',
  'X',
  '__proto__: a',
];
const contents = [
  'hello',
  '5\r\nhello\r\n0\r\n\r\n',
  '5\r\nhello\r\n0\r\nX: y\r\n\r\n',
  '5;a=b\r\nhello\r\n0\r\n\r\n',
  '5;a="\r\nhello\r\n0\r\n\r\n',
  '5;\0\r\nhello\r\n0\r\n\r\n',
  '5;a\nb\r\nhello\r\n0\r\n\r\n',
  '5;a\rb\r\nhello\r\n0\r\n\r\n',
  '5 \r\nhello\r\n0\r\n\r\n',
  '5\t;x\r\nhello\r\n0\r\n\r\n',
  '0000000000000005\r\nhello\r\n0\r\n\r\n',
  '5\nhello\n0\n\n',
  '5\r\nhelloX\r\n0\r\n\r\n',
  '+5\r\nhello\r\n0\r\n\r\n',
  '0x5\r\nhello\r\n0\r\n\r\n',
  ' 5\r\nhello\r\n0\r\n\r\n',
  'ffffffffffffffff\r\nhello',
  '5\r\nhello\r\n0\r\n',
  '5\r\nhello\r\n0\r\nno field\r\n\r\n',
  '5\r\nhello\r\n0\r\nX: a\0b\r\n\r\n',
  '5\r\nhello\r\n0\r\nX: a\nb\r\n\r\n',
  '5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n',
  '5\r\nhello\r\n0\r\n: x\r\n\r\n',
  '5\r\nhello\r\n0;x\n\r\n\r\n',
  '',
  'hell',
  'hello\r\n',
  'helloHTTP/1.1 500 X\r\n\r\n',
];

/** A response composed of odd parts. Sometimes one byte is changed or inserted. */
const answers = fc
  .record({
    status: fc.oneof(
      { weight: 3, arbitrary: fc.constant('HTTP/1.1 200 OK') },
      fc.constantFrom(...statusLines),
    ),
    fields: fc.array(fc.constantFrom(...fieldLines), { maxLength: 3 }),
    end: fc.oneof(
      { weight: 9, arbitrary: fc.constant('\r\n\r\n') },
      fc.constantFrom('\n\n', '\r\n\n', '\r\r'),
    ),
    content: fc.constantFrom(...contents),
    slip: fc.option(
      fc.record({ at: fc.nat(200), cut: fc.nat(1), byte: fc.constantFrom(...'\0\r\n :;0,\x7f') }),
      {
        freq: 8,
      },
    ),
  })
  .map(({ status, fields, end, content, slip }) => {
    const text = [status, ...fields].join('\r\n') + end + content;
    return slip === null ? text : text.slice(0, slip.at) + slip.byte + text.slice(slip.at + slip.cut);
  });

test('no connection is reused after a response that Node’s client refuses or reads differently', async () => {
  await fc.assert(
    fc.asyncProperty(answers, async (text) => {
      const bytes = Buffer.from(text, 'latin1');
      const understood = ours(bytes);
      if (understood === null) return;
      const node = await theirs(bytes);
      if (understood.goesOn) assert.deepEqual(understood, node);
      else if (node !== null)
        assert.deepEqual([understood.status, understood.body], [node.status, node.body]);
    }),
    { numRuns: 3_000, seed: 1 },
  );
});

const pem = (name: string) =>
  readFileSync(new URL(`../../support/network/certificates/${name}`, import.meta.url), 'utf8');

function createSender(t: TestContext): Sender {
  const extraCa = pem('ca.pem');
  const sender = new Sender({ allowLoopback: true, extraCa, resolveHost: async () => ['127.0.0.1'] });
  t.after(() => sender.close());
  return sender;
}

function post(
  sender: Sender,
  origin: string,
  stoppable: Stoppable = { stopCount: 0 },
  { path = '/', body = Buffer.from('{}') } = {},
): Promise<ExchangeResult> {
  const request = { origin, path, headers: '', body, traced: null };
  return new Promise((resolve) => sender.send(request, resolve, undefined, { stoppable }));
}

async function serveRaw(t: TestContext, onConnection: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createTcp((socket) => {
    sockets.add(socket.on('error', () => {}));
    onConnection(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `http://hooks.example:${(server.address() as AddressInfo).port}`;
}

test('a response in thousands of pieces costs no more memory than its bytes', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = () => {
    // Several runs: memory that one collection finds is freed by the next.
    for (let count = 0; count < 4; count += 1) collect();
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  const piece = Buffer.from('x');
  const before = used();
  const readers = Array.from({ length: 40 }, () => {
    const reader = new ResponseReader({ bytes: null, head: null });
    reader.take(Buffer.from(`${ok}Content-Length: 16001\r\n\r\n`));
    for (let count = 0; count < 16_000; count += 1) assert.equal(reader.take(piece), 'more');
    return reader;
  });
  const each = (used() - before) / readers.length;
  assert.ok(each < 262_144, `${each} bytes each`);
  for (const reader of readers) assert.equal(String(reader.body), 'x'.repeat(16_000));
});

/** @returns the reading, status and body bytes of a response in one piece */
function readAll(text: string) {
  const reader = new ResponseReader({ bytes: null, head: null });
  return [reader.take(Buffer.from(text)), reader.head?.status, reader.body?.length ?? 0];
}

test('of a response in very many chunks, or with very many trailers, little is read', () => {
  const read = (text: string) => readAll(`${ok}Transfer-Encoding: chunked\r\n\r\n${text}`);
  assert.deepEqual(read(`${'1\r\nx\r\n'.repeat(250)}0\r\n\r\n`), ['done', 200, 250]);
  assert.deepEqual(read('1\r\nx\r\n'.repeat(16_000)), ['full', 200, 256]);
  assert.deepEqual(read(`0\r\n${'a:b\r\n'.repeat(1_000)}`), ['full', 200, 0]);
  const extended = `1;${'a=b;'.repeat(100)}a=b\r\nx\r\n`;
  assert.deepEqual(read(`${extended.repeat(20)}0\r\n\r\n`), ['done', 200, 20]);
  assert.deepEqual(read(`${extended.repeat(21)}0\r\n\r\n`), ['invalid', 200, 20]);
});

test('a response after more than eight interim responses, or with very many header fields, is refused', () => {
  const last = `${ok}Content-Length: 0\r\n\r\n`;
  const interim = 'HTTP/1.1 100 C\r\n\r\n';
  assert.deepEqual(readAll(interim.repeat(8) + last), ['done', 200, 0]);
  assert.deepEqual(readAll(interim.repeat(9) + last), ['invalid', undefined, 0]);
  const fields = (count: number) => 'a:b\r\n'.repeat(count);
  const response = (count: number) => `${ok}${fields(count - 1)}Content-Length: 0\r\n\r\n`;
  assert.deepEqual(readAll(response(200)), ['done', 200, 0]);
  assert.deepEqual(readAll(response(201)), ['invalid', undefined, 0]);
  assert.deepEqual(readAll(`${ok}a: b\r\n${' c\r\n'.repeat(200)}\r\n`), ['invalid', undefined, 0]);
  const hint = `HTTP/1.1 103 Early Hints\r\n${fields(80)}\r\n`;
  assert.deepEqual(readAll(hint + response(120)), ['done', 200, 0]);
  assert.deepEqual(readAll(hint + response(121)), ['invalid', undefined, 0]);
  assert.deepEqual(readAll(hint.repeat(3)), ['invalid', undefined, 0]);
});

test('limits of heads count anew for each response, and also for a head that is known', () => {
  const reader = new ResponseReader({ bytes: null, head: null });
  const last = `${ok}${'a:b\r\n'.repeat(119)}Content-Length: 0\r\n\r\n`;
  const hint = (count: number) => `HTTP/1.1 103 Early Hints\r\n${'a:b\r\n'.repeat(count)}\r\n`;
  for (let count = 0; count < 3; count += 1) {
    reader.reset();
    assert.equal(reader.take(Buffer.from(hint(10).repeat(8) + last)), 'done');
  }
  reader.reset();
  assert.equal(reader.take(Buffer.from(hint(81) + last)), 'invalid');
});

test('a head in thousands of pieces is not copied again for each', (t) => {
  const copied = { bytes: 0 };
  const { concat } = Buffer;
  const { copy } = Buffer.prototype;
  t.mock.method(Buffer, 'concat', (...given: Parameters<typeof concat>) => {
    const joined = concat(...given);
    copied.bytes += joined.length;
    return joined;
  });
  t.mock.method(Buffer.prototype, 'copy', function (this: Buffer, ...given: Parameters<typeof copy>) {
    const count = copy.apply(this, given);
    copied.bytes += count;
    return count;
  });
  const text = `${ok}X: ${'a'.repeat(15_000)}\r\nContent-Length: 0\r\n\r\n`;
  const reader = new ResponseReader({ bytes: null, head: null });
  const readings = Array.from(text, (byte) => reader.take(Buffer.from(byte)));
  assert.equal(readings.indexOf('done'), text.length - 1);
  assert.equal(reader.head?.headers.x, 'a'.repeat(15_000));
  assert.ok(copied.bytes < 4 * text.length, `${copied.bytes} bytes`);
});

test('a delivery sent over a kept connection is reported as failed when it may not be sent again', async (t) => {
  const part = { stopCount: 0 };
  let requests = 0;
  const origin = await serveRaw(t, (socket) => {
    socket.on('data', () => {
      requests += 1;
      if (requests === 1) return void socket.write(`${ok}Content-Length: 0\r\n\r\n`);
      part.stopCount += 1;
      socket.resetAndDestroy();
    });
  });
  const sender = createSender(t);
  assert.equal((await post(sender, origin, part)).status, 200);
  const { isCancelled, error, status } = await post(sender, origin, part);
  assert.deepEqual([isCancelled, error, status], [false, 'connection_error', null]);
  assert.equal(requests, 2);
});

/** In a thread of its own, so that it closes the connection while the sender is writing. */
const hastySubscriber = String.raw`
  const { createServer } = require('node:net');
  const { parentPort } = require('node:worker_threads');
  const counts = {};
  const server = createServer((socket) => {
    socket.on('error', () => {}).on('data', (data) => {
      const path = /^POST (\S+)/.exec(data.toString('latin1'))?.[1];
      if (path === undefined) return;
      counts[path] = (counts[path] ?? 0) + 1;
      if (path === '/first') return void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
      socket.pause();
      socket.write('HTTP/1.1 413 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n', () => socket.destroy());
    });
  });
  parentPort.on('message', () => parentPort.postMessage(counts));
  server.listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port));
`;

test('a subscriber that responds before the whole request arrived and closes gets the request once', async (t) => {
  const worker = new Worker(hastySubscriber, { eval: true });
  t.after(() => worker.terminate());
  const [port] = await once(worker, 'message');
  const sender = createSender(t);
  const body = Buffer.alloc(8_000_000, 'a');
  const attempts = 60;
  for (let attempt = 0; attempt < attempts; attempt += 1) {
    const origin = `http://hooks.example:${port}`;
    assert.equal((await post(sender, origin, unstoppable, { path: '/first' })).status, 200);
    const { status, error } = await post(sender, origin, unstoppable, { path: `/${attempt}`, body });
    assert.ok(status === 413 || error === 'connection_error', `${status} ${error}`);
  }
  worker.postMessage('');
  const [{ '/first': _, ...counts }] = await once(worker, 'message');
  assert.deepEqual(counts, Object.fromEntries(Object.keys(counts).map((path) => [path, 1])));
  assert.equal(Object.keys(counts).length, attempts);
});
