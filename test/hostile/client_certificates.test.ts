/**
 * A server that asks for client certificates (`oauth.mtls: 'direct'`) verifies what anybody sends, in the thread of all requests. So it refuses
 * chains that are slow to verify before OpenSSL sees them, and accepts all others.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { type AddressInfo, connect as connectTcp, createServer as createTcp } from 'node:net';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { loadPlatform } from '../../src/platform.ts';
import { makeChain, makeLongChain } from '../support/network/certificate_chain.ts';
import {
  machineCertificate,
  machineKey,
  serverCertificate,
  serverKey,
} from '../support/network/certificates.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { startTestServer } from '../support/servers/server.ts';

const folder = await temporaryFolder({ after });
const [NUNCIO_TLS_CERT_FILE, NUNCIO_TLS_KEY_FILE] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
writeFileSync(NUNCIO_TLS_CERT_FILE, serverCertificate);
writeFileSync(NUNCIO_TLS_KEY_FILE, serverKey);
const platform = await loadPlatform(null);
const server = await startTestServer(
  { after },
  { NUNCIO_TLS_CERT_FILE, NUNCIO_TLS_KEY_FILE, NUNCIO_CONCURRENT_REQUESTS: '64' },
  'dev',
  { ...platform, oauth: { ...platform.oauth, mtls: 'direct' } },
);
const port = Number(new URL(server.baseUrl).port);

function open(options: ConnectionOptions): TLSSocket {
  return connect({ port, host: '127.0.0.1', servername: 'localhost', rejectUnauthorized: false, ...options });
}

/** Whether with an error or without. */
function closeOf(socket: TLSSocket): Promise<void> {
  return new Promise((resolve) => {
    socket.on('error', () => {}).once('close', () => resolve());
  });
}

/** @returns the first line of the response; undefined if the server ends the connection without one */
async function ask(options: ConnectionOptions): Promise<string | undefined> {
  const socket = open(options);
  socket.write('GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n');
  let response = '';
  socket.on('data', (chunk) => {
    response += chunk;
  });
  await closeOf(socket);
  return response === '' ? undefined : response.split('\r\n', 1)[0];
}

const ok = 'HTTP/1.1 200 OK';
const versions = ['TLSv1.2', 'TLSv1.3'] as const;
const machine = { cert: machineCertificate, key: machineKey };

test('a chain of client certificates that is slow to verify is refused', async () => {
  const chain = makeLongChain();
  for (const maxVersion of versions) {
    assert.equal(await ask({ ...chain, maxVersion }), undefined);
    assert.equal(await ask({ maxVersion }), ok);
  }
});

test('other client certificates, and none, are accepted in all versions and suites', async () => {
  const suites = ['TLS_AES_128_GCM_SHA256', 'TLS_AES_256_GCM_SHA384', 'TLS_CHACHA20_POLY1305_SHA256'];
  for (const shown of [{}, machine, makeChain({ authorities: 8 })]) {
    for (const maxVersion of versions) assert.equal(await ask({ ...shown, maxVersion }), ok);
    for (const ciphers of suites) {
      assert.equal(await ask({ ...shown, ciphers, minVersion: 'TLSv1.3' }), ok, ciphers);
    }
  }
});

/** Passes on what a client sends byte by byte. */
async function divide(t: TestContext): Promise<number> {
  const between = createTcp({ noDelay: true }, (client) => {
    const onward = connectTcp({ port, host: '127.0.0.1', noDelay: true });
    client.on('error', () => {}).on('close', () => onward.destroy());
    onward.on('error', () => {}).on('close', () => client.end());
    onward.on('data', (chunk) => client.write(chunk));
    let sending = Promise.resolve();
    client.on('data', (chunk: Buffer) => {
      sending = sending.then(async () => {
        for (const byte of chunk) {
          onward.write(Buffer.from([byte]));
          await new Promise(setImmediate);
        }
      });
    });
  });
  await once(between.listen(0, '127.0.0.1'), 'listening');
  t.after(() => between.close());
  return (between.address() as AddressInfo).port;
}

test('client certificates arrive byte by byte', async (t) => {
  const divided = await divide(t);
  for (const maxVersion of versions) {
    assert.equal(await ask({ ...machine, maxVersion, port: divided }), ok);
    assert.equal(await ask({ maxVersion, port: divided }), ok);
  }
});

test('a client cannot repeat the handshake with other certificates', async () => {
  const socket = open({ maxVersion: 'TLSv1.2' });
  await once(socket, 'secureConnect');
  const closed = closeOf(socket);
  const error = await new Promise<Error | null>((resolve) => {
    socket.on('error', resolve);
    socket.renegotiate({}, resolve);
  });
  assert.ok(error instanceof Error);
  socket.destroy();
  await closed;
});

test('a client that does not speak TLS is disconnected', async () => {
  await assert.rejects(fetch(server.baseUrl.replace('https:', 'http:')));
});
