/** Bodies that are too long, have a wrong length or never end, on every route. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { after, test } from 'node:test';
import type { FastifyRequest } from 'fastify';
import { readBody } from '../../src/http/body_limit.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const { port } = server.config;

const form = 'application/x-www-form-urlencoded';
const engineBytesMax = 57_344;

/** Routes of the engine, which reads forms or JSON. */
const engineRoutes: [request: string, type: string][] = [
  ['POST /oauth/token', form],
  ['POST /oauth/introspect', form],
  ['POST /oauth/revoke', form],
  ['POST /oauth/par', form],
  ['POST /oauth/device', form],
  ['POST /oauth/userinfo', form],
  ['POST /oauth/register', 'application/json'],
  ['PUT /oauth/register/x', 'application/json'],
  ['DELETE /oauth/register/x', 'application/json'],
  ['POST /oauth/logout/confirm', form],
  ['POST /device', form],
  ['GET /oauth/authorize', form],
  ['GET /oauth/logout', form],
  ['GET /oauth/jwks', form],
  ['POST /oauth/introspect', 'text/plain'],
  ['POST /oauth/token', 'multipart/form-data; boundary=x'],
];

/** Other routes, which read forms, JSON or no body. */
const otherRoutes: [request: string, type: string][] = [
  ['POST /oauth/authorize', form],
  ['POST /interaction/x', form],
  ['POST /account/sign-in', form],
  ['POST /account/withdraw', form],
  ['POST /articles', 'application/json'],
  ['PATCH /articles/x', 'application/merge-patch+json'],
  ['POST /events', 'application/json'],
  ['POST /subscriptions', 'application/json'],
  ['GET /articles', 'application/json'],
  ['GET /', form],
  ['GET /livez', form],
  ['POST /nothing', 'application/json'],
  ['DELETE /oauth/token', form],
  ['OPTIONS /oauth/token', form],
];

interface Outcome {
  status: number;
  response: string;
  /** Bytes of the body that the system accepted before the connection ended. */
  sentBytes: number;
}

/** Sends a request with an endless body until the server ends the connection. */
function sendEndless(request: string, headers: string[], piece: Buffer): Promise<Outcome> {
  return new Promise((resolve) => {
    let response = '';
    const socket = connect({ port, host: '127.0.0.1' });
    const pump = () => {
      while (socket.writable && socket.write(piece));
    };
    socket.setEncoding('utf8').on('data', (text: string) => {
      response += text;
    });
    socket.on('drain', pump);
    // A reset also ends the connection.
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    socket.on('close', () => {
      const status = Number(/^HTTP\/1\.1 (\d{3})/.exec(response)?.[1] ?? 0);
      resolve({ status, response, sentBytes: socket.bytesWritten - socket.writableLength });
    });
    socket.write(`${request} HTTP/1.1\r\nHost: x\r\n${headers.join('\r\n')}\r\n\r\n`);
    pump();
  });
}

/** Far more than all buffers between client and server. */
const bytesMax = 64 * 1_048_576;

const chunk = Buffer.from(`10000\r\n${'a'.repeat(65_536)}\r\n`);

test('no route reads an endless chunked body', async () => {
  const outcomes = await Promise.all(
    [...engineRoutes, ...otherRoutes].map(async ([request, type]) => {
      const headers = [`Content-Type: ${type}`, 'Transfer-Encoding: chunked'];
      return { request, type, ...(await sendEndless(request, headers, chunk)) };
    }),
  );
  for (const { request, type, status, sentBytes, response } of outcomes) {
    const where = `${request} ${type} ${status}`;
    assert.ok(sentBytes < bytesMax, `${where} took ${sentBytes} bytes`);
    assert.ok(status > 0 && status < 500, where);
    assert.match(response, /^connection: close\r$/im, where);
  }
});

test('every route of the authorization server returns 413 past its limit, to any caller', async () => {
  for (const [request, type] of engineRoutes) {
    const chunked = [`Content-Type: ${type}`, 'Transfer-Encoding: chunked'];
    const declared = [`Content-Type: ${type}`, `Content-Length: ${engineBytesMax + 1}`];
    for (const headers of [chunked, declared]) {
      const { status, response } = await sendEndless(request, headers, chunk);
      assert.equal(status, 413, `${request} ${response}`);
      if (response.includes('application/json')) assert.match(response, /"error":"invalid_request"/);
      else assert.match(response, /text\/html/);
    }
  }
});

test('a declared length of gigabytes is refused without waiting', async () => {
  for (const [request, type] of [...engineRoutes, ...otherRoutes]) {
    const headers = [`Content-Type: ${type}`, 'Content-Length: 5000000000'];
    const { status, sentBytes } = await sendEndless(request, headers, Buffer.alloc(65_536, 'a'));
    assert.ok(sentBytes < bytesMax, `${request} took ${sentBytes} bytes`);
    assert.ok(status > 0 && status < 500, `${request} ${status}`);
  }
});

test('bytes past the declared length are parsed as another request and refused', async () => {
  for (const [request, type] of engineRoutes) {
    const headers = [`Content-Type: ${type}`, 'Content-Length: 5'];
    const { status, response, sentBytes } = await sendEndless(request, headers, Buffer.alloc(65_536, 'a'));
    assert.ok(status >= 200 && status < 500 && status !== 413, `${request} ${status}`);
    assert.match(response, /HTTP\/1\.1 400 Bad Request/);
    assert.ok(sentBytes < bytesMax, request);
  }
});

test('a body at the limit is read, declared or chunked, and the connection stays open', async () => {
  const body = `token=${'a'.repeat(engineBytesMax - 6)}`;
  for (const duplex of [false, true]) {
    const stream = new Blob([body]).stream();
    const { status, headers } = await fetch(`${server.baseUrl}/oauth/introspect`, {
      method: 'POST',
      headers: { 'content-type': form },
      ...(duplex ? { body: stream, duplex: 'half' } : { body }),
    } as RequestInit);
    assert.equal(status, 400);
    assert.notEqual(headers.get('connection'), 'close');
  }
});

test('a client that disconnects within a body causes no server error', async () => {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => {});
  socket.write(
    `POST /oauth/token HTTP/1.1\r\nHost: x\r\nContent-Type: ${form}\r\nContent-Length: 100\r\n\r\ngrant`,
  );
  await new Promise((resolve) => socket.once('connect', resolve));
  socket.destroy();
  assert.equal((await fetch(`${server.baseUrl}/livez`)).status, 200);
});

/** Chunks of one byte. */
const short = Buffer.from('1\r\n1\r\n'.repeat(10_000));

test('attack: a body in chunks of one byte is not read to its end', async () => {
  const { accessToken } = await createApiUser(server);
  const developer = await createConsoleUser(server);
  const headers = (token: string, type: string) => [
    `Authorization: Bearer ${token}`,
    `Content-Type: ${type}`,
    'Transfer-Encoding: chunked',
  ];
  const outcomes = [
    await sendEndless('POST /articles', headers(accessToken, 'application/json'), short),
    await sendEndless('PUT /apps/x/logo', headers(developer.accessToken, 'image/png'), short),
    await sendEndless('POST /oauth/token', [`Content-Type: ${form}`, 'Transfer-Encoding: chunked'], short),
  ];
  for (const { status, response } of outcomes) {
    assert.equal(status, 400, response);
    assert.match(response, /^connection: close\r$/im);
  }
});

test('a body in some thousand short chunks is read', async () => {
  const user = await createApiUser(server);
  const text = JSON.stringify({ title: 'in pieces', body: 'x'.repeat(3_000) });
  const { status, body } = await user.request('POST', '/articles', { json: JSON.parse(text) });
  assert.equal(status, 201);
  const chunks = [...text].map((character) => `1\r\n${character}\r\n`).join('');
  const head = `POST /articles HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer ${user.accessToken}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n`;
  const socket = connect({ port, host: '127.0.0.1' });
  socket.write(`${head}${chunks}0\r\n\r\n`);
  const response = (await socket.setEncoding('utf8').toArray()).join('');
  assert.match(response, /^HTTP\/1\.1 201 /);
  assert.ok(response.includes(JSON.stringify(body.body)));
});

test('attack: a token without the scope for an operation: its body is not awaited', async () => {
  const { accessToken } = await createApiUser(server, ['read:posts']);
  for (const request of ['POST /events', 'POST /subscriptions', 'POST /apps', 'POST /articles']) {
    const socket = connect({ port, host: '127.0.0.1' });
    socket.write(
      `${request} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${accessToken}\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n`,
    );
    const [response] = await once(socket.setEncoding('utf8'), 'data');
    assert.match(response as string, /^HTTP\/1\.1 403 /, request);
    socket.destroy();
  }
});

test('a body whose client has disconnected before it is read is incomplete', async (t) => {
  const { promise, resolve } = Promise.withResolvers<IncomingMessage>();
  const own = createServer((request) => request.once('close', () => resolve(request)));
  own.listen(0, '127.0.0.1');
  await once(own, 'listening');
  t.after(() => own.close());
  const socket = connect({ port: (own.address() as AddressInfo).port, host: '127.0.0.1' });
  socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf', () => socket.destroy());
  const raw = await promise;
  // The two members that the reader uses; Fastify makes no request for a connection that is gone.
  await assert.rejects(readBody({ raw, place: null } as unknown as FastifyRequest, 100), /incomplete/);
});
