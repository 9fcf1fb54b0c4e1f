/** Requests that arrive slowly, or not at all: their connections end, whatever the client still sends. */

import assert from 'node:assert/strict';
import type { AddressInfo } from 'node:net';
import { connect } from 'node:net';
import { type TestContext, test } from 'node:test';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { createApplication } from '../../src/http/application.ts';
import { readBody } from '../../src/http/body_limit.ts';

/** A route whose body is parsed, and one that reads it itself, with short timeouts. @returns the port */
async function start(t: TestContext, timeouts: { requestMs: number; headMs: number }): Promise<number> {
  const config = loadConfig({}, 'dev');
  const all = { ...timeouts, checkMs: 50 };
  const app = createApplication(config, pino({ level: 'silent' }), null, null, all);
  t.after(() => app.close());
  app.post('/parsed', async () => ({}));
  app.route({
    method: 'POST',
    url: '/read',
    onRequest: async (request, reply) => reply.send({ bytes: (await readBody(request, 1_000)).length }),
    handler: () => {},
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  return (app.server.address() as AddressInfo).port;
}

/** Sends the beginning, and then a piece every few milliseconds until the server closes. @returns the response */
function trickle(port: number, beginning: string, piece: string): Promise<string> {
  return new Promise((resolve) => {
    let response = '';
    const socket = connect({ port, host: '127.0.0.1' });
    socket.setEncoding('latin1').on('data', (text: string) => {
      response += text;
    });
    const timer = setInterval(() => {
      if (piece !== '') socket.write(piece);
    }, 10);
    // The server may reset a connection whose bytes it does not read.
    socket.on('error', () => {});
    socket.on('close', () => {
      clearInterval(timer);
      resolve(response);
    });
    socket.write(beginning);
  });
}

const hour = 3_600_000;
const body = 'Host: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n';

for (const [name, beginning, piece] of [
  ['one header after the other', 'GET /livez HTTP/1.1\r\nHost: x\r\n', 'A: b\r\n'],
  ['one byte of a header after the other', 'GET /livez HTTP/1.1\r\nHost: x\r\nA: ', 'a'],
  ['nothing after the request line', 'GET /livez HTTP/1.1\r\n', ''],
] as const) {
  test(`attack: a head that never ends, ${name}: 408, and the connection closes`, async (t) => {
    const port = await start(t, { headMs: 500, requestMs: hour });
    assert.match(await trickle(port, beginning, piece), /^HTTP\/1\.1 408 /);
  });
}

test('attack: a connection without a request closes', async (t) => {
  const port = await start(t, { headMs: 500, requestMs: hour });
  await trickle(port, '', '');
});

for (const path of ['/parsed', '/read']) {
  for (const piece of ['', ' ']) {
    test(`attack: a body for ${path} that ${piece === '' ? 'stops' : 'never ends'}: the connection closes`, async (t) => {
      const port = await start(t, { headMs: 500, requestMs: 500 });
      const response = await trickle(port, `POST ${path} HTTP/1.1\r\n${body} `, piece);
      assert.match(response, /^HTTP\/1\.1 408 /);
    });
  }
}
